"""A Spark driver in simulated time: plans batches from its checkpoint, offers them to the protocol, performs its effects.

It may be killed before every effect, before each note in the checkpoint and while tasks write, be stopped there for longer than
a transaction may last, or find its query ended by an error and start it again, in the same process or in another one.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from onceflow.errors import BrokerUnreachable, OnceflowError, ProgressConflict, TopicMissing
from onceflow.transaction.coordinator import RENEWALS, must_start, unanswered
from onceflow.transaction.going_on import check_beginning, must_begin_at_offsets
from onceflow.transaction.messages import (
    Effect,
    End,
    Event,
    Halt,
    Identity,
    Initialise,
    Offered,
    Ready,
    Renew,
    Start,
    Stop,
    Unreachable,
    Write,
)
from onceflow.transaction.progress import Batch, OnMismatch, Progress
from onceflow.transaction.protocol import State
from onceflow.transaction.questions import ANCHOR_TOPIC, Committed
from onceflow.transaction.source_mark import mark_of, with_topics
from onceflow.verify.simulator import coverage
from onceflow.verify.simulator.anomalies import Anomaly
from onceflow.verify.simulator.checkpoint import TornCheckpoint
from onceflow.verify.simulator.client import Client
from onceflow.verify.simulator.coverage import reach
from onceflow.verify.simulator.scheduler import Wait, sleep, stop
from onceflow.verify.simulator.wire import offsets_at
from onceflow.verify.simulator.writer import Writer

if TYPE_CHECKING:
    from onceflow.verify.simulator.world import World

STOPS = (40, 130, 600)
RESTART_PAUSE = 20
_KILLED, _INTERRUPTED = 1, 2
_FATES = 3 + len(STOPS)
_TOPICS = "the topics"
"""What stands for the ids of the source's topics: nobody makes one anew."""


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


class _Interrupted(Exception):
    """Between two effects, or in the middle of a write by the driver."""


class Driver:
    """One process. ``order`` counts the drivers of a run; ``planned``: when it started it was known that there is progress."""

    def __init__(
        self, world: World, order: int, machine: Machine, client: Client, writer: Writer, *, planned: bool
    ) -> None:
        self.order = order
        self._planned = planned
        self._world = world
        self._machine = machine
        self._client = client
        self._writer = writer
        self.checkpoint = world.checkpoint
        self._commit_sent: Identity | None = None
        self._starts = False  # whatever the machine's state
        self._topic_missing = False  # that of the progress: another process makes it anew
        self._to_be_compared = False  # whether the query begins where the committed output ended
        self._mode = world.allowed

    @property
    def resumes(self) -> bool:
        """Whether somebody has asked to go on from the committed offsets."""
        return self._mode is OnMismatch.RESUME

    @property
    def _takes_all(self) -> bool:
        return self._mode is OnMismatch.RESTART

    def life(self) -> Generator[Wait, Any, Fate]:
        """From its start to its end."""
        try:
            while True:
                ended = yield from self._uninterrupted()
                if not isinstance(ended, Halt):
                    return ended
                self._world.note(self.order, "query ended: {} {}", ended.stop.name, ended.reason)
                if ended.stop in (Stop.FENCED, Stop.CONFLICT, Stop.GONE):
                    return self._final(ended)
                if self._world.choices.pick("driver", 2) or self._topic_missing:
                    return Fate.FAILED
                reach("driver: the query starts again in the same process")
                self._starts = self._world.scenario.restarts
                yield sleep(RESTART_PAUSE)
        except _Killed:
            return Fate.KILLED

    def _uninterrupted(self) -> Generator[Wait, Any, Fate | Halt]:
        try:
            return (yield from self._query())
        except _Interrupted:
            return Halt(Stop.UNREACHABLE, "interrupted beside the commit")

    def _final(self, ended: Halt) -> Fate:
        if ended.stop is Stop.GONE:
            reach("driver: the progress is gone")
        if ended.stop is not Stop.FENCED:
            return Fate.CONFLICT
        for event in (Offered(Batch(0, "q", "", "")), Start(), Renew()):
            again = self._hear(event)
            if not isinstance(again, Halt) or again.stop is not Stop.FENCED:
                self._world.anomaly(Anomaly.WENT_ON, again)
        return Fate.FENCED

    def _query(self) -> Generator[Wait, Any, Fate | Halt]:
        """One streaming query: batch by batch from where the checkpoint is."""
        self._to_be_compared = self.resumes or (not self._takes_all and self._world.compares_new_names)
        if self._world.scenario.claims_first:
            started = yield from self._start()
            if isinstance(started, Halt):
                return started
        try:
            number = self.checkpoint.next_batch()
        except TornCheckpoint:
            return Fate.TORN
        start = self.checkpoint.end_of(number - 1)
        while start is not None:
            yield from self._rest()
            end = self._plan(number, start)
            if end == start and self.checkpoint.end_of(number) is None and self._world.is_through(start):
                return Fate.DONE
            yield from self.moment()
            self.checkpoint.write_offsets(number, end)
            outcome = yield from self._commit(number, start, end)
            if isinstance(outcome, Halt):
                return outcome
            yield from self.moment()
            self.checkpoint.write_commit(number)
            number, start = number + 1, end
        return Fate.TORN

    def _start(self) -> Generator[Wait, Any, Ready | Halt]:
        """As ``TransactionCoordinator.ensure_started``."""
        if not self._starts and not must_start(self._machine.context.state):
            return Ready()
        self._starts = False
        return (yield from self._run(Start(), range(0)))

    def _rest(self) -> Generator[Wait, Any, None]:
        """As ``Renewal``, before the next batch: what goes wrong is for that one to find."""
        if self._world.choices.pick("rest", 2) and self._machine.context.claimed:
            reach("driver: rests, and renews what is committed")
            started = yield from self._start()
            if not isinstance(started, Halt):
                yield from self._renew()

    def _renew(self) -> Generator[Wait, Any, None]:
        """As ``TransactionCoordinator.renew``."""
        for attempt in range(RENEWALS):
            if attempt:
                reach("driver: renews again, for nothing came of it")
            ended = yield from self._run(Renew(), range(0))
            if isinstance(ended, Halt) or ended.committed:
                return

    def _plan(self, number: int, start: int) -> int:
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
        """As ``Delivery`` and ``TransactionCoordinator.commit``."""
        mark = with_topics(mark_of(offsets_at(end), agree=not self._world.scenario.readings_differ), _TOPICS)
        batch = Batch(number, self.checkpoint.query_id, str(start) if number else "", str(end), mark)
        started = yield from self._start()
        if isinstance(started, Halt):
            return started
        refused = yield from self._check_beginning(batch)
        if refused is not None:
            return refused
        if self._takes_all or (number == 0 and self._world.may_begin_anew(planned=self._planned)):
            self._world.taken_as_it_is(self.order, batch, start, self._progress())
        self._world.offered(batch)
        self._client.source = end
        return (yield from self._run(Offered(batch), range(start, end)))

    def _check_beginning(self, batch: Batch) -> Generator[Wait, Any, Halt | None]:
        """As ``Driver._check_beginning``, once for each query that has to go on."""
        if not self._to_be_compared or not must_begin_at_offsets(self._mode, batch.id, self._progress):
            return None
        try:
            found = yield from self._committed()
        except OnceflowError as error:
            return Halt(Stop.UNREACHABLE, error.message)
        if isinstance(found, Halt):
            return found
        try:
            check_beginning("simulated", self._mode, batch.query_id, found, lambda: offsets_at(self.checkpoint.initial))
        except ProgressConflict as error:
            reach("driver: the query does not go on from the committed offsets")
            return Halt(Stop.CONFLICT, error.message)
        if found.progress is None or found.progress.query_id != batch.query_id:
            self._world.resumed(found)
        self._to_be_compared = False
        return None

    def _committed(self) -> Generator[Wait, Any, Committed | Halt]:
        """What is committed with the progress that was claimed. Where that is another's by now, a start finds it out."""
        claimed = self._progress()
        found = yield from self._client.read_committed()
        if found.progress == claimed or not self._world.compares_beginnings:
            return found
        reach("driver: is told of other progress than it has claimed")
        yield from self._client.forget_group()
        started = yield from self._run(Start(), range(0))
        return started if isinstance(started, Halt) else (yield from self._client.read_claimed(self._progress()))

    def _progress(self) -> Progress | None:
        known: Progress | None = self._machine.context.progress
        return known

    def _run(self, event: Event, values: range) -> Generator[Wait, Any, Ready | Halt]:
        """As ``TransactionCoordinator._run``."""
        while True:
            effect = self._hear(event)
            if isinstance(effect, Ready | Halt):
                return effect
            try:
                yield from self.moment()
                event = yield from self._perform(effect, values)
            except _Interrupted:
                event = Unreachable("interrupted")

    def _perform(self, effect: Effect, values: range) -> Generator[Wait, Any, Event]:
        """As ``TransactionCoordinator._perform``."""
        if isinstance(effect, Write):
            return (yield from self._writer.write(effect, values, self))
        try:
            return (yield from self._client.perform(effect))
        except OnceflowError as error:
            if isinstance(error, BrokerUnreachable):
                reach("client: patience ends")
            if isinstance(error, TopicMissing) and ANCHOR_TOPIC in error.fields["topics"]:
                reach("client: the topic of the progress is missing")
                self._topic_missing = True
            return unanswered(self._machine.context.state, error)

    def _hear(self, event: Event) -> Effect:
        state = self._machine.context.state.name
        coverage.reach_row(state, type(event).__name__)
        try:
            effect = self._machine.handle(event)
        except Exception as error:  # whatever breaks in a mutant is what we look for
            self._world.anomaly(Anomaly.MACHINE_FAILED, state, event, error)
            raise _Killed from error
        self._world.note(self.order, "{} hears {} and asks for {}", state, event, effect)
        if isinstance(effect, Initialise):
            is_start = self._machine.context.state is not State.RETAKE
            self._world.broker.standing.asks(self.order, blind=effect.expected is None and not is_start)
        self._check_end(effect)
        return effect

    def _check_end(self, effect: Effect) -> None:
        if isinstance(effect, End):
            if effect.commit:
                self._commit_sent = effect.identity
            elif effect.identity == self._commit_sent:
                self._world.anomaly(Anomaly.ABORTED_COMMIT, effect.identity)

    def moment(self) -> Generator[Wait, Any, None]:
        """Before each effect, and each produce request of its own, the process may be killed, stopped or interrupted."""
        yield from self.meet(self._world.choices.pick("driver", _FATES))

    def fate_beside(self) -> int:
        """The same, while it waits for tasks that write."""
        fate = self._world.choices.pick("beside", _FATES)
        if fate == _KILLED:
            reach("driver: killed while tasks write")
        elif fate == _INTERRUPTED:
            reach("driver: interrupted while tasks write")
        elif fate:
            reach("driver: stopped while tasks write")
        return fate

    def meet(self, fate: int) -> Generator[Wait, Any, None]:
        """Lets it happen. Raises what ends the process or the query."""
        if fate == _KILLED:
            reach("driver: killed")
            raise _Killed
        if fate == _INTERRUPTED:
            reach("driver: interrupted")
            raise _Interrupted
        if fate:
            reach("driver: stopped, and woken")
            self._world.note(self.order, "stopped for {}", STOPS[fate - 3])
            yield stop(STOPS[fate - 3])
