"""Faults of the network between clients and brokers, by the wires (F9, F10): chosen requests and answers, and whole ways.

What comes late is in ``late.py``. All of them need a cluster that was made with ``wire=True``, and clients that use its
``bootstrap_servers``.
"""

from __future__ import annotations

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
_KINDS = {**apis.KINDS, **apis.READS}


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
    DelayRequests(),
    DuplicateRequests(),
    CutConnections(),
    OneWayCut(),
)
