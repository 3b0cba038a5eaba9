"""Spark's own Kafka sink, with the same moments to wait at as ours, so that the same kills can hit it.

What writes is Spark's code alone, ``batch.write.format("kafka")``. To be killed in the middle of its write, one task of the
planned batch is kept from beginning until all others have written their records.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.sql import DataFrame

from onceflow.demo.assignment import Moment
from onceflow.demo.moments import Moments

_POLL_S = 0.02


class BuiltInSink:
    """A function for ``foreachBatch``. ``scratch`` is a directory that the tasks can see."""

    def __init__(self, bootstrap_servers: str, moments: Moments, scratch: Path) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._moments = moments
        self._scratch = scratch

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self._moments(Moment.WRITE, batch_id)
        if self._moments.holds(Moment.PRODUCE, batch_id):
            self._write_with_a_stop(batch, batch_id)
        else:
            self._write(batch)
        self._moments(Moment.WRITTEN, batch_id)

    def _write(self, batch: DataFrame) -> None:
        batch.write.format("kafka").option("kafka.bootstrap.servers", self._bootstrap_servers).save()

    def _write_with_a_stop(self, batch: DataFrame, batch_id: int) -> None:
        gate = Gate(self._scratch / f"batch-{batch_id}")
        context = batch.sparkSession.sparkContext
        ended = threading.Event()

        def stop_in_the_middle() -> None:
            if _wait_for_the_others(context, gate, ended):
                self._moments(Moment.PRODUCE, batch_id)
            gate.open()

        watcher = threading.Thread(target=stop_in_the_middle, daemon=True)
        watcher.start()
        try:
            self._write(batch.mapInArrow(gate.hold_first_task, batch.schema))
        finally:
            ended.set()
            watcher.join()


@dataclass(frozen=True, slots=True)
class Gate:
    """Keeps the first task of a job waiting, through two files that driver and task see."""

    path: Path

    def hold_first_task(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs in a Python worker; gives the rows as they are."""
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0:
            self._reached.touch()
            while not self._opened.exists():
                time.sleep(_POLL_S)
        yield from rows

    def is_reached(self) -> bool:
        return self._reached.exists()

    def open(self) -> None:
        self._opened.touch()

    @property
    def _reached(self) -> Path:
        return self.path.with_suffix(".reached")

    @property
    def _opened(self) -> Path:
        return self.path.with_suffix(".opened")


def _wait_for_the_others(context: SparkContext, gate: Gate, ended: threading.Event) -> bool:
    """Whether it came to the point where every task but the held one has ended well."""
    while not ended.wait(_POLL_S):
        if gate.is_reached() and _one_is_left(context):
            return True
    return False


def _one_is_left(context: SparkContext) -> bool:
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return any(
        stage is not None and stage.numTasks > 1 and stage.numCompletedTasks == stage.numTasks - 1 for stage in stages
    )
