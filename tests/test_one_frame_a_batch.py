"""A second frame of a batch is refused, never skipped in silence; what may come twice goes on working."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from onceflow import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from tests.conftest import Workbench

RECORDS = [("k", str(number)) for number in range(5)]
REFUSED = r"(?s)UNSAFE_SESSION.*batch 0 was committed a moment ago.*unite the frames"


class Lab:
    """A source with some records, two targets, and sinks for them."""

    def __init__(self, bench: Workbench, opened: ExitStack) -> None:
        self.bench = bench
        self.source, self.first, self.second = bench.topic(), bench.topic(), bench.topic()
        self._opened = opened
        bench.fill(self.source, RECORDS)

    def sink(self, topic: str, name: str, **options: Any) -> KafkaSink:
        sink = KafkaSink(topic, name=name, bootstrap_servers=self.bench.broker.bootstrap_servers, **options)
        return self._opened.enter_context(closing(sink))

    def run(self, write: Callable[[DataFrame, int], None], **options: Any) -> None:
        self.bench.run_query(self.source, write, self.bench.checkpoint, **options)

    def counts(self) -> tuple[int, int]:
        return len(self.bench.read(self.first)), len(self.bench.read(self.second))


@pytest.fixture
def lab(bench: Workbench) -> Any:
    with ExitStack() as opened:
        yield Lab(bench, opened)


def both(first: KafkaSink, second: KafkaSink) -> Callable[[DataFrame, int], None]:
    def write(frame: DataFrame, batch_id: int) -> None:
        first(frame, batch_id)
        second(frame, batch_id)

    return write


def test_one_sink_twice_in_a_batch_is_refused_in_the_next_run_too(lab: Lab) -> None:
    """The progress knows the batch then: the first frame is skipped, the second was never written."""
    sink = lab.sink(lab.first, lab.first)
    for _ in range(2):
        with pytest.raises(Exception, match=REFUSED):
            lab.run(both(sink, sink))
    assert lab.counts() == (len(RECORDS), 0)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_most_once"])
def test_two_sinks_of_one_name_in_a_batch_are_refused(lab: Lab, guarantee: str) -> None:
    sinks = [lab.sink(topic, lab.first, guarantee=guarantee) for topic in (lab.first, lab.second)]
    with pytest.raises(Exception, match=REFUSED):
        lab.run(both(*sinks))
    assert lab.counts() == (len(RECORDS), 0)


def test_two_sinks_with_names_of_their_own_write_both_in_every_run(lab: Lab) -> None:
    for runs in (1, 2):
        lab.run(both(lab.sink(lab.first, lab.first), lab.sink(lab.second, lab.second)), maxOffsetsPerTrigger=2)
        assert lab.counts() == (runs * len(RECORDS), runs * len(RECORDS))
        lab.bench.fill(lab.source, RECORDS)


def test_a_call_that_failed_may_be_repeated_in_its_batch(lab: Lab) -> None:
    failures = iter([RuntimeError("once")])

    def fail_once(step: str, batch_id: int) -> None:
        if (step, batch_id) == ("AUDIT", 0) and (failure := next(failures, None)):
            raise failure

    sink = lab.sink(lab.first, lab.first, on_step=fail_once)

    def write(frame: DataFrame, batch_id: int) -> None:
        try:
            sink(frame, batch_id)
        except RuntimeError:
            sink(frame, batch_id)

    lab.run(write)
    assert lab.counts() == (len(RECORDS), 0)
    assert next(failures, None) is None


def test_a_batch_that_comes_again_in_the_next_run_is_skipped(lab: Lab) -> None:
    """Spark has not noted that it is done, as after a crash behind the commit."""
    sink = lab.sink(lab.first, lab.first)
    lab.run(sink)
    for name in ("0", ".0.crc"):
        (lab.bench.checkpoint / "commits" / name).unlink()
    lab.run(sink)
    assert sink.last is not None
    assert not sink.last.written
    assert lab.counts() == (len(RECORDS), 0)


def test_at_least_once_writes_whatever_comes(lab: Lab) -> None:
    sinks = [lab.sink(topic, lab.first, guarantee="at_least_once") for topic in (lab.first, lab.second)]
    lab.run(both(*sinks))
    assert lab.counts() == (len(RECORDS), len(RECORDS))
