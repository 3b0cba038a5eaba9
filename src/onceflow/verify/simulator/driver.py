"""A Spark driver in simulated time: plans batches from its checkpoint, offers them to the protocol, performs its effects.

It may be killed before every effect and before each note in the checkpoint, be stopped there for longer than a transaction
may last, or find its query ended by an error and start it again, in the same process or in another one.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from onceflow.transaction.coordinator import denied
from onceflow.transaction.messages import (
    Effect,
    End,
    Event,
    Halt,
    Identity,
    Offered,
    Ready,
    Start,
    Stop,
    Unreachable,
    Write,
)
from onceflow.transaction.progress import Batch
from onceflow.verify.simulator import coverage
from onceflow.verify.simulator.checkpoint import TornCheckpoint
from onceflow.verify.simulator.client import Client, Denied
from onceflow.verify.simulator.coverage import reach
from onceflow.verify.simulator.scheduler import Wait, sleep, stop
from onceflow.verify.simulator.writer import Writer

if TYPE_CHECKING:
    from onceflow.verify.simulator.world import World

STOPS = (40, 130, 600)
RESTART_PAUSE = 20
_KILLED, _INTERRUPTED = 1, 2


class Machine(Protocol):
    """The production ``Protocol``, a mutant of it or an undefended variant."""

    context: Any

    def handle(self, event: Event) -> Effect:
        """Moves on an event and returns the next effect."""
        ...


class Fate(Enum):
    """How a driver's process ended."""

    DONE = "all batches are committed"
    KILLED = "killed"
    FENCED = "another driver took over"
    CONFLICT = "checkpoint and progress disagree"
    TORN = "the checkpoint cannot be read"
    FAILED = "the query ended with an error"


class _Killed(Exception):
    pass


class Driver:
    """One process. ``order`` counts the drivers of a run."""

    def __init__(self, world: World, order: int, machine: Machine, client: Client, writer: Writer) -> None:
        self.order = order
        self._world = world
        self._machine = machine
        self._client = client
        self._writer = writer
        self.checkpoint = world.checkpoint
        self._commit_sent: Identity | None = None
        self._batch_end = 0

    def life(self) -> Generator[Wait, Any, Fate]:
        """From its start to its end."""
        try:
            while True:
                ended = yield from self._query()
                if not isinstance(ended, Halt):
                    return ended
                self._world.note(self.order, f"query ended: {ended.stop.name} {ended.reason}")
                if ended.stop in (Stop.FENCED, Stop.CONFLICT):
                    return self._final(ended)
                if self._world.choices.pick("driver", 2):
                    return Fate.FAILED
                reach("driver: the query starts again in the same process")
                yield sleep(RESTART_PAUSE)
        except _Killed:
            return Fate.KILLED

    def _final(self, ended: Halt) -> Fate:
        if ended.stop is Stop.CONFLICT:
            return Fate.CONFLICT
        for event in (Offered(Batch(0, "q", "", "")), Start()):
            again = self._hear(event)
            if not isinstance(again, Halt) or again.stop is not Stop.FENCED:
                self._world.anomaly(f"a stopped driver goes on: {again}")
        return Fate.FENCED

    def _query(self) -> Generator[Wait, Any, Fate | Halt]:
        """One streaming query: batch by batch from where the checkpoint is."""
        try:
            number = self.checkpoint.next_batch()
        except TornCheckpoint:
            return Fate.TORN
        start = self.checkpoint.end_of(number - 1)
        while start is not None:
            end = self._planned(number, start)
            if end == start:
                return Fate.DONE
            yield from self._moment()
            self.checkpoint.write_offsets(number, end)
            outcome = yield from self._commit(number, start, end)
            if isinstance(outcome, Halt):
                return outcome
            yield from self._moment()
            self.checkpoint.write_commit(number)
            number, start = number + 1, end
        return Fate.TORN

    def _planned(self, number: int, start: int) -> int:
        """Where batch ``number`` ends: as the checkpoint says, else as much as is there."""
        found = self.checkpoint.end_of(number)
        if found is not None and found >= 0:
            return found
        scenario = self._world.scenario
        size = scenario.batch_records - self._world.choices.pick("plan", scenario.batch_records)
        end = min(start + size, scenario.records)
        if end > start:
            self._world.planned(self.checkpoint.query_id, number, end)
        return end

    def _commit(self, number: int, start: int, end: int) -> Generator[Wait, Any, Ready | Halt]:
        """As ``TransactionCoordinator.commit``."""
        batch = Batch(number, self.checkpoint.query_id, str(start) if number else "", str(end))
        if self._machine.context.state.name in ("NEW", "BROKEN"):
            started = yield from self._run(Start(), range(0))
            if isinstance(started, Halt):
                return started
        if self._resumes_elsewhere(batch):
            return Halt(Stop.CONFLICT, "the new checkpoint does not start at the committed offsets")
        self._client.source = end
        return (yield from self._run(Offered(batch), range(start, end)))

    def _resumes_elsewhere(self, batch: Batch) -> bool:
        """As ``Driver._check_resumed``: the first batch of a resumed query starts where the committed one ended."""
        progress = self._machine.context.progress
        resumed = batch.id == 0 and progress is not None and progress.query_id not in ("", batch.query_id)
        return resumed and self.checkpoint.initial != self._world.broker.group.committed.source

    def _run(self, event: Event, values: range) -> Generator[Wait, Any, Ready | Halt]:
        """As ``TransactionCoordinator._run``."""
        while True:
            effect = self._hear(event)
            if isinstance(effect, Ready | Halt):
                return effect
            interrupted = yield from self._moment()
            if interrupted:
                event = Unreachable("interrupted")
            elif isinstance(effect, Write):
                event = yield from self._writer.write(effect, values)
            else:
                event = yield from self._client.perform(effect)
                if isinstance(event, Denied):
                    event = denied(self._machine.context.state, event.reason)

    def _hear(self, event: Event) -> Effect:
        state = self._machine.context.state.name
        coverage.reach_row(state, type(event).__name__)
        try:
            effect = self._machine.handle(event)
        except Exception as error:  # whatever breaks in a mutant is what we look for
            self._world.anomaly(f"the machine failed in {state} on {event}: {error!r}")
            raise _Killed from error
        self._world.note(self.order, f"{state} hears {event} and asks for {effect}")
        self._check_end(effect)
        return effect

    def _check_end(self, effect: Effect) -> None:
        if isinstance(effect, End):
            if effect.commit:
                self._commit_sent = effect.identity
            elif effect.identity == self._commit_sent:
                self._world.anomaly(f"an abort of {effect.identity} after its commit was sent")

    def _moment(self) -> Generator[Wait, Any, bool]:
        """Between two effects the process may be killed or stopped; or interrupted, which is the answer."""
        fate = self._world.choices.pick("driver", 3 + len(STOPS))
        if fate == _KILLED:
            reach("driver: killed")
            raise _Killed
        if fate == _INTERRUPTED:
            reach("driver: interrupted")
            return True
        if fate:
            reach("driver: stopped, and woken")
            self._world.note(self.order, f"stopped for {STOPS[fate - 3]}")
            yield stop(STOPS[fate - 3])
        return False
