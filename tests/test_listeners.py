"""Spark's listeners, which are told of a batch while the next one runs: none of them may hold that up, however slow it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener
from tests.test_pipeline import CHANGES, Lab, rows

from onceflow.broker import EmbeddedBroker
from onceflow.config import load
from onceflow.pipeline import Control, Event, run
from onceflow.pipeline.events import BatchCommitted, Started
from onceflow.transaction.sink import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.usefixtures("spark")
PATIENCE_S = 100.0  # twice as long as five attempts that fail behind 10 s each


@pytest.fixture
def lab(tmp_path: Path, broker: EmbeddedBroker, topic: TopicFactory) -> Lab:
    """A name with progress, and a backlog of three batches."""
    made = Lab(tmp_path, broker, topic)
    made.send(rows(1))
    made.run()
    made.write_plan(schema=f"{CHANGES['schema']}\nmax_offsets_per_trigger = 1")
    made.send(rows(2, 3, 4))
    return made


class OnExecutors(KafkaSink):
    """Whatever the size of a batch, executors write it."""

    def __init__(self, *sinks: Any, **options: Any) -> None:
        super().__init__(*sinks, **options, driver_bytes=0)


def run_with(make_sink: Callable[..., KafkaSink], lab: Lab, triggered: Callable[[], None] = lambda: None) -> None:
    run(load(lab.path, {}), tell=lab.events.append, control=Control(), make_sink=make_sink, triggered=triggered)


def test_a_running_batch_is_not_waited_for_where_python_is_told_of_the_one_before(lab: Lab) -> None:
    """The first batch claims the name; when the listener comes to look whether it is claimed, the second one has the sink."""
    second_runs, told = threading.Event(), threading.Event()
    in_time: list[bool] = []

    class AskedLate(KafkaSink):
        def open(self, *, planned: bool, wait: bool = True) -> bool:
            assert second_runs.wait(PATIENCE_S)
            return super().open(planned=planned, wait=wait)

    def wait_in_the_second_batch(step: str, batch: int) -> None:
        if (step, batch) == ("WRITE", 2):
            second_runs.set()
            in_time.append(told.wait(PATIENCE_S))

    run_with(partial(AskedLate, on_step=wait_in_the_second_batch), lab, told.set)
    assert in_time == [True]
    assert lab.ids() == [1, 2, 3, 4]


class Standing(StreamingQueryListener):
    """A listener of the user's own that stands still until ``may_go_on``."""

    def __init__(self) -> None:
        self.stands, self.may_go_on = threading.Event(), threading.Event()

    def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802

    def onQueryIdle(self, event: Any) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802

    def onQueryProgress(self, _: Any) -> None:  # noqa: N802
        self.stands.set()
        self.may_go_on.wait(PATIENCE_S)


def test_a_listener_that_stands_still_holds_no_batch_up_that_executors_write(lab: Lab, spark: SparkSession) -> None:
    listener = Standing()
    spark.streams.addListener(listener)

    def wait_for_the_listener(step: str, batch: int) -> None:
        if (step, batch) == ("WRITE", 2):
            assert listener.stands.wait(PATIENCE_S)
        elif (step, batch) == ("COMMIT", 2):
            listener.may_go_on.set()

    try:
        run_with(partial(OnExecutors, on_step=wait_for_the_listener), lab)
    finally:
        listener.may_go_on.set()
        spark.streams.removeListener(listener)
    assert lab.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", [Started, BatchCommitted])
def test_a_query_in_a_session_of_the_caller_s_ends_with_the_run_that_is_left(
    lab: Lab, spark: SparkSession, kind: type[Event]
) -> None:
    """Else it would open the sink anew, and write on with nobody told of it. What was raised is told as it is."""

    def tell(event: Event) -> None:
        if isinstance(event, kind):
            raise BrokenPipeError("nobody reads")

    with pytest.raises(BrokenPipeError, match="nobody reads"):
        run(load(lab.path, {}), tell=tell, control=Control())
    assert [query.name for query in spark.streams.active] == []
