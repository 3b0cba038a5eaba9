"""Every reachable state of two drivers, one small broker and a few faults: what the protocol never does, whatever happens.

The broker below is a model of what ``tests/faults`` sees the real one do: the coordinator's epochs, the last epoch that makes
a repeated InitProducerId a retry, the silent success for a sequence that it has already, offsets that are unstable while
their transaction is open. It is atomic per request; answers may be lost, requests may arrive late and again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import pytest

from onceflow.transaction.messages import (
    Audit,
    Audited,
    Coordinated,
    Describe,
    Described,
    Effect,
    End,
    Ended,
    Event,
    Halt,
    Identity,
    Initialise,
    Initialised,
    Offered,
    ProgressRead,
    ReadProgress,
    ReadSources,
    Ready,
    Refused,
    Renew,
    Snapshot,
    SourcesRead,
    Start,
    Stop,
    Store,
    Stored,
    Unreachable,
    Write,
    WriteFailed,
    Written,
)
from onceflow.transaction.progress import Batch, Progress
from onceflow.transaction.protocol import Context, Settings, State, step

BATCHES = (Batch(0, "q", "", "d0"), Batch(1, "q", "d0", "d1"))
PARTITIONS = (0, 1)
SILENT: frozenset[int] = frozenset()
"""Batches that give no output: only their progress and source offsets are committed."""
Record = tuple[int, int]  # batch id, partition


def output_of(batches: int) -> tuple[Record, ...]:
    """What the first so many batches give."""
    return tuple((b.id, partition) for b in BATCHES[:batches] if b.id not in SILENT for partition in PARTITIONS)


AGAIN = None
"""The answer CONCURRENT_TRANSACTIONS or UNSTABLE_OFFSET_COMMIT: the client repeats the request."""

RANDOM_WAYS = 1500
MOST_STEPS = 1000
FAULT_RATE = 0.12
MOST_REPEATED = 1  # InitProducerId aborts, and comes again: so often may another driver open a transaction in between


# --------------------------------------------------------------------------------------------------------------- broker


@dataclass(frozen=True, slots=True)
class Broker:
    version: int
    state: Coordinated = Coordinated.ABSENT
    pid: int = 0
    epoch: int = -1
    last: int = -1  # the epoch whose InitProducerId is taken for a retry
    sequences: frozenset[int] = frozenset()  # partitions that hold records of the current epoch
    open: tuple[Record, ...] = ()
    pending: Progress | None = None
    visible: tuple[Record, ...] = ()
    progress: Progress | None = None

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.epoch)

    def ask(self, effect: Effect, partition: int) -> tuple[Broker, Event | None]:
        """The broker after a request, and its answer. ``partition``: the one that a Write writes to."""
        match effect:
            case Describe():
                shown = None if self.state is Coordinated.ABSENT else self.identity
                return self, Described(Snapshot(self.state, shown))
            case Initialise(expected):
                return self._initialise(expected)
            case ReadProgress():
                return self, AGAIN if self.pending else ProgressRead(self.progress)
            case ReadSources():
                return self, AGAIN if self.pending else SourcesRead(self.progress, ())
            case Write(identity, batch):
                return self._write(identity, (batch.id, partition))
            case Audit(identity, counts):
                mine = self.sequences if identity == self.identity else frozenset()
                return self, Audited({at: int(at[1] in mine) for at in counts})
            case Store(identity, progress):
                return self._store(identity, progress)
            case End(identity, commit):
                return self._end_v2(identity, commit) if self.version == 2 else self._end_v1(identity, commit)
        raise AssertionError(effect)

    def _initialise(self, expected: Identity | None) -> tuple[Broker, Event | None]:
        if self.state is Coordinated.ABSENT:
            if expected is not None:
                return self, Refused("unknown")
            fresh = self._bumped(0, last=-1)
        elif self.state is Coordinated.ONGOING:
            # In an open transaction only the producer id is compared, not the epoch (kafka-facts A.2).
            return self.aborted_by_the_coordinator(), AGAIN
        elif expected is None:
            fresh = self._bumped(self.epoch + 1, last=-1)
        elif expected.epoch == self.epoch:
            fresh = self._bumped(self.epoch + 1, last=self.epoch)
        elif expected.epoch == self.last:
            fresh = self
        else:
            return self, Refused("fenced")
        fresh = replace(fresh, state=Coordinated.EMPTY)
        return fresh, Initialised(fresh.identity)

    def _write(self, identity: Identity, record: Record) -> tuple[Broker, Event]:
        if identity != self.identity:
            return self, Refused("epoch")
        if record[1] in self.sequences:
            return self, Stored()  # taken for a resend: success, and the data is dropped (kafka-facts A.1)
        held = self.sequences | {record[1]}
        return replace(self, state=Coordinated.ONGOING, sequences=held, open=(*self.open, record)), Stored()

    def _store(self, identity: Identity, progress: Progress) -> tuple[Broker, Event]:
        if identity != self.identity:
            return self, Refused("epoch")
        return replace(self, state=Coordinated.ONGOING, pending=progress), Stored()

    def _end_v1(self, identity: Identity, commit: bool) -> tuple[Broker, Event]:
        if identity != self.identity:
            return self, Refused("fenced")
        if self.state is Coordinated.ONGOING:
            return self._completed(commit), Ended(None)
        if self.state is _ended(commit):
            return self, Ended(None)
        return self, Refused("state")

    def _end_v2(self, identity: Identity, commit: bool) -> tuple[Broker, Event]:
        if identity == self.identity and (self.state is Coordinated.ONGOING or not commit):
            done = self._completed(commit)
            done = done._bumped(done.epoch + 1, last=done.epoch)
            return done, Ended(done.identity)
        if identity.epoch == self.epoch - 1 and self.state is _ended(commit):
            return self, Ended(self.identity)
        return self, Refused("state")

    def _completed(self, commit: bool) -> Broker:
        visible = self.visible + self.open if commit else self.visible
        progress = self.pending if commit and self.pending else self.progress
        ended = replace(self, state=_ended(commit), open=(), pending=None)
        return replace(ended, visible=visible, progress=progress)

    def _bumped(self, epoch: int, last: int) -> Broker:
        return replace(self, epoch=epoch, last=last, sequences=frozenset())

    def aborted_by_the_coordinator(self) -> Broker:
        """A timeout, or InitProducerId on an open transaction."""
        last = self.epoch if self.version == 2 else -1
        return self._completed(commit=False)._bumped(self.epoch + 1, last)


def _ended(commit: bool) -> Coordinated:
    return Coordinated.COMMITTED if commit else Coordinated.ABORTED


# ---------------------------------------------------------------------------------------------------------------- world


@dataclass(frozen=True, slots=True)
class Driver:
    order: int
    context: Context
    next_batch: int  # as its Spark sees it
    version: int  # of the cluster
    effect: Effect | None = None  # asked for and not answered
    partition: int = 0  # how far its write is
    repeated: int = 0  # how often the broker asked for the effect again
    commit_sent: Identity | None = None

    @property
    def settings(self) -> Settings:
        return Settings(f"driver-{self.order}", epoch_per_end=self.version == 2, max_attempts=3)

    @property
    def stopped(self) -> bool:
        return self.context.state is State.STOPPED


@dataclass(frozen=True, slots=True)
class World:
    broker: Broker
    drivers: tuple[Driver, ...]
    spark: int = 0  # batches in Spark's own commit log
    started: int = 1
    fenced_last: int = 0  # the driver whose start took the transactional id last: the newest
    faults: int = 0
    late: tuple[Effect, int] | None = None  # a copy of a request that the network still holds

    def with_driver(self, driver: Driver) -> World:
        others = tuple(driver if d.order == driver.order else d for d in self.drivers)
        return replace(self, drivers=others)


class HashableCounts(dict[tuple[str, int], int]):
    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def simplified(world: World) -> World:
    """The same world with smaller numbers: only the differences of epochs matter, and who stopped does nothing more."""
    world = replace(world, drivers=tuple(driver for driver in world.drivers if not driver.stopped))
    known = [d.context.identity.epoch for d in world.drivers if d.context.identity]
    known += [d.context.opened.epoch for d in world.drivers if d.context.opened]
    known += [d.commit_sent.epoch for d in world.drivers if d.commit_sent]
    known += [identity.epoch for effect in effects_of(world) for identity in identities_of(effect)]
    lowest = min([*known, world.broker.epoch])
    if lowest <= 0:
        return world
    last = world.broker.last - lowest if world.broker.last >= lowest else -1
    broker = replace(world.broker, epoch=world.broker.epoch - lowest, last=last)
    drivers = tuple(shifted_driver(driver, lowest) for driver in world.drivers)
    late = world.late and (shifted_effect(world.late[0], lowest), world.late[1])
    return replace(world, broker=broker, drivers=drivers, late=late)


def effects_of(world: World) -> list[Effect]:
    return [d.effect for d in world.drivers if d.effect is not None] + ([world.late[0]] if world.late else [])


def identities_of(effect: Effect) -> list[Identity]:
    identity = effect.expected if isinstance(effect, Initialise) else getattr(effect, "identity", None)
    return [identity] if identity else []


def shifted_driver(driver: Driver, by: int) -> Driver:
    """Under which other identity a commit was sent is of no matter any more: identities never go back here."""
    identity, opened, committing = driver.context.identity, driver.context.opened, driver.context.committing
    context = replace(driver.context, identity=shifted(identity, by), opened=shifted(opened, by))
    context = replace(context, committing=context.identity if committing == identity else None)
    effect = driver.effect and shifted_effect(driver.effect, by)
    return replace(driver, context=context, effect=effect, commit_sent=shifted(driver.commit_sent, by))


def shifted_effect(effect: Effect, by: int) -> Effect:
    if isinstance(effect, Initialise):
        return replace(effect, expected=shifted(effect.expected, by))
    if isinstance(effect, Write | Audit | Store | End):
        return replace(effect, identity=Identity(effect.identity.producer_id, effect.identity.epoch - by))
    return effect


def shifted(identity: Identity | None, by: int) -> Identity | None:
    return identity and Identity(identity.producer_id, identity.epoch - by)


class Broken(AssertionError):
    """A property does not hold."""


def begin(order: int, spark: int, version: int) -> Driver:
    return fed(Driver(order, Context(), spark, version), Start())[0]


def fed(driver: Driver, event: Event) -> tuple[Driver, Halt | Ready | None]:
    """The driver after an event; a Halt or Ready leaves it idle."""
    context, effect = step(driver.settings, driver.context, event)
    context = replace(context, failure="failed" if context.failure else "", note="")
    moved = replace(driver, context=context, partition=0, repeated=0, effect=None)
    if isinstance(effect, Halt | Ready):
        return moved, effect
    if isinstance(effect, Audit):
        effect = replace(effect, counts=HashableCounts(effect.counts))
    check_no_abort_after_commit(moved, effect)
    if isinstance(effect, End) and effect.commit:
        moved = replace(moved, commit_sent=effect.identity)
    elif context.identity != moved.commit_sent:
        moved = replace(moved, commit_sent=None)  # no effect can name it any more
    return replace(moved, effect=effect), None


def check_no_abort_after_commit(driver: Driver, effect: Effect) -> None:
    if isinstance(effect, End) and not effect.commit and effect.identity == driver.commit_sent:
        raise Broken(f"an abort of {effect.identity} after its commit was sent")


def advance(world: World, driver: Driver, event: Event) -> World:
    """The world once ``driver`` hears ``event``."""
    moved, outcome = fed(driver, event)
    if isinstance(outcome, Ready) and outcome.batch is not None:
        moved = replace(moved, next_batch=driver.next_batch + 1)
        world = replace(world, spark=max(world.spark, moved.next_batch))
    if isinstance(outcome, Halt):
        check_halt(world, driver, outcome)
    return world.with_driver(moved)


def check_halt(world: World, driver: Driver, halt: Halt) -> None:
    if halt.stop is Stop.CONFLICT:
        raise Broken("one checkpoint, and yet a conflict")
    if halt.stop is Stop.FENCED and driver.order == world.fenced_last:
        raise Broken(f"the newest driver stopped for good: {halt.reason}")
    is_open = world.broker.state is Coordinated.ONGOING and world.broker.identity == driver.context.identity
    if halt.stop in (Stop.REJECTED, Stop.EXHAUSTED) and is_open:
        raise Broken(f"readers wait for a transaction that is not going to end: {halt.reason}")


def check(world: World) -> None:
    visible, committed = world.broker.visible, committed_in(world)
    if visible != output_of(committed):
        raise Broken(f"lost, repeated, torn or out of order: progress says {committed} batches, visible is {visible}")
    if world.spark > committed:
        raise Broken(f"Spark believes {world.spark} batches are written, committed are {committed}")


def committed_in(world: World) -> int:
    return world.broker.progress.next_batch if world.broker.progress else 0


def asked(world: World, driver: Driver) -> tuple[World, Event | None]:
    assert driver.effect is not None
    if is_silent(driver.effect):
        return world, Written({})
    broker, event = world.broker.ask(driver.effect, driver.partition)
    world = replace(world, broker=broker)
    if driver.effect == Initialise(expected=None) and isinstance(event, Initialised):
        world = replace(world, fenced_last=driver.order)
    return world, event


def is_silent(effect: Effect) -> bool:
    """Whether it asks the broker for nothing."""
    return isinstance(effect, Write) and effect.batch.id in SILENT


def answered(world: World, driver: Driver) -> World:
    """One request sent, and its answer heard."""
    world, event = asked(world, driver)
    if event is AGAIN and isinstance(driver.effect, Initialise):
        world = world.with_driver(replace(driver, repeated=driver.repeated + 1))
        return world if driver.repeated < MOST_REPEATED else answered(world, driver)
    if event is AGAIN:
        return world
    if isinstance(driver.effect, Write) and isinstance(event, Stored):
        if driver.partition + 1 < len(PARTITIONS):
            return world.with_driver(replace(driver, partition=driver.partition + 1))
        event = Written({("out", partition): 1 for partition in PARTITIONS})
    return advance(world, driver, event)


def offered(world: World, driver: Driver) -> World | None:
    if driver.context.state is State.BROKEN:
        return advance(world, driver, Start())
    if driver.next_batch == len(BATCHES) or driver.stopped:
        return None
    return advance(world, driver, Offered(BATCHES[driver.next_batch]))


def usual(world: World) -> Iterator[World]:
    """What happens without faults: some driver's next request, or its next batch."""
    for driver in world.drivers:
        following = answered(world, driver) if driver.effect is not None else offered(world, driver)
        if following is not None and following != world:
            yield following


# --------------------------------------------------------------------------------------------------------------- faults


def faults(world: World) -> Iterator[World]:
    if world.faults == 0:
        return
    world = replace(world, faults=world.faults - 1)
    if world.broker.state is Coordinated.ONGOING:
        yield replace(world, broker=world.broker.aborted_by_the_coordinator())
    if len(world.drivers) < 2:
        yield started_beside(world)
    for driver in world.drivers:
        if not driver.stopped:
            yield started_beside(replace(world, drivers=tuple(d for d in world.drivers if d is not driver)))
        if driver.effect is not None:
            yield from broken_requests(world, driver)
        elif driver.context.state is State.READY:
            yield advance(world, driver, Renew())  # no fault, but it may come at any time


def started_beside(world: World) -> World:
    fresh = begin(world.started + 1, world.spark, world.broker.version)
    return replace(world, drivers=(*world.drivers, fresh), started=fresh.order)


def broken_requests(world: World, driver: Driver) -> Iterator[World]:
    effect = driver.effect
    assert effect is not None
    arrived, _ = asked(world, driver)
    yield arrived  # the answer is lost, the client repeats the request
    yield advance(arrived, driver, Unreachable("gave up"))
    yield advance(world, driver, Unreachable("gave up"))
    if isinstance(effect, Write):
        yield advance(world, driver, WriteFailed(terminal=False, reason="a task was lost"))
        yield advance(arrived, driver, WriteFailed(terminal=False, reason="a task was lost"))
    if isinstance(effect, Audit) or (isinstance(effect, Store) and effect.batch is not None):
        yield advance(world, driver, WriteFailed(terminal=True, reason="an ACL is missing"))
        yield advance(arrived, driver, WriteFailed(terminal=True, reason="an ACL is missing"))
    plain_fence = isinstance(effect, Initialise) and effect.expected is None  # late, it may fence whoever is there
    may_be_late = isinstance(effect, Initialise | Write | Store | End) and not is_silent(effect)
    if world.late is None and not plain_fence and may_be_late:
        yield replace(world, late=(effect, driver.partition))


def late_arrival(world: World) -> Iterator[World]:
    if world.late is not None:
        effect, partition = world.late
        yield replace(world, broker=world.broker.ask(effect, partition)[0], late=None)


# -------------------------------------------------------------------------------------------------------------- explore

Graph = dict[World, list[World]]


def explore(version: int, budget: int, *, beside: bool = False) -> Graph:
    """All worlds that can be reached, and what may follow each without another fault. ``beside``: with two drivers at once."""
    first = World(Broker(version), (begin(1, 0, version),), faults=budget)
    first = started_beside(first) if beside else first
    graph: Graph = {}
    queue = deque([first])
    came_from: dict[World, World | None] = {first: None}
    while queue:
        world = queue.popleft()
        try:
            check(world)
            graph[world] = [simplified(each) for each in usual(world)]
            following = [*graph[world], *map(simplified, faults(world)), *map(simplified, late_arrival(world))]
        except Broken as broken:
            raise Broken(f"{broken}\n{story(world, came_from)}") from None
        for each in following:
            if each not in came_from:
                came_from[each] = world
                queue.append(each)
    return graph


def story(world: World | None, came_from: dict[World, World | None]) -> str:
    """The shortest way to a world, a line for each step."""
    lines: list[str] = []
    while world is not None:
        lines.append(line(world))
        world = came_from.get(world)
    return "\n".join(reversed(lines))


def line(world: World) -> str:
    broker = world.broker
    drivers = "; ".join(f"{d.order} {d.context.state.name} {d.effect}" for d in world.drivers)
    return f"{broker.state.name}@{broker.epoch} last {broker.last} open {broker.open} late {world.late} | {drivers}"


def check_ends(graph: Graph) -> None:
    """Where no driver can move, all is written, unless somebody waits for a transaction to time out."""
    for world, following in graph.items():
        if not following and world.broker.state is not Coordinated.ONGOING:
            if committed_in(world) != len(BATCHES):
                raise Broken(f"nobody goes on: {world}")
            if not any(driver.next_batch == len(BATCHES) for driver in world.drivers):
                raise Broken(f"no driver knows that it is done: {world}")


def check_no_livelock(graph: Graph) -> None:
    """Without faults no sequence of steps comes back to where it was."""
    unfinished, done = 1, 2
    color: dict[World, int] = {}
    for root in graph:
        stack = [(root, iter(graph[root]))] if root not in color else []
        color.setdefault(root, unfinished)
        while stack:
            world, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                color[world] = done
                stack.pop()
            elif color.get(following) == unfinished:
                raise Broken(f"an endless loop through {following}")
            elif following not in color:
                color[following] = unfinished
                stack.append((following, iter(graph[following])))


def wander(version: int, budget: int, seed: int) -> None:
    """One random way with many faults, to its end."""
    random = Random(seed)
    world = World(Broker(version), (begin(1, 0, version),), faults=budget)
    for _ in range(MOST_STEPS):
        ways = [*usual(world), *late_arrival(world)]
        ways = list(faults(world)) or ways if random.random() < FAULT_RATE else ways
        if not ways:
            break
        world = simplified(random.choice(ways))
        check(world)
    else:
        raise Broken(f"no end after {MOST_STEPS} steps: {line(world)}")


@pytest.mark.parametrize("version", [1, 2])
def test_every_batch_exactly_once_whatever_one_fault_does(version: int) -> None:
    graph = explore(version, 1)
    check_ends(graph)
    check_no_livelock(graph)
    assert any(world.broker.visible == output_of(len(BATCHES)) for world in graph)


@pytest.mark.parametrize("faults", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("version", [1, 2])
def test_every_batch_exactly_once_by_two_drivers_from_the_beginning(version: int, faults: int) -> None:
    """To start the second one costs no fault here: it is there from the beginning, and may sleep until any moment."""
    graph = explore(version, faults, beside=True)
    check_ends(graph)
    check_no_livelock(graph)
    assert any(world.broker.visible == output_of(len(BATCHES)) for world in graph)


SOME = ({0}, {1}, {0, 1})


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("silent", SOME, ids=str)
def test_batches_without_output_whatever_one_fault_does(
    version: int, silent: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is produced under their epochs, and nothing audited; the next batch may need a fresh one all the same."""
    monkeypatch.setitem(globals(), "SILENT", frozenset(silent))
    test_every_batch_exactly_once_whatever_one_fault_does(version)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("silent", SOME, ids=str)
def test_batches_without_output_on_random_ways_with_many_faults(
    version: int, silent: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SILENT", frozenset(silent))
    for seed in range(RANDOM_WAYS // 3):
        wander(version, 6, seed)


@pytest.mark.long
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("silent", [set(), {0}], ids=str)
def test_a_batch_exactly_once_whatever_two_faults_do(
    version: int, silent: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "BATCHES", BATCHES[:1])
    monkeypatch.setitem(globals(), "SILENT", frozenset(silent))
    graph = explore(version, 2)
    check_ends(graph)
    check_no_livelock(graph)


@pytest.mark.parametrize("version", [1, 2])
def test_every_batch_exactly_once_on_random_ways_with_many_faults(version: int) -> None:
    for seed in range(RANDOM_WAYS):
        wander(version, 6, seed)
