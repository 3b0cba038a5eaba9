"""Which fault comes when.

A schedule by time draws all from one seed. A fault waits until the pipeline has recovered from the one before it, on a slow
machine as on a fast one: what strikes a driver that only starts shows nothing. Sometimes three and more come in a row all the
same, without a pause (F24), because effects change across successive failures; and about a quarter of the time nothing is done,
so that what a fault left behind can show itself before the next one covers it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Protocol

from onceflow.verify.faults.standbys import COME_ALONE

if TYPE_CHECKING:
    from onceflow.verify.faults.catalog import Fault
    from onceflow.verify.running.world import World

QUIET, IN_A_ROW = 0.25, 0.15
_QUIET_S = (3.0, 8.0)
_PAUSE_S = (0.5, 4.0)
ROW = (3, 5)
"""How many come in a row, at least and at most."""
_LOOK_AGAIN_S = 0.05
_FIRST_STANDBY_S = 600.0
_SILENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Turn:
    """The next thing to do: wait, then inject ``fault`` (None: only wait), whose own chances come from ``seed``.

    A ``wait_s`` of 0 is the next of several faults in a row (``in_row``), for which nothing is waited.
    """

    wait_s: float
    fault: Fault | None
    seed: str
    in_row: bool = False

    def random(self) -> Random:
        return Random(self.seed)  # noqa: S311  repeatable on purpose


@dataclass(frozen=True, slots=True)
class Gauge:
    """How far a schedule is: ``done`` of ``total``, in ``unit``."""

    total: float
    unit: str
    done: Callable[[], float]


class Schedule(Protocol):
    """What happens between a run's first batch and its rest."""

    @property
    def text(self) -> str:
        """For how long or how often faults come, for the user."""

    def await_start(self, world: World) -> None:
        """Waits until it may begin: the first batch is committed, but nothing else is sure."""

    def gauge(self, world: World) -> Gauge:
        """Called when it begins."""

    def due(self, world: World, faults: Sequence[Fault]) -> Iterator[Turn]:
        """Waits, and gives each turn when its fault is to be injected; ends when it is time to rest. Raises VerificationError."""

    def lack(self, injected: int) -> str:
        """Why a run that was to have faults and had so many proves nothing; empty if it does."""


@dataclass(frozen=True, slots=True)
class ByTime:
    """Faults drawn from a seed, for so many seconds; ``one_by_one``: none of them in a row."""

    seconds: float
    seed: int
    one_by_one: bool = False

    @property
    def text(self) -> str:
        return f"for {self.seconds:.0f} s" + (", one by one" if self.one_by_one else "")

    def await_start(self, world: World) -> None:
        """A first standby takes as long as a first driver, which is no part of the time for faults."""
        if awaited := world.driver.awaited(0):
            world.note(f"the first fault waits for {awaited}")
        world.wait_for(lambda: world.driver.has_recovered(0), "a first standby is warm", _FIRST_STANDBY_S)

    def gauge(self, world: World) -> Gauge:  # noqa: ARG002  the clock is everywhere the same
        began = time.monotonic()
        return Gauge(self.seconds, "s", lambda: time.monotonic() - began)

    def due(self, world: World, faults: Sequence[Fault]) -> Iterator[Turn]:
        until = time.monotonic() + self.seconds
        commits = 0
        for turn in turns(faults, self.seed, one_by_one=self.one_by_one):
            if turn.wait_s:
                _await_recovery(world, commits, until)
            world.sleep(max(0.0, min(turn.wait_s, until - time.monotonic())))
            if time.monotonic() >= until:
                return
            if turn.fault is not None:
                yield turn
                commits = world.driver.course.commits

    def lack(self, injected: int) -> str:
        return "" if injected else f"no fault was injected within {self.seconds:g} s: give it longer with --for"


def _await_recovery(world: World, commits: int, until: float) -> None:
    """Waits for it as long as there is time, and says so where it takes long: on a Spark cluster it may be minutes."""
    began, told = time.monotonic(), ""
    while not world.driver.has_recovered(commits) and time.monotonic() < until:
        awaited = world.driver.awaited(commits)  # nothing, if it has just come
        if awaited not in ("", told) and time.monotonic() - began > _SILENCE_S:
            world.note(f"the next fault waits for {awaited}")
            told = awaited
        world.sleep(_LOOK_AGAIN_S)


def turns(faults: Sequence[Fault], seed: int, *, one_by_one: bool = False) -> Iterator[Turn]:
    """Without end. Equal faults and an equal seed give equal turns, however long each of them takes.

    What comes alone, and is drawn for a row, comes behind it. ``one_by_one``: no row at all.
    """
    random = Random(f"onceflow-{seed}")  # noqa: S311  repeatable on purpose
    deck: list[Fault] = []
    number = 0

    def turn(wait_s: float, fault: Fault | None) -> Turn:
        nonlocal number
        number += 1
        return Turn(wait_s, fault, f"onceflow-{seed}-{number}", in_row=not wait_s)

    def drawn() -> Fault:
        nonlocal deck
        deck = deck or random.sample(faults, len(faults))
        return deck.pop()

    has_rows = not one_by_one and any(fault.name not in COME_ALONE for fault in faults)
    while True:
        chance = random.random()
        if chance < QUIET or not faults:
            yield turn(random.uniform(*_QUIET_S), None)
            continue
        if chance >= QUIET + IN_A_ROW or not has_rows:
            fault = drawn()
            yield turn(random.uniform(*_PAUSE_S), fault)
            continue
        alone: list[Fault] = []
        for place in range(random.randint(*ROW)):
            while (fault := drawn()).name in COME_ALONE:
                alone.append(fault)
            yield turn(0.0 if place else random.uniform(*_PAUSE_S), fault)
        for fault in alone:
            yield turn(random.uniform(*_PAUSE_S), fault)
