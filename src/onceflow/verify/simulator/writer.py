"""Steps 3 and 4 in simulated time: production's producer, in one task per target partition or in the driver itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from onceflow.errors import BrokerUnreachable, NotAuthorized, OnceflowError
from onceflow.kafka.client import Again
from onceflow.transaction.coordinator import unwritten
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.lane import IN_FLIGHT_PER_PARTITION, Lane, Meaning, Sealed
from onceflow.transaction.messages import Counts, Event, Identity, Write, Written
from onceflow.transaction.producing import BUFFER_BYTES, IN_FLIGHT_PER_BROKER, Batches, Producing, Target
from onceflow.transaction.questions import transactional_id
from onceflow.transaction.talk import Pace, Talk
from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.coverage import reach, reach_meaning
from onceflow.verify.simulator.job import Job, Mortal
from onceflow.verify.simulator.network import Network
from onceflow.verify.simulator.requests import Records
from onceflow.verify.simulator.scheduler import Process, Scheduler, sleep
from onceflow.verify.simulator.talking import Sender, Simulated, pace
from onceflow.verify.simulator.wire import TOPIC

SLOW = 70
_GONE, _LOST, _SLOW = 1, 2, 3

Chunk = tuple[int, tuple[int, ...]]
"""A target partition, and the records of one batch for it."""

Sequences = dict[tuple[Identity, int], int]


@dataclass(frozen=True, slots=True)
class Rules:
    """How tasks write; production's rules are the usual values, undefended variants have others."""

    retry_tasks: bool = False  # a retried task writes, instead of failing the attempt
    continue_sequences: bool = False  # sequences go on where the last batch ended: epochs are not fresh
    enrol_once: bool = False  # without an answer too, a partition is taken for one of the transaction


@dataclass(frozen=True, slots=True)
class Output:
    """Where and how the batches of a run are written. ``batch_bytes``: what a record batch counts for, and ``records_each`` how
    many records it has at most; ``silent``: input records that give no output.
    """

    version: int
    partitions: int
    by_driver: bool
    batch_bytes: int
    records_each: int
    silent: frozenset[int]


class Writer:
    """Writes one driver's batches, in tasks or by the driver itself."""

    def __init__(
        self, scheduler: Scheduler, network: Network, choices: Choices, order: int, output: Output, rules: Rules
    ) -> None:
        self._scheduler = scheduler
        self._network = network
        self._choices = choices
        self._order = order
        self._output = output
        self._rules = rules
        self._sequences: Sequences = defaultdict(int)

    def write(self, effect: Write, values: range, driver: Mortal) -> Simulated[Event]:
        """The event that the write ends with. ``values``: the batch's input records; record n goes to partition n mod P."""
        chunks = self._chunks(values)
        if not chunks:
            _note_without_output(effect.attempt)
        if self._output.by_driver:
            results = [(yield from self._produce(effect.identity, chunks, driver.moment))]
        else:
            job = Job(self._scheduler, driver)
            lanes = [[chunk for chunk in chunks if chunk[0] == p] for p in range(self._output.partitions)]
            results = yield from job.results([self._task(effect.identity, lane, job) for lane in lanes])
        counts: dict[tuple[str, int], int] = {}
        for result in results:
            if isinstance(result, Exception):
                return unwritten(result)
            counts.update(result)
        return Written(counts)

    def _chunks(self, values: range) -> list[Chunk]:
        """In the order in which they are full; what is left over comes last."""
        output, chunks = self._output, list[Chunk]()
        filling: dict[int, tuple[int, ...]] = {}
        for value in values:
            if value in output.silent:
                continue
            partition = value % output.partitions
            filling[partition] = (*filling.get(partition, ()), value)
            if len(filling[partition]) == output.records_each:
                chunks.append((partition, filling.pop(partition)))
        return [*chunks, *filling.items()]

    def _task(self, identity: Identity, lane: list[Chunk], job: Job) -> Simulated[Counts | Exception]:
        """A task as Spark runs it: it may be lost (and live on), or be slow; a second attempt is another task."""
        fate = self._choices.pick("task", 4)
        if fate == _SLOW:
            yield sleep(SLOW)
        if fate not in (_GONE, _LOST):
            return (yield from self._produce(identity, lane, job.moment))
        if fate == _GONE:
            reach("task: it fails")
        else:
            reach("task: it is thought lost and lives on")
        part = lane if fate == _LOST else lane[:1]
        Process(self._scheduler, self._produce(identity, part, job.moment))  # nobody waits for it any more
        if self._rules.retry_tasks:
            # What a shuffle brings comes in another order the second time.
            return (yield from self._produce(identity, lane[::-1], job.moment))
        yield sleep(1)
        return AttemptFailed("a task was lost")

    def _produce(
        self, identity: Identity, chunks: list[Chunk], moment: Callable[[], Simulated[None]]
    ) -> Simulated[Counts | Exception]:
        """The acknowledged records by partition, or what ends the attempt."""
        sender = Sender(self._scheduler, self._network, self._order, moment)
        target = Target(identity, transactional_id("simulated"), self._output.version)
        producing = _Noted(target, pace(self._scheduler), self._sequences, self._rules)
        before = dict(self._sequences) if self._rules.continue_sequences else {}
        try:
            for partition, values in chunks:
                first = before.get((identity, partition), 0)
                sealed = partial(self._sealed, identity, first, values)
                yield from sender.run(producing.submitted(TOPIC, partition, len(values), sealed))
            return (yield from sender.run(producing.finished()))
        except (IdentityRefused, AttemptFailed, OnceflowError) as error:
            if isinstance(error, BrokerUnreachable):
                reach("producer: patience ends")
            return error

    def _sealed(self, identity: Identity, first: int, values: tuple[int, ...], sequence: int) -> Records:
        return Records(identity, first + sequence, values, self._output.batch_bytes)


def _note_without_output(attempt: int) -> None:
    """Nothing to audit, and a commit of source offsets alone: as any other, it may be refused, late, or not answered."""
    reach("writer: a batch gives no output")
    if attempt > 1:
        reach("writer: a further attempt of a batch gives no output")


class _Noted(Producing):
    """Production's producer, which notes what the answers meant, and how far each identity has come."""

    def __init__(self, target: Target, pace: Pace, sequences: Sequences, rules: Rules) -> None:
        super().__init__(target, pace)
        self._sequences = sequences
        self._rules = rules

    def meaning(self, lane: Lane, sealed: Sealed, code: int) -> Meaning:
        meaning = super().meaning(lane, sealed, code)
        reach_meaning(meaning)
        if meaning is Meaning.ACKNOWLEDGED:
            self._sequences[self._target.identity, lane.partition] += sealed.count
        return meaning

    def _send(self, leader: int, batches: Batches) -> Talk[None]:
        now, taken = self._pace.now(), [lane for lane, _ in batches]
        if len(batches) > 1:
            reach("producer: several partitions in one request")
        if any(lane.leader == leader and lane.ready(now) and lane not in taken for lane in self._lanes.values()):
            reach("producer: a request is full")
        if any(lane.repair_until > sealed.sequence for lane, sealed in batches):
            reach("producer: one batch at a time while a lane is repaired")
        return super()._send(leader, batches)

    def _enrol(self, batches: Batches) -> Talk[None]:
        enrolling = super()._enrol(batches)
        try:
            yield from _once(enrolling) if self._rules.enrol_once else enrolling
        except (IdentityRefused, AttemptFailed, NotAuthorized):
            reach("producer: a partition may not join the transaction")
            raise

    def _wait(self) -> Talk[None]:
        if self._buffered_bytes > BUFFER_BYTES:
            reach("producer: waits, for too much is buffered")
        if any(lane.waiting and len(lane.in_flight) == IN_FLIGHT_PER_PARTITION for lane in self._lanes.values()):
            reach("producer: a partition has as many batches in flight as it may")
        if max(self._requests_in_flight.values(), default=0) == IN_FLIGHT_PER_BROKER:
            reach("producer: a broker has as many requests in flight as it may")
        return super()._wait()


def _once(talk: Talk[None]) -> Talk[None]:
    """What a talk asks first; that it would ask again is of no matter."""
    with suppress(StopIteration, Again):
        talk.send((yield next(talk)))
