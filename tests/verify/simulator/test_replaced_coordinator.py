"""A transaction coordinator that was replaced, and has not heard of it: what the model has it answer, and whom that excuses.

``tests/verify/faults/test_isolated_broker.py`` has a real one.
"""

from __future__ import annotations

import pytest

from onceflow.kafka.client import TRANSACTION
from onceflow.transaction.messages import Coordinated, Describe, Effect, Event, Identity, Initialise, Snapshot
from onceflow.transaction.questions import Questions
from onceflow.verify.simulator.broker import TRANSACTION_TIMEOUT, Broker
from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.client import Client
from onceflow.verify.simulator.network import Network
from onceflow.verify.simulator.requests import (
    CONCURRENT_TRANSACTIONS,
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

    def passes(self, ticks: int) -> None:
        over: list[bool] = []
        self._scheduler.after(ticks, lambda: over.append(True))
        while not over:
            assert self._scheduler.step()

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
@pytest.mark.parametrize("what", ["fence", "compare and set", "add", "end"])
def test_it_answers_nothing_that_it_has_to_write_down_and_meanwhile_asks_for_patience(version: int, what: str) -> None:
    cluster = Cluster(version)
    cluster.replace()
    own = cluster.own
    needs: dict[str, Request] = {
        "fence": InitProducerId(None, OLDER),
        "compare and set": InitProducerId(own, OLDER),
        "add": Together((AddPartitions(own, 1),)),
        "end": EndTransaction(own, commit=True),
    }
    assert cluster.told(needs[what]) is None
    then = {name: cluster.told(request) for name, request in needs.items()}
    assert then == {**dict.fromkeys(needs, CONCURRENT_TRANSACTIONS), "add": Answer(parts=(CONCURRENT_TRANSACTIONS,))}
    assert cluster.told(DescribeTransaction()) == Answer(snapshot=Snapshot(Coordinated.ONGOING, own))
    cluster.passes(TRANSACTION_TIMEOUT)
    assert cluster.told(needs[what]) is None, "it tries once more"
    cluster.passes(LASTS)
    assert cluster.told(DescribeTransaction()) == NOT_COORDINATOR


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_in_the_transaction_already_needs_nothing_written_down(version: int) -> None:
    cluster = Cluster(version)
    cluster.replace()
    assert cluster.told(Together((AddPartitions(cluster.own, 0),))) == Answer(parts=(OK,))


@pytest.mark.parametrize(("version", "told"), [(1, PRODUCER_FENCED), (2, CONCURRENT_TRANSACTIONS)])
def test_while_it_writes_a_commit_of_another_epoch_is_refused_on_version_1(version: int, told: Answer) -> None:
    cluster = Cluster(version)
    cluster.replace()
    assert cluster.told(InitProducerId(None, OLDER)) is None
    later = Identity(cluster.own.producer_id, cluster.own.epoch + 5)
    assert cluster.told(EndTransaction(later, commit=True)) == told


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
    misled = cluster.broker.standing.misled
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


def test_who_fences_since_the_id_was_forgotten_is_no_newer_and_excuses_whom_it_displaces() -> None:
    broker = Broker(Scheduler(), Choices(0, {}), 1)
    broker.ask(InitProducerId(None, NEWER))
    broker.transactions.forget()
    broker.standing.asks(OLDER, blind=True)
    broker.ask(InitProducerId(None, OLDER))
    assert (broker.standing.newest, broker.standing.displaced) == (NEWER, {NEWER})
    broker.standing.asks(NEWER, blind=False)
    broker.ask(InitProducerId(None, NEWER))
    assert (broker.standing.newest, broker.standing.displaced) == (NEWER, set())


def test_nor_is_who_is_given_an_identity_without_a_comparison_for_the_id_was_forgotten() -> None:
    broker = Broker(Scheduler(), Choices(0, {}), 1)
    own = broker.ask(InitProducerId(None, OLDER)).identity
    broker.ask(InitProducerId(None, NEWER))
    broker.transactions.forget()
    broker.ask(InitProducerId(own, OLDER))
    assert (broker.standing.newest, broker.standing.displaced) == (NEWER, {NEWER})


def test_an_identity_that_two_drivers_were_given_is_told() -> None:
    broker = Broker(Scheduler(), Choices(0, {}), 1)
    own = broker.ask(InitProducerId(None, OLDER)).identity
    for driver in (OLDER, OLDER):
        broker.ask(InitProducerId(own, driver))
    assert broker.standing.shared == [], "a repetition"
    following = broker.ask(InitProducerId(own, NEWER)).identity
    assert broker.standing.shared == [following]
