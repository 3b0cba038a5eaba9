"""Which identity each attempt outside of a transaction has."""

from __future__ import annotations

from itertools import count

import pytest

from onceflow.errors import BrokerUnreachable
from onceflow.transaction.idempotent import LAST_IDEMPOTENT_EPOCH, IdempotentIdentity
from onceflow.transaction.messages import Identity


def test_each_attempt_has_an_epoch_of_its_own_and_all_one_producer_id() -> None:
    identity = IdempotentIdentity(iter([Identity(7, 0)]).__next__)
    assert [identity.next() for _ in range(4)] == [Identity(7, epoch) for epoch in range(4)]


def test_behind_the_last_epoch_comes_another_producer_id() -> None:
    """An epoch is a number of 16 bits with a sign."""
    assert LAST_IDEMPOTENT_EPOCH == 32767
    given = iter([Identity(7, LAST_IDEMPOTENT_EPOCH - 1), Identity(8, 0)])
    identity = IdempotentIdentity(given.__next__)
    assert [identity.next() for _ in range(4)] == [
        *(Identity(7, LAST_IDEMPOTENT_EPOCH - 1), Identity(7, LAST_IDEMPOTENT_EPOCH)),
        *(Identity(8, 0), Identity(8, 1)),
    ]


def test_an_identity_that_was_refused_does_not_come_again() -> None:
    given = (Identity(number, 0) for number in count(7))
    identity = IdempotentIdentity(given.__next__)
    assert [identity.next(), identity.next()] == [Identity(7, 0), Identity(7, 1)]
    identity.forget()
    assert [identity.next(), identity.next()] == [Identity(8, 0), Identity(8, 1)]


def test_who_got_none_asks_again() -> None:
    failures = [BrokerUnreachable("gone", action="wait")]

    def ask() -> Identity:
        if failures:
            raise failures.pop()
        return Identity(7, 0)

    identity = IdempotentIdentity(ask)
    with pytest.raises(BrokerUnreachable):
        identity.next()
    assert identity.next() == Identity(7, 0)
