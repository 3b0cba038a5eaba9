"""What a run remembers of its batches: until Spark has told of them, and no longer."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

from pyspark.sql import DataFrame

from onceflow.pipeline.inbox import ProgressListener, Remembering
from onceflow.transaction.driver import BatchReport, Driver
from onceflow.transaction.sink import KafkaSink

NO_FRAME = cast("DataFrame", None)
PATIENCE_S = 60.0


class Written(Driver):
    """Needs no cluster: the batch is written."""

    def run(self, _: DataFrame, batch_id: int) -> BatchReport:
        return BatchReport(batch_id, True, batch_id + 10, 0.0)


class Sink(KafkaSink):
    """Its driver is at hand; behind each batch it waits until it may return."""

    def __init__(self) -> None:
        super().__init__("out", name="p", bootstrap_servers="localhost:1")
        self._driver = Written(self._options, None)
        self.done, self.may_return = threading.Event(), threading.Event()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        super().__call__(batch, batch_id)
        self.done.set()
        assert self.may_return.wait(PATIENCE_S)


def test_a_report_is_forgotten_once_it_is_taken() -> None:
    sink = Sink()
    sink.may_return.set()
    batch = Remembering(sink)
    for number in range(100):
        batch(NO_FRAME, number)
        report = batch.taken(number)
        assert report is not None
        assert report.records == number + 10
        assert batch.taken(number) is None, "told once"
        assert not batch.reports


def test_a_report_that_spark_never_asked_for_goes_with_the_next_one() -> None:
    """Spark's listener bus drops events when it is full."""
    sink = Sink()
    sink.may_return.set()
    batch = Remembering(sink)
    for number in range(3):
        batch(NO_FRAME, number)
    assert batch.taken(1) is not None
    assert list(batch.reports) == [2]


def test_a_drained_batch_is_known_although_its_function_has_not_returned() -> None:
    """Or the query would be stopped without waiting for Spark's commit log, and the batch be replayed by the next start."""
    sink = Sink()
    batch = Remembering(sink)
    spark = threading.Thread(target=batch, args=(NO_FRAME, 7))
    spark.start()
    try:
        assert sink.done.wait(PATIENCE_S)
        sink.drain()
        assert batch.newest == 7
    finally:
        sink.may_return.set()
        spark.join(PATIENCE_S)
    assert batch.taken(7) is not None


class Heard:
    """What a listener for the queries of "p" makes of what Spark tells."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.triggers = 0
        self.listener = ProgressListener(
            "p", lambda progress: self.batches.append(progress.batch_id), {}, self._triggered
        )

    def _triggered(self) -> None:
        self.triggers += 1

    def started(self, run: UUID, name: str | None) -> None:
        self.listener.onQueryStarted(cast(Any, SimpleNamespace(runId=run, name=name)))

    def progress(self, run: UUID, batch_id: int) -> None:
        told = SimpleNamespace(
            runId=run, batchId=batch_id, observedMetrics={}, durationMs={}, sources=[], numInputRows=0
        )
        self.listener.onQueryProgress(cast(Any, SimpleNamespace(progress=told)))

    def idle(self, run: UUID) -> None:
        self.listener.onQueryIdle(cast(Any, SimpleNamespace(runId=run)))


def test_other_queries_of_the_session_are_nothing_of_ours() -> None:
    """A caller's own session may have some: their batches would end what is remembered of ours, their triggers claim our name."""
    ours, other, unnamed = uuid4(), uuid4(), uuid4()
    heard = Heard()
    heard.started(other, "another")
    heard.started(unnamed, None)
    for run in (other, unnamed):
        heard.progress(run, 900)
        heard.idle(run)
    assert (heard.batches, heard.triggers) == ([], 0)
    heard.started(ours, "p")
    heard.progress(other, 901)
    heard.progress(ours, 0)
    heard.idle(ours)
    assert (heard.batches, heard.triggers) == ([0], 2)


def test_the_query_that_follows_ours_is_ours_too_and_what_is_still_told_of_the_one_before() -> None:
    """The clock was set back: one ends, another one begins, and Spark tells of both."""
    first, second = uuid4(), uuid4()
    heard = Heard()
    heard.started(first, "p")
    heard.started(second, "p")
    heard.progress(first, 4)
    heard.progress(second, 5)
    assert heard.batches == [4, 5]
