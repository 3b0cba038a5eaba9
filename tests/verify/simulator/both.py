"""The model and a real broker side by side: each request goes to both, and the answers are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import cycle
from random import Random
from typing import Any, Self

from confluent_kafka import Message
from tests.verify.simulator.real import RealBroker, expected

from onceflow.kafka import codes
from onceflow.transaction.messages import Identity
from onceflow.transaction.progress import Progress
from onceflow.verify.simulator.broker import Broker
from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.partition import Partition
from onceflow.verify.simulator.requests import (
    GROUP,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSTABLE_OFFSET_COMMIT,
    AddPartitions,
    Answer,
    CommitOffsets,
    DescribeProducer,
    DescribeTransaction,
    EndTransaction,
    FetchOffsets,
    InitProducerId,
    ListOffset,
    Produce,
    Request,
    sources_at,
)
from onceflow.verify.simulator.scheduler import Scheduler
from onceflow.verify.simulator.wire import offsets_of

PARTITIONS = 2
NEVER_GIVEN = Identity(123_456, 7)
KINDS = {
    "fence": 6,
    "initialise": 8,
    "add": 14,
    "offsets": 12,
    "commit": 12,
    "abort": 6,
    "transaction": 4,
    "producer": 6,
    "produce": 34,
}
"""What random requests are, and how often."""
AND_READS = {**KINDS, "everything": 6, "record": 3}
"""The same, and what is committed is asked for between them."""

PARTLY = ((UNKNOWN_TOPIC_OR_PARTITION, None), (None, UNKNOWN_TOPIC_OR_PARTITION), (UNKNOWN_TOPIC_OR_PARTITION,) * 2)
"""Which of two source partitions a broker has not heard of."""

_FAR = 10_000

Pair = tuple[Identity, Identity]  # the same identity in the model and on the real broker


class Both:
    """One transactional id in the model and on the real broker. ``beside``: another one, which writes to the same partitions."""

    def __init__(self, real: RealBroker, random: Random, first_epoch: int = 0, *, beside: Both | None = None) -> None:
        self._scheduler = Scheduler()
        self.model = Broker(self._scheduler, Choices(0, {}), real.version, PARTITIONS, first_epoch)
        self.model.transactions.follows_next = real.follows_next
        self.real = real
        self._random = random
        self._parts = Random(
            f"source of {real.name}"
        )  # apart, so that what else is asked is what it was before there were two
        self.known: list[Pair] = [(NEVER_GIVEN, NEVER_GIVEN)]
        self._written: list[Produce] = []
        self._next: dict[tuple[Identity, int], int] = {}
        self._values = iter(range(_FAR))
        self.story = [real.name]
        self.codes: set[tuple[str, int]] = set()
        self._first: list[int] | None = None
        self._partitions = cycle(range(PARTITIONS))
        self._together = [self]
        if beside is not None:
            self._write_beside(beside)

    def _write_beside(self, other: Both) -> None:
        self.model.partitions = other.model.partitions
        self._together, self._first = other._together, other._first
        behind = _FAR * len(self._together)  # no producer id and no value that another one has
        self.model.transactions._next_pid += behind
        self._values = iter(range(behind, behind + _FAR))
        self._together.append(self)

    @classmethod
    def opened(cls, real: RealBroker, *, alone: bool = False) -> Self:
        """A transaction with records and offsets, which nobody goes on with."""
        both = cls(real, Random(real.name))
        if alone:
            both.begin_alone()
        both.open(100)
        return both

    def open(self, value: int | None = None) -> None:
        """Begins a transaction with offsets and a record in partition 0, of the next value or of this one."""
        self.ask(InitProducerId(None))
        for partition in (0, GROUP) if self.real.version == 1 else ():
            self.ask(AddPartitions(self.ours, partition))
        self.ask(Produce(self.ours, 0, 0, (next(self._values) if value is None else value,)))
        self.ask(CommitOffsets(self.ours, Progress(1, "q", "i", ("d",)), sources_at(10)))

    def begin_alone(self) -> None:
        """From here on nobody else writes to the topic, and nothing is open there: the model's log begins where it is stable.

        So both can be asked for the last stable offset, which tells as well how many offsets records and markers took.
        """
        stable = [self.real.ask(ListOffset(partition)).offset for partition in range(PARTITIONS)]
        self._first = [offset for offset in stable if offset is not None]

    @property
    def ours(self) -> Identity:
        """The newest identity, as the model names it."""
        return self.known[-1][0]

    @property
    def theirs(self) -> Identity:
        """The newest identity, as the real broker names it."""
        return self.known[-1][1]

    def with_epoch(self, epoch: int) -> Identity:
        """This epoch of the first producer id, as the model names it; it may be asked about, whoever was given it."""
        ours, theirs = (Identity(first.producer_id, epoch) for first in self.known[1])
        self.known.insert(1, (ours, theirs))
        return ours

    def step(self, kinds: Mapping[str, int] = KINDS) -> None:
        """One random request to both, and how far that has left one partition stable: what differs there differs for long."""
        self._compare_answers(*self._request(kinds))
        self._compare_stable(next(self._partitions))

    def ask(self, request: Request) -> int:
        """One request of the model's identities to both; the error code that both answer."""
        twins = dict(self.known)
        named: dict[str, Any] = {
            field: twins[value]
            for field in ("identity", "expected")
            if (value := getattr(request, field, None)) is not None
        }
        return self._compare_answers(request, replace(request, **named))

    def _compare_answers(self, request: Request, twin: Request) -> int:
        modelled = self.ask_model(request)
        real = self.real.ask(twin)
        self.story.append(f"{request}: model {modelled}, real {real}")
        self.codes.add((type(request).__name__, real.code))
        assert modelled.code == real.code, "\n".join(self.story)
        assert (modelled.identity is None) == (real.identity is None), "\n".join(self.story)
        self._compare(modelled, real)
        if isinstance(request, CommitOffsets):
            self._compare_parts(request, modelled, real)
        if isinstance(request, ListOffset):
            self._compare_offset(request.partition, modelled, real)
        if isinstance(request, Produce) and real.code == codes.NONE:
            self._written.append(request)
            self._next[request.identity, request.partition] = request.sequence + len(request.values)
        return real.code

    def _compare_parts(self, request: CommitOffsets, modelled: Answer, real: Answer) -> None:
        """What the progress and each source partition are told, where that is not the same."""
        asked = 1 + len(offsets_of(request.sources))
        told, found = ([part.code for part in answer.parts or [answer] * asked] for answer in (modelled, real))
        assert told == found, "\n".join(self.story)
        if any(request.refused) and len(set(found)) > 1:
            self.codes.add(("CommitOffsets in part", min(found)))

    def _compare(self, modelled: Answer, real: Answer) -> None:
        if modelled.identity is not None and real.identity is not None:
            assert modelled.identity.epoch == real.identity.epoch, "\n".join(self.story)
            same_pid = (modelled.identity.producer_id, real.identity.producer_id)
            seen = {(m.producer_id, r.producer_id) for m, r in self.known[1:]}
            assert all((m == same_pid[0]) == (r == same_pid[1]) for m, r in seen), "\n".join(self.story)
            self.known.append((modelled.identity, real.identity))
        self._compare_producers(modelled, real)
        assert modelled.committed == real.committed, "\n".join(self.story)
        if modelled.snapshot is not None and real.snapshot is not None:
            assert modelled.snapshot.state is real.snapshot.state, "\n".join(self.story)
            epochs = [shown.identity and shown.identity.epoch for shown in (modelled.snapshot, real.snapshot)]
            assert epochs[0] == epochs[1], "\n".join(self.story)

    def _compare_producers(self, modelled: Answer, real: Answer) -> None:
        """What a leader knows of the producer ids of the transactional ids in the model; others write to the topic too."""
        twins = {ours.producer_id: theirs.producer_id for both in self._together for ours, theirs in both.known}
        expected = {(twins[at.producer_id], at.epoch, last) for at, last in modelled.producers}
        found = {(at.producer_id, at.epoch, last) for at, last in real.producers if at.producer_id in twins.values()}
        assert expected == found, "\n".join(self.story)

    def _compare_offset(self, partition: int, modelled: Answer, real: Answer) -> None:
        assert self._first is not None, "others write to the topic"
        assert modelled.offset is not None
        assert self._first[partition] + modelled.offset == real.offset, "\n".join(self.story)

    def compare_stable(self) -> None:
        """How far each partition is stable, if that can be told."""
        for partition in range(PARTITIONS):
            self._compare_stable(partition)

    def _compare_stable(self, partition: int) -> None:
        if self._first is not None:
            self.ask(ListOffset(partition))

    def ask_model(self, request: Request) -> Answer:
        """As ``RealBroker.ask``: what only says later is asked again, when the markers are written."""
        for _ in range(10):
            answer = self.model.ask(request)
            if self.real.settles:
                self.settle()
            if answer.code not in codes.RETRIABLE - self.real.told - {UNSTABLE_OFFSET_COMMIT.code} - expected(request):
                return answer
        raise AssertionError(f"{request} is never answered")

    def settle(self) -> None:
        """Writes the markers that are missing."""
        while self.model._markers_missing:
            self._scheduler.step()

    def move(self, *, coordinators: bool, leaders: bool, restarts: bool) -> None:
        """The model's coordinators or leaders move, as the real ones just did; or the leaders were restarted."""
        self.model.restarts_leaders = restarts
        if coordinators:
            self.model.move_coordinator(away=0)
            self.model.move_group(away=0)
        for partition in range(PARTITIONS) if leaders else ():
            self.model.move_leader(partition)
        self.story.append(f"coordinators move: {coordinators}, leaders move: {leaders}")

    def _request(self, kinds: Mapping[str, int]) -> tuple[Request, Request]:
        """The same request with the model's identities and with the real ones."""
        random = self._random
        ours, theirs = self.known[-1] if random.random() < 0.85 else random.choice(self.known[-5:])
        kind = random.choices(list(kinds), list(kinds.values()))[0]
        partition = random.randrange(PARTITIONS)
        match kind:
            case "fence":
                return InitProducerId(None), InitProducerId(None)
            case "initialise":
                return InitProducerId(ours), InitProducerId(theirs)
            case "add" if self.real.version == 1:
                partition = random.choice((0, 1, GROUP))
                return AddPartitions(ours, partition), AddPartitions(theirs, partition)
            case "offsets":
                progress, offset = Progress(random.randrange(9), "q", "i", ("d",)), random.randrange(100)
                asked = CommitOffsets(ours, progress, (offset, self._parts.randrange(100)), refused=self._refused())
                return asked, replace(asked, identity=theirs)
            case "commit" | "abort":
                commit = kind == "commit"
                return EndTransaction(ours, commit), EndTransaction(theirs, commit)
            case "transaction":
                return DescribeTransaction(), DescribeTransaction()
            case "everything" | "record":
                return FetchOffsets(kind == "record"), FetchOffsets(kind == "record")
            case "producer":
                return DescribeProducer(partition), DescribeProducer(partition)
        return self._produce(ours, theirs, partition)

    def _refused(self) -> tuple[Answer | None, Answer | None]:
        return self._parts.choice(PARTLY) if self._parts.random() < 0.5 else (None, None)

    def _produce(self, ours: Identity, theirs: Identity, partition: int) -> tuple[Request, Request]:
        random = self._random
        again = [p for p in self._written[-6:] if p.identity == ours]
        if again and random.random() < 0.2:
            old = random.choice(again)
            return old, Produce(theirs, old.partition, old.sequence, old.values)
        expected = self._next.get((ours, partition), 0)
        sequence = expected if random.random() < 0.7 else random.choice((0, expected + 1, expected + 3))
        values = tuple(next(self._values) for _ in range(random.randrange(1, 4)))
        return Produce(ours, partition, sequence, values), Produce(theirs, partition, sequence, values)

    def finish(self) -> None:
        """Ends what is open, and compares the committed offsets, and how far the partitions are stable."""
        fence = InitProducerId(None)
        assert self.ask_model(fence).code == self.real.ask(fence).code
        assert self.ask_model(FetchOffsets()).committed == self.real.ask(FetchOffsets()).committed
        self.compare_stable()


def hold_back(newer: Both, older: Both) -> None:
    """What the newer one commits waits for a transaction of the older one's."""
    for both in (older, newer):
        both.open()
    newer.ask(EndTransaction(newer.ours, commit=True))
    assert newer.model.partitions[0].readable != newer.model.partitions[0].visible


def check_visible(models: Iterable[Both], messages: Iterable[Message]) -> None:
    """The committed records of a topic are those of the models."""
    visible: dict[tuple[str, int], list[int]] = {}
    for message in messages:
        name, _, value = (message.value() or b"").decode().partition(":")
        visible.setdefault((name, message.partition() or 0), []).append(int(value))
    for both in models:
        for number, partition in enumerate(both.model.partitions):
            assert partition.visible == visible.get((both.real.name, number), []), (
                f"{both.real.name}, partition {number}"
            )


def check_readable(partitions: Iterable[Partition], messages: Iterable[Message]) -> None:
    """These are all that a reader of committed records gets now of a topic that nobody else has written to."""
    got: dict[int, list[int]] = {}
    for message in messages:
        value = (message.value() or b"").decode().partition(":")[2]
        got.setdefault(message.partition() or 0, []).append(int(value))
    for number, partition in enumerate(partitions):
        assert partition.readable == got.get(number, []), f"partition {number}"
