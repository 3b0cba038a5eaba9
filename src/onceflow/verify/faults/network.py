"""Faults of the network between clients and brokers, by the wires (F9, F10): chosen requests and answers, and whole ways.

They need a cluster that was made with ``wire=True``, and clients that use its ``bootstrap_servers``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from onceflow.verify.wire import ActiveRule, Direction, Do, Rule, apis

if TYPE_CHECKING:
    from onceflow.verify.running.world import World

WIRE = "wire"
_PATIENCE_S = 60.0
_LASTS_S = (2.0, 6.0)
_MOST_LOST = 3
_LONGEST_DELAY_S = 1.0
_SHORTEST_DELAY_S = 0.05
_CUTS = 3
_MOST_KINDS = 3
_LOOK_AGAIN_S = 0.05
_MOMENT_S = 0.001  # of a rule that only tells that something came
_KEPT_OPEN_S = 4.0  # less than any client waits for an answer
_END = frozenset({apis.END_TXN})
_KINDS = apis.KINDS
# One that has no output begins with its offsets.
_OPENING = frozenset({apis.ADD_PARTITIONS, apis.ADD_OFFSETS, apis.PRODUCE, apis.TXN_OFFSET_COMMIT})


@dataclass(frozen=True, slots=True)
class LoseEndTxnAnswer:
    """The coordinator has decided, and the client does not hear of it, up to three times in a row."""

    name: str = "lose-endtxn-answer"
    text: str = "the answer to EndTxn is lost with its connection, one to three times in a row"
    needs: tuple[str, ...] = (WIRE,)

    def inject(self, world: World, random: Random) -> None:
        count = random.randint(1, _MOST_LOST)
        rule = Rule(Do.CUT, frozenset({apis.END_TXN}), Direction.ANSWER, count=count)
        with world.kafka.rules.during(rule) as (active,):
            active.wait_applied(count, _PATIENCE_S)
        tell = world.note if active.applied else world.missed
        tell(f"{active.applied} of {count} answers to EndTxn were lost")


@dataclass(frozen=True, slots=True)
class LateEndTxn:
    """An EndTxn arrives after a later transaction has begun (KAFKA-17754).

    ::

        client   EndTxn of transaction 1: stays on the way, the connection breaks
        client   EndTxn of transaction 1 again: committed; begins transaction 2, writes
        broker   the first EndTxn arrives: it must not end transaction 2

    Transaction 2 has to be open then, and one without output is through in milliseconds: its EndTxn waits until the late one is
    answered.
    """

    name: str = "late-endtxn"
    text: str = "an EndTxn that was sent again arrives after the next transaction has begun"
    needs: tuple[str, ...] = (WIRE,)

    def inject(self, world: World, random: Random) -> None:
        first = random.randint(0, 2)
        arrived, ended = threading.Event(), threading.Event()

        def keep_open() -> None:
            if not arrived.wait(_KEPT_OPEN_S):
                ended.set()

        next_one = _NextTransaction(world)
        late = Rule(Do.HOLD, _END, first=first, count=1, then=next_one.look)
        next_end = Rule(Do.DELAY, _END, first=first + 1, count=1, delay_s=_MOMENT_S, then=keep_open)
        with next_one, world.kafka.rules.during(late, next_end) as (held, _):
            missed = next_one.lacks() or self._arrives(world, held)
            arrived.set()
        if ended.is_set():
            missed = missed or "the next transaction ended before the late EndTxn had arrived"
        tell = world.missed if missed else world.note
        tell(missed or "the late EndTxn arrived while the next transaction was open")

    @staticmethod
    def _arrives(world: World, held: ActiveRule) -> str:
        """Lets it go, and waits until it is answered. Why it did not come to that, else."""
        with world.kafka.rules.during(Rule(Do.DELAY, _END, Direction.ANSWER, count=1, delay_s=_MOMENT_S)) as (
            answered,
        ):
            held.release()
            return "" if answered.wait_applied(1, _PATIENCE_S) else "the late EndTxn was not answered"


class _NextTransaction:
    """Looks for what comes behind an EndTxn that is held, from the very moment at which it is.

    ::

        the EndTxn is held, and its connection breaks; the client asks again 5 ms later, is answered, begins the next transaction
        whoever waits for the EndTxn to be held wakes, and looks for a beginning: it is past
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._held = threading.Event()
        self._ends = 0
        self._opening: ActiveRule | None = None
        self._over = False
        self._changes = threading.Lock()

    def look(self) -> None:
        """From now on. Runs on the wire's thread, before the client can know."""
        self._ends = _ends_seen(self._world)
        with self._changes:
            if not self._over:
                opening = Rule(Do.DELAY, _OPENING, Direction.ANSWER, count=1, delay_s=_MOMENT_S)
                self._opening = self._world.kafka.rules.add(opening)
        self._held.set()

    def lacks(self) -> str:
        """Waits until it has begun; what did not come to that, else."""
        if not self._held.wait(_PATIENCE_S) or self._opening is None:
            return "no EndTxn came"
        deadline = time.monotonic() + _PATIENCE_S
        while _ends_seen(self._world) == self._ends:
            if time.monotonic() > deadline:
                return "the EndTxn that was held was not sent again"
            self._world.sleep(_LOOK_AGAIN_S)
        if not self._opening.wait_applied(1, _PATIENCE_S):
            return "no transaction was begun before the late EndTxn arrived"
        return ""

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None:
        with self._changes:
            self._over = True
        if self._opening is not None:
            self._world.kafka.rules.remove(self._opening)


def _ends_seen(world: World) -> int:
    return sum(wire.seen[apis.END_TXN] for wire in world.kafka.wires)


def _drawn(random: Random, kinds: Mapping[str, frozenset[int]]) -> tuple[str, frozenset[int]]:
    """One to three kinds of requests; some are rare, as those of a start, and one alone might never come."""
    drawn = random.sample(sorted(kinds), min(random.randint(1, _MOST_KINDS), len(kinds)))
    return " and ".join(drawn), frozenset().union(*(kinds[kind] for kind in drawn))


def _disturbed(
    world: World, random: Random, kinds: Mapping[str, frozenset[int]], rule: Callable[[frozenset[int]], Rule]
) -> tuple[str, ActiveRule]:
    """A rule for some kinds, for seconds; where none of them came, for others, and then for all of them."""
    left = dict(kinds)
    for last in (False, False, True):
        named, keys = _all_of(kinds) if last or not left else _drawn(random, left)
        left = {kind: each for kind, each in left.items() if not each <= keys}
        with world.kafka.rules.during(rule(keys)) as (active,):
            world.sleep(random.uniform(*_LASTS_S))
        if active.applied:
            break
    return named, active


def _all_of(kinds: Mapping[str, frozenset[int]]) -> tuple[str, frozenset[int]]:
    return "requests of any kind", frozenset().union(*kinds.values())


@dataclass(frozen=True, slots=True)
class DelayRequests:
    """Requests or answers of some kinds come late, every second one, for seconds."""

    name: str = "delay-requests"
    text: str = "requests or answers of some kinds are delayed by up to a second"
    needs: tuple[str, ...] = (WIRE,)
    kinds: Mapping[str, frozenset[int]] = field(default_factory=lambda: _KINDS)

    def inject(self, world: World, random: Random) -> None:
        direction = random.choice(list(Direction))
        delay_s = random.uniform(_SHORTEST_DELAY_S, _LONGEST_DELAY_S)
        late = partial(Rule, Do.DELAY, direction=direction, probability=0.5, delay_s=delay_s)
        named, active = _disturbed(world, random, self.kinds, late)
        tell = world.note if active.applied else world.missed
        tell(f"{active.applied} of {active.seen} {named} ({direction}) came {delay_s:.2f} s late")


@dataclass(frozen=True, slots=True)
class DuplicateRequests:
    """Requests of some kinds arrive twice, every second one: what a broker does not recognise as the same it does twice."""

    name: str = "duplicate-requests"
    text: str = "requests of some kinds arrive twice"
    needs: tuple[str, ...] = (WIRE,)
    kinds: Mapping[str, frozenset[int]] = field(default_factory=lambda: _KINDS)

    def inject(self, world: World, random: Random) -> None:
        named, active = _disturbed(world, random, self.kinds, partial(Rule, Do.DUPLICATE, probability=0.5))
        tell = world.note if active.applied else world.missed
        tell(f"{active.applied} of {active.seen} {named} arrived twice")


@dataclass(frozen=True, slots=True)
class CutConnections:
    """Connections end: three times all that there are, and between that at each request or answer of some kinds, one in four."""

    name: str = "cut-connections"
    text: str = "connections are closed or torn, all at once or at requests or answers of some kinds"
    needs: tuple[str, ...] = (WIRE,)
    kinds: Mapping[str, frozenset[int]] = field(default_factory=lambda: _KINDS)

    def inject(self, world: World, random: Random) -> None:
        named, keys = _drawn(random, self.kinds)
        direction = random.choice(list(Direction))
        rule = Rule(random.choice((Do.CUT, Do.RESET)), keys, direction, probability=0.25)
        cut = 0
        with world.kafka.rules.during(rule) as (active,):
            for _ in range(_CUTS):
                world.sleep(random.uniform(*_LASTS_S) / _CUTS)
                cut += sum(wire.cut(reset=rule.do is Do.RESET) for wire in world.kafka.wires)
        tell = world.note if cut or active.applied else world.missed
        tell(f"{cut} connections were cut, {active.applied} more at {named} ({direction})")


@dataclass(frozen=True, slots=True)
class OneWayCut:
    """From or to one broker nothing arrives any more, on connections old and new, and no connection ends (F10)."""

    name: str = "one-way-cut"
    text: str = "one broker hears its clients and they do not hear it, or the other way round"
    needs: tuple[str, ...] = (WIRE,)

    def inject(self, world: World, random: Random) -> None:
        node = random.choice(world.kafka.nodes)
        direction = random.choice(list(Direction))
        with world.kafka.rules.during(Rule(Do.DROP, None, direction, nodes=frozenset({node.id}))) as (active,):
            world.sleep(random.uniform(*_LASTS_S))
        tell = world.note if active.applied else world.missed
        tell(f"{active.applied} connections of node {node.id} lost every {direction}")


NETWORK_FAULTS = (
    LoseEndTxnAnswer(),
    LateEndTxn(),
    DelayRequests(),
    DuplicateRequests(),
    CutConnections(),
    OneWayCut(),
)
