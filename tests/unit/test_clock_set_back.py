"""When a wall clock counts as set back, beside one that nobody sets."""

from __future__ import annotations

import queue

import pytest

from onceflow.pipeline.clock_set_back import LEAST_S, Wall, watched

PATIENCE_S = 60


class Clocks:
    """Both of them; ``takes_s`` is what a look at the wall takes, if the process stands still in between."""

    def __init__(self) -> None:
        self.wall, self.steady, self.takes_s = 1_800_000_000.0, 500.0, 0.0

    def look_at_the_wall(self) -> float:
        seen = self.wall
        self.passes(self.takes_s)
        return seen

    def passes(self, seconds: float) -> None:
        if seconds:
            self.wall += seconds
            self.steady += seconds


@pytest.mark.parametrize(
    ("moved_s", "told_s"), [(0, 0), (3600, 0), (1 - LEAST_S, 0), (-LEAST_S, LEAST_S), (-3600, 3600)]
)
def test_it_is_told_once_by_how_much(moved_s: float, told_s: float) -> None:
    clocks = Clocks()
    wall = Wall(clocks.look_at_the_wall, lambda: clocks.steady)
    clocks.passes(1)
    clocks.wall += moved_s
    assert wall.set_back_s() == told_s
    clocks.passes(1)
    assert wall.set_back_s() == 0


def test_many_small_steps_are_one_large_one() -> None:
    clocks = Clocks()
    wall = Wall(clocks.look_at_the_wall, lambda: clocks.steady)
    told = []
    for _ in range(5):
        clocks.wall -= 2
        told.append(wall.set_back_s())
    assert told == [0, 0, 6, 0, 0]


def test_it_is_set_back_too_where_that_ends_an_error() -> None:
    clocks = Clocks()
    wall = Wall(clocks.look_at_the_wall, lambda: clocks.steady)
    for step_s, told_s in ((3000, 0), (0, 0), (-3000, 3000)):
        clocks.wall += step_s
        assert wall.set_back_s() == told_s


def test_a_process_that_stood_still_between_the_two_looks_has_seen_nothing() -> None:
    clocks = Clocks()
    wall = Wall(clocks.look_at_the_wall, lambda: clocks.steady)
    for takes_s in (20, 0, 0):
        clocks.takes_s = takes_s
        clocks.passes(1)
        assert wall.set_back_s() == 0
    clocks.takes_s, clocks.wall = 20, clocks.wall - 60
    assert wall.set_back_s() == 0
    clocks.takes_s = 0
    assert wall.set_back_s() == 60, "the next look sees it"


def test_it_is_watched_within_the_block() -> None:
    told: queue.SimpleQueue[float] = queue.SimpleQueue()
    clocks = Clocks()
    with watched(told.put, Wall(clocks.look_at_the_wall, lambda: clocks.steady)):
        for seconds in (60, 3600):
            clocks.wall -= seconds
            assert told.get(timeout=PATIENCE_S) == seconds
    assert told.empty()
