"""What must hold at the end of every run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from onceflow.verify.simulator.world import PARTITIONS, World


def judge(world: World) -> list[str]:
    """Every anomaly of a run that has ended."""
    found = list(world.anomalies)
    for partition in range(PARTITIONS):
        found += _output(world, partition)
    found += _rest(world)
    return found


def _output(world: World, number: int) -> Iterator[str]:
    """Every input once, in order: the partition's committed records are its share of the input that gives output.

    Where the user took a checkpoint as it was, they may begin again at its batch, and have to go on to the end from there.
    """
    visible, silent = world.broker.partitions[number].visible, world.scenario.silent
    expected = [v for v in range(world.scenario.records) if v % PARTITIONS == number and v not in silent]
    if _goes_on(visible, expected, {bisect_left(expected, start) for start in world.begun_anew}):
        return
    repeated = sorted({value for value in visible if visible.count(value) > 1})
    if repeated:
        yield f"partition {number}: repeated {repeated}"
    lost = sorted(set(expected) - set(visible))
    if lost:
        yield f"partition {number}: lost {lost}"
    if not repeated and not lost:
        yield f"partition {number}: out of order {visible}"


def _goes_on(visible: list[int], expected: list[int], anew: set[int]) -> bool:
    """Whether each record is the one that follows, or the first one of where the output begins anew."""
    following = 0
    for value in visible:
        if expected[following : following + 1] != [value]:
            following = bisect_left(expected, value)
            if following not in anew or expected[following] != value:
                return False
        following += 1
    return following == len(expected) or len(expected) in anew


def _rest(world: World) -> Iterator[str]:
    group = world.broker.group
    source = group.committed.source or group.reached  # expired they are 0
    if source != world.scenario.records:
        yield f"committed source offset {source} of {world.scenario.records}"
    for number, partition in enumerate(world.broker.partitions):
        if partition.hanging:
            yield f"partition {number}: a hanging transaction holds the last stable offset"
    if world.broker.group.hanging:
        yield "the group's offsets stay unstable"
