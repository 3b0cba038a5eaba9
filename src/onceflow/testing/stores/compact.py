"""The compact form: for events with a sequence, one number per partition and source stands for all of them."""

from __future__ import annotations

from itertools import count

from onceflow.reader.stores.interface import EventKey, Retention
from onceflow.testing.stores.subject import (
    DUPLICATE,
    HELD,
    LEASE_S,
    NEW,
    OTHER_TOPIC,
    TOPIC,
    Lab,
    keys,
    numbered,
    take,
)

_LARGEST = 2**63 - 1
_ODD = 2**53 + 1  # no float has this number


def at_or_below(lab: Lab) -> None:
    """A sequence at or below the highest is a duplicate, one above it is new, gaps and all, zero too."""
    for store, handle in lab.modes():
        owner = take(store)
        assert handle(store, owner, numbered((0, 0), (1, 1), (2, 5))) == [NEW] * 3
        assert handle(store, owner, numbered((3, 0), (4, 5), (5, 6))) == [DUPLICATE, DUPLICATE, NEW]


def repeated_in_one_call(lab: Lab) -> None:
    """A source that goes back within one call repeats itself."""
    for store, handle in lab.modes():
        given = numbered((0, 1), (1, 2), (2, 1), (3, 2), (4, 3))
        assert handle(store, take(store), given) == [NEW, NEW, DUPLICATE, DUPLICATE, NEW]


def per_source_and_partition(lab: Lab) -> None:
    """Each source counts by itself, on each partition by itself."""
    for store, handle in lab.modes():
        first, second = store.take(TOPIC, [0, 1], "reader")
        mixed = [*numbered((0, 9)), *numbered((1, 1), source="bank"), *numbered((2, 2), source="bank")]
        assert handle(store, first, mixed) == [NEW] * 3
        assert handle(store, second, [EventKey(0, "shop", "other", 3)]) == [NEW]


def per_topic(lab: Lab) -> None:
    """A source counts by itself in each topic: an outbox numbers its records over all of its topics, whichever is read first."""
    for store, handle in lab.modes():
        owner, other = take(store), take(store, topic=OTHER_TOPIC)
        assert handle(store, owner, numbered((0, 9))) == [NEW]
        assert handle(store, other, [EventKey(0, "shop", "other", 3)]) == [NEW], "the sequence of another topic"
        assert handle(store, owner, numbered((1, 5), (2, 10))) == [DUPLICATE, NEW], "lowered by another topic"


def large(lab: Lab) -> None:
    """A sequence may be any whole number below 2**63, and the one after it is higher."""
    for store, handle in lab.modes():
        owner, offsets = take(store), count()
        for sequence in (2**31 - 1, 2**32 - 1, _ODD, _LARGEST - 1):
            source = f"shop-{sequence}"
            assert handle(store, owner, numbered((next(offsets), sequence), source=source)) == [NEW]
            again = numbered((next(offsets), sequence), (next(offsets), sequence + 1), source=source)
            assert handle(store, owner, again) == [DUPLICATE, NEW], "a large sequence was rounded or cut"


def large_and_confirmed_early(lab: Lab) -> None:
    """A large sequence stays as it is while its confirmation waits for an event in front of it."""
    store = lab.store()
    owner = take(store)
    given = [*keys(0), *numbered((1, _ODD)), *numbered((2, _LARGEST - 1), source="bank")]
    assert store.claim(owner, given, LEASE_S) == [NEW] * 3
    store.confirm(owner, given[1:])
    store.confirm(owner, given[:1])
    store.claim(owner, keys(3), LEASE_S)
    store.confirm(owner, keys(3))
    again = [*numbered((4, _ODD), (5, _ODD + 1)), *numbered((6, _LARGEST - 1), (7, _LARGEST), source="bank")]
    assert store.claim(owner, again, LEASE_S) == [DUPLICATE, NEW, DUPLICATE, NEW], "a large sequence was rounded or cut"


def beside_plain_ids(lab: Lab) -> None:
    """Events with and without a sequence stand in one call."""
    for store, handle in lab.modes():
        owner = take(store)
        assert handle(store, owner, [*keys(0), *numbered((1, 1)), *keys(2)]) == [NEW] * 3
        again = [EventKey(3, "shop", "event-0"), *numbered((4, 1)), *keys(5)]
        assert handle(store, owner, again) == [DUPLICATE, DUPLICATE, NEW]


def never_expires(lab: Lab) -> None:
    """The highest sequence outlives every retention."""
    for store, handle in lab.modes(Retention(seconds=None, count=0)):
        owner = take(store)
        handle(store, owner, numbered((0, 1), (1, 2)))
        store.forget_expired()
        assert handle(store, owner, numbered((2, 2), (3, 3))) == [DUPLICATE, NEW]


def held_while_claimed(lab: Lab) -> None:
    """A claimed sequence is held, and is not the highest before it is confirmed."""
    store = lab.store()
    owner = take(store)
    assert store.claim(owner, numbered((0, 1), (1, 2)), LEASE_S) == [NEW, NEW]
    assert store.claim(owner, numbered((2, 1)), LEASE_S) == [HELD]
    again = take(store)
    assert store.claim(again, numbered((0, 1), (1, 2)), LEASE_S) == [NEW, NEW], "unconfirmed, and skipped"


CHECKS = (
    at_or_below,
    repeated_in_one_call,
    per_source_and_partition,
    per_topic,
    large,
    large_and_confirmed_early,
    beside_plain_ids,
    never_expires,
    held_while_claimed,
)
