"""What must hold at the end of every run."""

from __future__ import annotations

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
    """Every input once, in order: the partition's committed records are its share of the input that gives output."""
    visible, silent = world.broker.partitions[number].visible, world.scenario.silent
    expected = [v for v in range(world.scenario.records) if v % PARTITIONS == number and v not in silent]
    if visible == expected:
        return
    repeated = sorted({value for value in visible if visible.count(value) > 1})
    if repeated:
        yield f"partition {number}: repeated {repeated}"
    lost = sorted(set(expected) - set(visible))
    if lost:
        yield f"partition {number}: lost {lost}"
    if not repeated and not lost:
        yield f"partition {number}: out of order {visible}"


def _rest(world: World) -> Iterator[str]:
    committed = world.broker.group.committed
    if committed.source != world.scenario.records:
        yield f"committed source offset {committed.source} of {world.scenario.records}"
    for number, partition in enumerate(world.broker.partitions):
        if partition.hanging:
            yield f"partition {number}: a hanging transaction holds the last stable offset"
    if world.broker.group.hanging:
        yield "the group's offsets stay unstable"
