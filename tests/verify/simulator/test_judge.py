"""The simulator's judge: where a user took a checkpoint as it was the output begins again there, once, and nowhere else."""

from __future__ import annotations

import pytest

from onceflow.transaction.progress import Batch, Progress
from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.judge import judge
from onceflow.verify.simulator.requests import Committed
from onceflow.verify.simulator.scenario import Scenario
from onceflow.verify.simulator.world import PARTITIONS, Variant, World

RECORDS = 6


def world_that_shows(visible: list[int], *leaps: tuple[int, int]) -> World:
    """A run that has ended, of which this is visible."""
    world = World(Scenario(records=RECORDS), Choices(0, {}, None), Variant())
    for number, partition in enumerate(world.broker.partitions):
        partition.begin_with(tuple(value for value in visible if value % PARTITIONS == number))
    world.broker.group.begin_with(RECORDS)
    world.leaps += leaps
    return world


@pytest.mark.parametrize(
    ("visible", "leaps"),
    [
        ([0, 1, 2, 3, 4, 5], []),
        ([0, 1, 2, 3, 2, 3, 4, 5], [(4, 2)]),
        ([0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5], [(6, 0)]),
        ([0, 1, 4, 5], [(2, 4)]),  # the checkpoint was ahead of what is committed
        ([0, 1, 0, 1, 2, 3, 2, 3, 4, 5], [(2, 0), (4, 2)]),
    ],
)
def test_the_output_begins_again_where_the_user_has_it_begin_again(
    visible: list[int], leaps: list[tuple[int, int]]
) -> None:
    assert judge(world_that_shows(visible, *leaps)) == []


@pytest.mark.parametrize(
    ("visible", "leaps", "told"),
    [
        ([0, 1, 2, 3], [], ["partition 0: lost [4]", "partition 1: lost [5]"]),
        ([0, 1, 4, 5], [(4, 4)], ["partition 0: lost [2]", "partition 1: lost [3]"]),
        ([], [(4, 6)], ["partition 0: lost [0, 2]", "partition 1: lost [1, 3]"]),
        ([0, 1, 2, 3], [(6, 6)], ["partition 0: lost [4]", "partition 1: lost [5]"]),
        ([0, 1, 2, 3, 2, 3, 2, 3, 4, 5], [(4, 2)], ["partition 0: repeated [2]", "partition 1: repeated [3]"]),
        ([0, 1, 4, 5, 2, 3], [], ["partition 0: out of order [0, 4, 2]", "partition 1: out of order [1, 5, 3]"]),
    ],
)
def test_it_begins_again_nowhere_else(visible: list[int], leaps: list[tuple[int, int]], told: list[str]) -> None:
    assert judge(world_that_shows(visible, *leaps)) == told


def test_only_a_batch_that_is_committed_begins_it_again_and_only_once() -> None:
    world = world_that_shows([])
    world.broker.group.reached = 4
    again, other = Batch(1, "q", "2", "4"), Batch(2, "q", "0", "6")
    for batch in (again, other):
        world.taken_as_it_is(3, batch, int(batch.start))
    world.taken_as_it_is(4, again, 3)  # another driver has planned it from elsewhere
    assert world.leaps == []
    committed = Committed(Progress(2, "q", "driver-3.2", ("2", "4")), 4)
    for _ in range(2):  # the second one is a renewal
        world.broker.group.watch(committed)
    assert world.leaps == [(4, 2)]
    world.broker.group.committed = committed
    world.taken_as_it_is(3, again, 2)  # it is skipped
    world.broker.group.watch(committed)
    assert world.leaps == [(4, 2)]
