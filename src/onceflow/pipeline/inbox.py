"""What a run waits for: a stop that somebody asked for, Spark's progress, the query's end; and what a batch left behind."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from onceflow.pipeline.malformed import OBSERVED
from onceflow.pipeline.readings import rows_read
from onceflow.transaction.driver import BatchReport
from onceflow.transaction.sink import KafkaSink


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody wants the pipeline to end after the running batch."""

    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Spark finished a micro-batch and has written its commit log."""

    batch_id: int
    rows_in: int
    duration_ms: int
    malformed: int


class Ended:
    """The query runs no more."""


class Control:
    """What a running pipeline waits for. ``stop`` may be called from a signal handler or any thread."""

    def __init__(self) -> None:
        # SimpleQueue.put may interrupt itself, as a signal handler does; an Event or a Queue would deadlock.
        self.inbox: queue.SimpleQueue[StopAsked | Progress | Ended] = queue.SimpleQueue()

    def stop(self, reason: str) -> None:
        """Asks the pipeline to end after the running batch."""
        self.inbox.put(StopAsked(reason))


@dataclass(slots=True)
class Remembering:
    """The function for foreachBatch: Spark passes on an exception's text only, the error itself is kept here."""

    sink: KafkaSink
    reports: dict[int, BatchReport] = field(default_factory=dict)
    error: BaseException | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        try:
            self.sink(batch, batch_id)
        except BaseException as error:
            self.error = error
            raise
        if self.sink.last is not None:
            self.reports[batch_id] = self.sink.last


class ProgressListener(StreamingQueryListener):
    """Forwards a query's progress; runs on a thread of py4j."""

    def __init__(self, forward: Callable[[Progress], None], times: Mapping[str, int]) -> None:
        self._forward = forward
        self._times = times

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...  # noqa: N802

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        counts = [row for name, row in progress.observedMetrics.items() if name.startswith(OBSERVED)]
        duration_ms = int(progress.durationMs.get("triggerExecution", 0))
        malformed = sum(int(row["rows"]) for row in counts)
        self._forward(Progress(progress.batchId, rows_read(progress, self._times), duration_ms, malformed))
