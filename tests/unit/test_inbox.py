"""What a run remembers of its batches: until Spark has told of them, and no longer."""

from __future__ import annotations

import threading
from typing import cast

from pyspark.sql import DataFrame

from onceflow.pipeline.inbox import Remembering
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
