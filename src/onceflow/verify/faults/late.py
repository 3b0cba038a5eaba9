"""A request that was sent again arrives when the next transaction is open: it must have no part in that (F9).

::

    client   a request of transaction 1 stays on the way, and the connection breaks
    client   the same request again: answered; transaction 1 ends, transaction 2 begins and writes
    broker   the first request arrives

Transaction 2 is certainly open when its EndTxn is on the way, for that comes when all that it wrote is answered; so this EndTxn
waits until the late request is answered. What defends is an epoch for each transaction: under one epoch for many a late EndTxn
ends transaction 2 (KAFKA-17754), and late offsets take those of transaction 2 back. Records have sequence numbers besides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Self

from onceflow.verify.faults.network import WIRE
from onceflow.verify.wire import ActiveRule, Direction, Do, Rule, apis

if TYPE_CHECKING:
    from onceflow.verify.running.world import World

_PATIENCE_S = 60.0
_LOOK_AGAIN_S = 0.05
_KEPT_OPEN_S = 4.0  # less than any client waits for an answer
_MOMENT_S = 0.001  # of a rule that only tells that something came
_MOST_BEFORE = 2
_WRITES = {"Produce": apis.PRODUCE, "TxnOffsetCommit": apis.TXN_OFFSET_COMMIT}
_ANY_WRITE = frozenset(_WRITES.values())
_END = frozenset({apis.END_TXN})
_INIT = frozenset({apis.INIT_PRODUCER_ID})
_TOO_LATE = "the next transaction ended before it was answered"


@dataclass(frozen=True, slots=True)
class LateEndTxn:
    """An EndTxn that was sent again arrives after the next transaction has begun (KAFKA-17754)."""

    name: str = "late-endtxn"
    text: str = "an EndTxn that was sent again arrives after the next transaction has begun"
    needs: tuple[str, ...] = (WIRE,)

    def inject(self, world: World, random: Random) -> None:
        _comes_late(world, random, "EndTxn", _END, _ANY_WRITE)


@dataclass(frozen=True, slots=True)
class LateWrite:
    """Records or offsets that were sent again arrive when the next transaction has written some, too.

    Before that a broker may refuse them since their partition is no part of that transaction yet, and not because they are old.
    Records may be those of another partition than the next transaction has written to; offsets have a single place.
    """

    name: str = "late-write"
    text: str = "records or offsets that were sent again arrive when the next transaction has written some, too"
    needs: tuple[str, ...] = (WIRE,)
    kinds: tuple[str, ...] = tuple(_WRITES)

    def inject(self, world: World, random: Random) -> None:
        kind = random.choice(self.kinds)
        write = frozenset({_WRITES[kind]})
        _comes_late(world, random, kind, write, write)


def _comes_late(world: World, random: Random, name: str, kind: frozenset[int], written: frozenset[int]) -> None:
    """A request of the kind comes late, where the next transaction has had an answer to one of ``written``."""
    first = random.randint(0, _MOST_BEFORE)
    with _NextTransaction(world, written) as next_one:
        late = Rule(Do.HOLD, kind, first=first, count=1, then=next_one.look)
        with world.kafka.rules.during(late) as (held,):
            try:
                missed = next_one.lacks(held)
                if not missed:
                    held.release()
                    missed = next_one.lacks_an_answer(held)
            finally:
                if not held.is_released:
                    held.discard()
    if missed:
        world.missed(f"no late {name}: {missed}")
    else:
        world.note(f"the late {name} arrived while the next transaction was open")


class _NextTransaction:
    """Follows what comes behind a request that is held, on the wire's threads: whoever is woken to look is too late.

    ::

        the request is held, and its connection breaks; the client asks again 5 ms later, is answered, ends the transaction and
        begins the next one
        whoever waits for the request to be held wakes, and looks for a beginning: it is past

    Of those that come behind it, the first one counts that has written what it should: others are let pass. An InitProducerId
    ends what was written before it: on version 1 that is how an attempt is aborted.
    """

    def __init__(self, world: World, written: frozenset[int]) -> None:
        self._world = world
        self._written = written
        self._watching: list[ActiveRule] = []
        self._changes = threading.Lock()
        self._has_ended, self._has_written = threading.Event(), threading.Event()
        self._open, self._too_late, self._over = threading.Event(), threading.Event(), threading.Event()

    def look(self) -> None:
        """From now on, for the end of the transaction of the request that is about to be held."""
        self._watch(_END, Direction.ANSWER, self._next_one)

    def _next_one(self) -> None:
        if not self._has_ended.is_set():
            self._has_ended.set()
            self._watch(self._written, Direction.ANSWER, self._has_written.set, count=None)
            self._watch(_INIT, Direction.REQUEST, self._has_written.clear, count=None)
        self._watch(_END, Direction.REQUEST, self._ends)

    def _ends(self) -> None:
        if not self._has_written.is_set():
            self._watch(_END, Direction.ANSWER, self._next_one)
            return
        self._open.set()
        if not self._over.wait(_KEPT_OPEN_S):
            self._too_late.set()

    def _watch(
        self, kind: frozenset[int], direction: Direction, then: Callable[[], object], count: int | None = 1
    ) -> None:
        with self._changes:
            if not self._over.is_set():
                watch = Rule(Do.DELAY, kind, direction, count=count, delay_s=_MOMENT_S, then=then)
                self._watching.append(self._world.kafka.rules.add(watch))

    def lacks(self, held: ActiveRule) -> str:
        """Waits until it is open; what did not come to that, else."""
        if not any(wire.seen[apis.END_TXN] for wire in self._world.kafka.wires):
            return "there are no transactions"
        if not self._comes(lambda: held.applied > 0):
            return "none was sent"
        if not self._comes(self._has_ended.is_set):
            return "its transaction did not end"
        if not self._comes(self._open.is_set):
            return "no transaction came that writes"
        return _TOO_LATE if self._too_late.is_set() else ""

    def lacks_an_answer(self, held: ActiveRule) -> str:
        """The same for the answer to it, for as long as the next transaction is kept open."""
        self._comes(lambda: held.is_answered or self._too_late.is_set())
        return "" if held.is_answered and not self._too_late.is_set() else _TOO_LATE

    def _comes(self, is_so: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + _PATIENCE_S
        while not is_so() and time.monotonic() < deadline:
            self._world.sleep(_LOOK_AGAIN_S)
        return is_so()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._changes:
            self._over.set()
        for watch in self._watching:
            self._world.kafka.rules.remove(watch)


LATE_FAULTS = (LateEndTxn(), LateWrite())
