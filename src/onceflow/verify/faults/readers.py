"""Faults of the readers behind the output: killed, and frozen until another one has taken over (F1, F3, F18).

A reader is struck right behind a step of its loop, for most of the time it waits for events, and a signal would hit nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from onceflow.reader.steps import Step
from onceflow.verify.effects.job import SESSION_TIMEOUT_S
from onceflow.verify.running.encounters import NOTHING

if TYPE_CHECKING:
    from onceflow.verify.running.readers import EffectReaders, ReaderLife
    from onceflow.verify.running.world import World

READER, TWO_READERS = "a reader", "two readers"
_BEYOND_SESSION_S = 3.0
_COMES_WITHIN_S = 120.0
_AT_ONCE_S = 2.0
_TAKEN_WITHIN_S = 60.0
_LOOK_AGAIN_S = 0.1

BEHIND: Mapping[Step, str] = {
    Step.POLLED: "with events in hand of which none was handled",
    Step.ADMITTED: "inside of a transaction of the store, before the effects",
    Step.HANDLED: "inside of a transaction of the store, which had the effects",
    Step.COMMITTED: "with effects that the store had, before Kafka was told",
}
"""Where a reader may be struck, and what it was at."""
_IN_A_UNIT = (Step.ADMITTED, Step.HANDLED)


@dataclass(frozen=True, slots=True)
class KillReader:
    """SIGKILL to a reader at its work. What it had goes to the others of its group, and to the process that comes in its place.

    ::

        reader 1   its effects are in a transaction of the store; killed
        reader 2   takes its partitions when the session is over, begins at the store's position: the same events again
    """

    name: str = "kill-reader"
    text: str = "SIGKILL to a reader of the output while it handles events"
    needs: tuple[str, ...] = (READER,)

    def inject(self, world: World, random: Random) -> None:
        readers, step = _of(world), random.choice(list(BEHIND))
        struck = _held(world, readers, step, random)
        if struck is not None:
            world.strikes_now()
            readers.kill(struck)
            world.met(f"reader {struck.number} was killed {BEHIND[step]}", NOTHING)


@dataclass(frozen=True, slots=True)
class PauseReader:
    """SIGSTOP to a reader at its work, for longer than its session lasts; another takes over; then SIGCONT.

    ::

        reader 1   has polled events 5 to 9; SIGSTOP
        reader 2   takes the partition, handles 5 to 9
        reader 1   SIGCONT: goes on with 5 to 9 as if no time had passed, and the store refuses it

    One that stands inside of a transaction of the store keeps the file's lock: whoever takes over waits until it has woken, and
    has committed.
    """

    name: str = "pause-reader"
    text: str = "SIGSTOP to a reader of the output beyond its session; it wakes as a zombie when another has taken over"
    needs: tuple[str, ...] = (TWO_READERS,)

    def inject(self, world: World, random: Random) -> None:
        readers, step = _of(world), random.choice(list(BEHIND))
        struck = _held(world, readers, step, random)
        if struck is None:
            return
        world.strikes_now()
        if not struck.running.pause():
            world.missed(f"reader {struck.number} had ended by itself")
            return
        try:
            readers.go(struck)  # which it hears when it wakes
            world.sleep(SESSION_TIMEOUT_S + _BEYOND_SESSION_S)
            taken = step in _IN_A_UNIT or _is_taken_over(world, readers, struck)
        finally:
            struck.running.resume()
        if step in _IN_A_UNIT:
            followed = "whoever took over waited for the store until it woke"
        else:
            followed = "another had its partitions when it woke" if taken else "nobody had taken its partitions"
        world.met(f"reader {struck.number} was frozen {BEHIND[step]}; {followed}", NOTHING)


def _of(world: World) -> EffectReaders:
    assert world.readers is not None
    return world.readers


def _held(world: World, readers: EffectReaders, step: Step, random: Random) -> ReaderLife | None:
    """A reader that waits right behind the step. None: none came there, and the world was told.

    On a machine that is slow, or behind a driver that was struck just before, it takes a while until there is output again.
    """
    deadline = time.monotonic() + _COMES_WITHIN_S
    while (held := readers.hold(step.value, _AT_ONCE_S, random)) is None:
        if time.monotonic() > deadline:
            world.missed(f"no reader came to {step.value} within {_COMES_WITHIN_S:.0f} s")
            return None
        world.sleep(0)  # the run may have been given up
    return held


def _is_taken_over(world: World, readers: EffectReaders, struck: ReaderLife) -> bool:
    """Waits until the store has other owners for all that was its own; not for ever: the others may be struck as well."""
    deadline = time.monotonic() + _TAKEN_WITHIN_S
    while readers.owned(struck):
        if time.monotonic() > deadline:
            return False
        world.sleep(_LOOK_AGAIN_S)
    return True


READER_FAULTS = (KillReader(), PauseReader())
