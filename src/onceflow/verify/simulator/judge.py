"""What must hold at the end of every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onceflow.verify.simulator.anomalies import Anomaly, Shown
from onceflow.verify.simulator.world import PARTITIONS, World


def judge(world: World) -> list[Shown]:
    """Every anomaly of a run that has ended."""
    found = list(world.anomalies)
    for partition in range(PARTITIONS):
        found += _output(world, partition)
        found += _reading(world, partition)
    found += [Anomaly.SHARED.shown(identity) for identity in world.broker.standing.shared]
    found += _rest(world)
    return found


def _output(world: World, number: int) -> Iterator[Shown]:
    """Every input once, in order: the partition's committed records are its share of the input that gives output."""
    visible, silent = world.broker.partitions[number].visible, world.scenario.silent
    expected = [v for v in _input(world) if v % PARTITIONS == number and v not in silent]
    if visible == expected:
        return
    often, wanted = Counter(visible), Counter(expected)
    if repeated := sorted(often - wanted):
        yield Anomaly.REPEATED.shown(number, repeated)
    if lost := sorted(wanted - often):
        yield Anomaly.LOST.shown(number, lost)
    if not repeated and not lost:
        yield Anomaly.OUT_OF_ORDER.shown(number, visible)


def _reading(world: World, number: int) -> Iterator[Shown]:
    """What is below the last stable offset is decided: who read all the time has got what one gets who begins now."""
    got, readable = world.readers[number].got, world.broker.partitions[number].readable
    if got != readable:
        yield Anomaly.MISREAD.shown(number, got, readable)


def _input(world: World) -> Iterator[int]:
    """The input in the order in which it gives output. Where the user took a checkpoint as it was, that begins again::

    committed up to 8; the checkpoint is at batch 1, which starts at 4, and the user restarts     0 to 7, then 4 to the end
    """
    begin = 0
    for reached, start in world.leaps:
        yield from range(begin, reached)
        begin = start
    yield from range(begin, world.scenario.records)


def _rest(world: World) -> Iterator[Shown]:
    group = world.broker.group
    source = group.committed.source or group.reached  # expired they are 0
    if source != world.scenario.records:
        yield Anomaly.SOURCE_OFFSET.shown(source, world.scenario.records)
    yield from _progress(world)
    for number, partition in enumerate(world.broker.partitions):
        if partition.hanging:
            yield Anomaly.HANGING.shown(number)
    if world.broker.group.hanging:
        yield Anomaly.UNSTABLE.shown()


def _progress(world: World) -> Iterator[Shown]:
    """What the next start compares with: the committed progress has the last batch, as the source offset has its end.

    It may have expired since. A driver that claims the name then finds nothing that it would have to write.
    """
    progress = world.broker.group.committed.progress
    if progress is None or not progress.query_id:
        if not world.progress_expired:
            yield Anomaly.NO_PROGRESS.shown()
    elif not world.ends_with(progress, world.scenario.records):
        yield Anomaly.OTHER_PROGRESS.shown(progress)
