"""A transaction coordinator that was replaced, and has not heard of it: what the model has it answer, and whom that excuses.

``tests/verify/faults/test_isolated_broker.py`` has a real one.
"""

from __future__ import annotations

import pytest

from onceflow.kafka.client import GROUP, TRANSACTION
from onceflow.transaction.messages import Coordinated, Describe, Effect, Event, Identity, Initialise, Snapshot
from onceflow.transaction.questions import Questions
from onceflow.verify.simulator.broker import Broker
from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.client import Client
from onceflow.verify.simulator.network import Network
from onceflow.verify.simulator.requests import (
    INVALID_TXN_STATE,
    NOT_COORDINATOR,
    OK,
    PRODUCER_FENCED,
    AddPartitions,
    Answer,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    Replaced,
    Request,
    Together,
)
from onceflow.verify.simulator.scheduler import Process, Scheduler

LASTS = 800
OLDER, NEWER = 1, 2


class Cluster:
    """A model in which a driver has opened a transaction in partition 0, under ``own``."""

    def __init__(self, version: int) -> None:
        self._scheduler = Scheduler()
        self.choices = Choices(0, {"named": 1.0})  # the one that was replaced is named
        self.broker = Broker(self._scheduler, self.choices, version)
        self.own = self.initialise(None)
        self.asked(AddPartitions(self.own, 0))

    def asked(self, request: Request) -> Answer:
        """What the one answers that coordinates, as soon as it has taken over."""
        return self.broker.transactions.ask(request)

    def initialise(self, expected: Identity | None) -> Identity:
        identity = self.asked(InitProducerId(expected, OLDER)).identity
        assert identity is not None
        return identity

    def commit(self) -> None:
        """Markers included."""
        assert self.asked(EndTransaction(self.own, commit=True)).code == OK.code
        while self.asked(DescribeTransaction()).snapshot == Snapshot(Coordinated.COMPLETING, self.own):
            assert self._scheduler.step()

    def replace(self) -> None:
        self.broker.replace_coordinator(LASTS)

    def it_hears(self) -> None:
        while self._scheduler.step():
            pass

    def hears(self, effect: Effect) -> None:
        """The older driver asks whoever is named, and is answered."""
        network = Network(self._scheduler, self.choices, self.broker)
        client = Client(self._scheduler, network, Questions("simulated", 1, timeout_ms=60_000), OLDER, looks_again=True)
        told: list[Event] = []
        Process(self._scheduler, client.perform(effect), told.append)
        while not told:
            assert self._scheduler.step()

    def told(self, request: Request) -> Answer | None:
        """What the one answers that was replaced."""
        return self.broker.ask_replaced(Replaced(TRANSACTION, request))


@pytest.mark.parametrize("version", [1, 2])
def test_it_answers_nothing_that_it_has_to_write_down(version: int) -> None:
    cluster = Cluster(version)
    cluster.replace()
    own = cluster.own
    needs = (
        InitProducerId(None, OLDER),
        InitProducerId(own, OLDER),
        AddPartitions(own, 1),
        EndTransaction(own, commit=True),
    )
    assert [cluster.told(each) for each in needs] == [None] * len(needs)
    assert cluster.told(Together((AddPartitions(own, 0),))) == Answer(parts=(OK,)), "that one is open there already"
    cluster.it_hears()
    assert cluster.told(DescribeTransaction()) == NOT_COORDINATOR


def test_nor_does_it_give_an_epoch_that_it_has_given_before() -> None:
    cluster = Cluster(1)
    cluster.commit()
    cluster.initialise(cluster.own)
    cluster.replace()
    assert cluster.told(InitProducerId(cluster.own, OLDER)) is None


def test_on_version_1_it_says_that_the_epoch_it_committed_last_is_committed_and_refuses_the_next() -> None:
    """So under an epoch that two transactions share it would say of the second what it knows of the first."""
    cluster = Cluster(1)
    cluster.commit()
    cluster.replace()
    following = cluster.initialise(cluster.own)
    cluster.asked(AddPartitions(following, 0))
    assert cluster.told(EndTransaction(cluster.own, commit=True)) == Answer(misleads=True)
    refused = cluster.told(EndTransaction(following, commit=True))
    assert refused is not None
    assert refused.code == PRODUCER_FENCED.code


def test_on_version_2_it_says_it_of_the_epoch_before_alone() -> None:
    cluster = Cluster(2)
    before = cluster.own
    assert cluster.asked(EndTransaction(before, commit=True)).code == OK.code
    following = Identity(before.producer_id, before.epoch + 1)
    while cluster.asked(DescribeTransaction()).snapshot == Snapshot(Coordinated.COMPLETING, following):
        assert cluster._scheduler.step()
    cluster.replace()
    cluster.asked(AddPartitions(following, 0))
    assert cluster.told(EndTransaction(before, commit=True)) == Answer(identity=following, misleads=True)
    refused = cluster.told(EndTransaction(following, commit=True))
    assert refused is not None
    assert refused.code == INVALID_TXN_STATE.code


def test_what_it_tells_misleads_as_soon_as_it_is_so_no_more() -> None:
    cluster = Cluster(1)
    cluster.replace()
    shown = Snapshot(Coordinated.ONGOING, cluster.own)
    assert cluster.told(DescribeTransaction()) == Answer(snapshot=shown)
    cluster.asked(EndTransaction(cluster.own, commit=True))
    assert cluster.told(DescribeTransaction()) == Answer(snapshot=shown, misleads=True)


def test_who_was_told_by_it_is_misled_until_an_identity_is_given() -> None:
    cluster = Cluster(1)
    cluster.commit()
    cluster.initialise(cluster.own)
    cluster.replace()
    cluster.initialise(None)
    misled = cluster.broker.misled
    cluster.hears(Describe(settle=False))
    assert misled == {(TRANSACTION, OLDER)}
    cluster.choices.quiet = True  # the one that coordinates is named
    cluster.hears(Describe(settle=False))
    assert misled == {(TRANSACTION, OLDER)}
    cluster.hears(Initialise(None))
    assert misled == set()


def test_who_stops_for_what_it_has_forgotten_cannot_know_that_nobody_is_newer() -> None:
    cluster = Cluster(1)
    cluster.commit()
    cluster.initialise(cluster.own)
    cluster.broker.move_coordinator()  # who takes over does not know whose epoch it was
    cluster.replace()
    assert not cluster.broker.transactions.in_doubt
    assert cluster.told(InitProducerId(cluster.own, OLDER)) == PRODUCER_FENCED
    assert cluster.broker.transactions.in_doubt


@pytest.mark.parametrize(("misled", "newest"), [(False, OLDER), (True, NEWER)])
def test_who_fences_by_an_older_claim_is_no_newer_for_that(misled: bool, newest: int) -> None:
    broker = Broker(Scheduler(), Choices(0, {}), 1)
    broker.note_fence(NEWER, blind=False)
    broker.ask(InitProducerId(None, NEWER))
    broker.transactions.forget()
    broker.note_fence(OLDER, blind=True)
    broker.note_answer(GROUP, OLDER, misleads=misled)
    broker.ask(InitProducerId(None, OLDER))
    assert broker.newest == newest
