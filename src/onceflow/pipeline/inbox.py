"""What a run hears from Spark: the progress of its triggers, and what a batch left behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from onceflow.pipeline.control import Progress
from onceflow.pipeline.malformed import OBSERVED
from onceflow.pipeline.readings import rows_read
from onceflow.transaction.driver import BatchReport
from onceflow.transaction.sink import KafkaSink


@dataclass(slots=True)
class Remembering:
    """The function for foreachBatch: Spark passes on an exception's text only, the error itself is kept here.

    ``reports`` are those of batches that Spark has not told of yet.
    """

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

    @property
    def newest(self) -> int:
        """The last batch that the sink has done (-1: none); the sink knows it before its ``drain`` returns, this here later."""
        return -1 if self.sink.last is None else self.sink.last.batch_id

    def taken(self, batch_id: int) -> BatchReport | None:
        """The report of a batch that Spark tells of; it and what is older are forgotten, or they would add up for months."""
        report = self.reports.get(batch_id)
        for old in [known for known in list(self.reports) if known <= batch_id]:
            del self.reports[old]
        return report


class ProgressListener(StreamingQueryListener):
    """Forwards the progress of the queries of this ``name``, one after the other, and calls ``triggered`` for their triggers,
    those without data too; runs on a thread of py4j. Of others in the session, which may be the caller's own, it takes nothing::

        another query tells of its batch 900
        taken for ours, it would end what we remember of our batches up to 900, and nobody were told of them
        its trigger, taken for ours, would have us claim our name though our query has not planned anything, and perhaps never can
    """

    def __init__(
        self, name: str, forward: Callable[[Progress], None], times: Mapping[str, int], triggered: Callable[[], None]
    ) -> None:
        self._name = name
        self._forward = forward
        self._times = times
        self._triggered = triggered
        self._runs: set[UUID] = set()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Spark tells of it before it lets the query begin, and has no two of one name at a time."""
        if event.name == self._name:
            self._runs.add(event.runId)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        if event.runId in self._runs:
            self._triggered()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        if progress.runId not in self._runs:
            return
        self._triggered()
        counts = [row for name, row in progress.observedMetrics.items() if name.startswith(OBSERVED)]
        duration_ms = int(progress.durationMs.get("triggerExecution", 0))
        malformed = sum(int(row["rows"]) for row in counts)
        self._forward(Progress(progress.batchId, rows_read(progress, self._times), duration_ms, malformed))
