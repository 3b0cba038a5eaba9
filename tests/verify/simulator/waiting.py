"""The model and a real broker while a transaction is decided and its markers cannot be written: each request is asked once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Self

from tests.verify.simulator.both import NEVER_GIVEN, Both
from tests.verify.simulator.real import RealBroker

from onceflow.kafka import codes
from onceflow.transaction.messages import Coordinated, Identity
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import transactional_id
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.cluster.transaction_log import Entry, replace_entry
from onceflow.verify.simulator.requests import (
    CONCURRENT_TRANSACTIONS,
    GROUP,
    NOT_ENOUGH_REPLICAS,
    AddPartitions,
    CommitOffsets,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    Produce,
    Request,
    sources_at,
)
from onceflow.verify.simulator.transactions import EXHAUSTED, GREATEST

DECISIONS = ("commit", "abort", "fence")
PID_FROM_THE_LOG = 9_000_000  # far from those that the brokers give


@dataclass(frozen=True, slots=True)
class Waiting:
    """A transaction on partition 0 alone, and what decides it."""

    both: Both
    decision: str
    epoch: int  # of the transaction

    @classmethod
    def opened(
        cls, real: RealBroker, decision: str, first_epoch: int = 0, *, alone: bool = False, beside: Both | None = None
    ) -> Self:
        both = Both(real, Random(real.name), first_epoch, beside=beside)
        if alone:
            both.begin_alone()
        for _ in range(1 if first_epoch else 2):  # so that there is an epoch before the transaction's own
            both.ask(InitProducerId(None))
        if real.version == 1:
            both.ask(AddPartitions(both.ours, 0))
        both.ask(Produce(both.ours, 0, 0, (100,)))
        return cls(both, decision, both.ours.epoch)

    def decide(self) -> None:
        """From here on its markers wait, and what only says later is the answer."""
        both = self.both
        both.real.settles = False
        both.real.told = frozenset({CONCURRENT_TRANSACTIONS.code, NOT_ENOUGH_REPLICAS.code})
        if self.decision == "fence":
            assert both.ask(InitProducerId(None)) == CONCURRENT_TRANSACTIONS.code
        else:
            assert both.ask(EndTransaction(both.ours, commit=self.decision == "commit")) == codes.NONE
        self._check_completing()

    def ask_meanwhile(self) -> None:
        """Whatever its driver, an older or a newer one may ask; nothing of it changes the transaction."""
        for identity in self._identities():
            for request in _requests(identity, self.both.real.version):
                self.both.ask(request)
        self.both.ask(InitProducerId(None))
        self._check_completing()

    def settle(self) -> None:
        """The markers are written, and the same EndTxn are answered for good."""
        self.both.real.settles, self.both.real.told = True, frozenset()
        self.both.settle()
        for identity in self._identities():
            for commit in (self.decision == "commit", self.decision != "commit"):
                self.both.ask(EndTransaction(identity, commit))
            self.both.ask(DescribeTransaction())

    def _check_completing(self) -> None:
        self.both.ask(DescribeTransaction())
        assert self.both.model.transactions.describe().state is Coordinated.COMPLETING
        self.both.compare_stable()

    def _identities(self) -> Iterator[Identity]:
        """Those around the transaction's own; that of another producer; and the newest, which EndTxn has given on version 2."""
        for epoch in range(self.epoch - 1, min(self.epoch + 3, GREATEST + 1)):
            yield self.both.with_epoch(epoch)
        yield NEVER_GIVEN
        yield self.both.ours


def _requests(identity: Identity, version: int) -> Iterator[Request]:
    for commit in (True, False):
        yield EndTransaction(identity, commit)
    yield InitProducerId(identity)
    for partition in (0, 1, GROUP) if version == 1 else ():
        yield AddPartitions(identity, partition)
    yield Produce(identity, 1, 0, (200,))
    yield CommitOffsets(identity, Progress(1, "q", "i", ("d",)), sources_at(10))


def open_waiting(cluster: KafkaCluster, real: Callable[[str], RealBroker]) -> list[Waiting]:
    """A transaction for each decision, in an early epoch and in the last one."""
    last = [real(f"last-epoch-{decision}") for decision in DECISIONS]
    for number, each in enumerate(last):
        entry = Entry(PID_FROM_THE_LOG + number, EXHAUSTED - 1, timeout_ms=60_000)
        replace_entry(cluster, transactional_id(each.name), entry)
    early = [Waiting.opened(real(decision), decision) for decision in DECISIONS]
    return early + [Waiting.opened(each, decision, EXHAUSTED) for each, decision in zip(last, DECISIONS, strict=True)]


def open_two(real: Callable[[str], RealBroker]) -> list[Waiting]:
    """On a topic of their own: what was decided holds it as what is open does, until the marker is written."""
    one = Waiting.opened(real("one-of-two"), "commit", alone=True)
    return [one, Waiting.opened(real("the-other-of-two"), "abort", beside=one.both)]
