"""Steps 3 and 4 in simulated time: one task per target partition writes its records in small batches."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from onceflow.kafka import codes
from onceflow.transaction.messages import Event, Identity, Refused, Write, WriteFailed, Written
from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.client import PATIENCE, PAUSE, TOPIC
from onceflow.verify.simulator.coverage import reach
from onceflow.verify.simulator.network import Network
from onceflow.verify.simulator.requests import AddPartitions, Produce, Request
from onceflow.verify.simulator.scheduler import Process, Scheduler, Wait, sleep, together

SLOW = 70
_GONE, _LOST, _SLOW = 1, 2, 3

Writing = Generator[Wait, Any, Any]


@dataclass(frozen=True, slots=True)
class Rules:
    """How tasks write; production's rules are the usual values, undefended variants have others."""

    retry_tasks: bool = False  # a retried task writes, instead of failing the attempt
    continue_sequences: bool = False  # sequences go on where the last batch ended: epochs are not fresh


class Writer:
    """Writes one driver's batches."""

    def __init__(
        self, scheduler: Scheduler, network: Network, choices: Choices, version: int, partitions: int, rules: Rules
    ) -> None:
        self._scheduler = scheduler
        self._network = network
        self._choices = choices
        self._version = version
        self._partitions = partitions
        self._rules = rules
        self._sequences: dict[tuple[Identity, int], int] = {}

    def write(self, effect: Write, values: range) -> Generator[Wait, Any, Event]:
        """The event that the write ends with. ``values``: the batch's input records; record n goes to partition n mod P."""
        lanes = [tuple(v for v in values if v % self._partitions == p) for p in range(self._partitions)]
        tasks = [self._task(effect.identity, p, lane) for p, lane in enumerate(lanes)]
        results = yield together(tasks)
        for result in results:
            if not isinstance(result, int):
                failed: Event = result
                return failed
        return Written({(TOPIC, partition): count for partition, count in enumerate(results)})

    def _task(self, identity: Identity, partition: int, lane: tuple[int, ...]) -> Writing:
        """A task as Spark runs it: it may be lost (and live on), or be slow; a second attempt is another task."""
        fate = self._choices.pick("task", 4)
        chunks = [lane[i : i + 1] for i in range(len(lane))]
        if fate == _SLOW:
            yield sleep(SLOW)
        if fate not in (_GONE, _LOST):
            return (yield from self._produce(identity, partition, chunks))
        reach("task: it fails" if fate == _GONE else "task: it is thought lost and lives on")
        part = chunks if fate == _LOST else chunks[:1]
        Process(self._scheduler, self._produce(identity, partition, part))  # nobody waits for it any more
        if self._rules.retry_tasks:
            # What a shuffle brings comes in another order the second time.
            return (yield from self._produce(identity, partition, chunks[::-1]))
        yield sleep(1)
        return WriteFailed(terminal=False, reason="a task was lost")

    def _produce(self, identity: Identity, partition: int, chunks: list[tuple[int, ...]]) -> Writing:
        """The number of acknowledged records, or the event that ends the attempt."""
        if not chunks:
            return 0
        if self._version < 2:
            failed = yield from self._ask(AddPartitions(identity, partition))
            if failed is not None:
                return failed
        sequence = self._sequences.get((identity, partition), 0) if self._rules.continue_sequences else 0
        count = 0
        for chunk in chunks:
            failed = yield from self._ask(Produce(identity, partition, sequence, chunk))
            if failed is not None:
                return failed
            sequence += len(chunk)
            count += len(chunk)
            self._sequences[identity, partition] = sequence
        return count

    def _ask(self, request: Request) -> Generator[Wait, Any, Event | None]:
        """None once it is acknowledged. As ``BatchProducer``, the same bytes again while that may help."""
        deadline = self._scheduler.now + PATIENCE
        while True:
            answer = yield self._network.ask(request)
            if answer is not None and answer.code not in codes.RETRIABLE:
                return _failure(answer.code)
            if self._scheduler.now >= deadline:
                return WriteFailed(terminal=True, reason="no record was acknowledged in time")
            yield sleep(PAUSE)


def _failure(code: int) -> Event | None:
    if code == codes.NONE:
        return None
    if code in codes.REFUSED:
        return Refused(codes.name_of(code))
    return WriteFailed(terminal=code in codes.UNAUTHORISED, reason=codes.name_of(code))
