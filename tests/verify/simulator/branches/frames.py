"""The runs in which every branch has to be met: ordinary seeds, and some frames in which rare things meet often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.verify.simulator import Scenario

ORDINARY = 1800
OF_A_FRAME = 60
Run = tuple[int, "Scenario | None"]

_CONFLICTS = {"driver": 0.1, "checkpoint": 0.1, "plan": 0.3}
_OVERTAKEN = {**_CONFLICTS, "second": 0.2}
_RENEWED = {"request": 0.1, "expire": 0.2, "driver": 0.1, "second": 0.3, "rest": 0.5}


def runs() -> Iterator[Run]:
    """Seeds and scenarios; a seed without one has that of its own."""
    yield from ((seed, None) for seed in range(ORDINARY))
    for scenario in _frames():
        yield from ((seed, scenario) for seed in range(OF_A_FRAME))
    yield from _rare()


def _frames() -> Iterator[Scenario]:
    from onceflow.verify.simulator import Scenario  # not before the probes are installed

    for version in (1, 2):
        yield Scenario(version, 12, 2, drivers=2, rates=_CONFLICTS)
        yield Scenario(version, 12, 2, drivers=2, user_restarts=True, rates={**_CONFLICTS, "people": 0.3})
        yield Scenario(version, 12, 2, drivers=2, rates={**_CONFLICTS, "people": 0.3, "request": 0.2})
        yield Scenario(version, 12, 2, drivers=2, user_restarts=True, rates=_OVERTAKEN)
        yield Scenario(version, rates={"request": 0.25, "expire": 0.3})
        yield Scenario(version, drivers=2, rates={"expire": 0.2, "cut": 0.05, "driver": 0.1, "second": 0.2})
        yield Scenario(version, 6, 1, by_driver=True, rates={"request": 0.2, "driver": 0.2})
        yield Scenario(version, 12, 2, drivers=2, claims_first=True, rates={**_CONFLICTS, "people": 0.3, "rest": 0.3})
        yield Scenario(version, rates=_RENEWED)
        yield Scenario(version, rates={"marker": 0.3, "task": 0.2, "request": 0.1, "driver": 0.1})
        hijacked = {"hijack": 0.4, "request": 0.1, "second": 0.2, "driver": 0.05}
        yield Scenario(version, first_epoch=32764, faults_until=300, rates=hijacked)
        yield Scenario(version, at_least_once=4, rates={"marker": 0.3, "driver": 0.1})
        yield Scenario(version, at_least_once=4, resumes=False, rates={"marker": 0.3, "driver": 0.1})
        deleted = {**_CONFLICTS, "people": 0.3, "rest": 0.3}
        yield Scenario(version, 12, 2, records_each=2, readings_differ=True, rates=deleted)


def steady(seed: int) -> Scenario:
    """That of an ordinary seed, where each request takes as long as any other."""
    from onceflow.verify.simulator import Scenario

    ordinary = Scenario.of(seed)
    return replace(ordinary, rates={kind: rate for kind, rate in ordinary.rates.items() if kind != "pace"})


def moved_in_the_last_epoch() -> Scenario:
    """The coordinator moves before the markers of a transaction of the last epoch are written, and forgets what follows."""
    from onceflow.verify.simulator import Scenario

    return Scenario(2, first_epoch=32763, drivers=2, rates={"move": 0.1, "marker": 0.3})


def _rare() -> Iterator[Run]:
    """Runs without which a branch is taken by none, for so many seeds of a frame would be needed that show nothing else."""
    from onceflow.verify.simulator import Scenario

    yield 401, Scenario(1, rates=_RENEWED)
    yield 3, moved_in_the_last_epoch()
    yield 9457, Scenario.of(9457)
    yield 73, Scenario(2, 12, 2, drivers=2, user_restarts=True, rates=_OVERTAKEN)
