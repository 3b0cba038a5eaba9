"""The weaker guarantees do what they say: a driver that dies between records and offsets repeats a batch, or loses one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from onceflow.transaction import driver, writing
from onceflow.transaction.requests import Requests
from onceflow.transaction.streaming_query import arrow_batches
from onceflow.transaction.writing import BatchWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from tests.conftest import Workbench

RECORDS = [(f"k{number % 5}", str(number)) for number in range(60)]


class Died(Exception):
    """The driver's death."""


def die(*arguments: object, **options: object) -> None:
    raise Died


def counts(bench: Workbench, target: str) -> Counter[tuple[str, str]]:
    return Counter(((m.key() or b"").decode(), (m.value() or b"").decode()) for m in bench.read(target))


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_without_a_failure_every_record_is_there_once(guarantee: str, bench: Workbench) -> None:
    source, target = bench.topic(2), bench.topic(2)
    bench.fill(source, RECORDS)
    bench.run(source, target, {"guarantee": guarantee})
    assert counts(bench, target) == Counter(RECORDS)


@pytest.mark.parametrize(
    ("guarantee", "dies_in", "times"),
    [
        ("at_least_once", (Requests, "commit_offsets"), 2),  # records are written, offsets are not: written again
        ("at_most_once", (BatchWriter, "write"), 0),  # progress is committed, records are not written: never again
        ("exactly_once", (BatchWriter, "write"), 1),
    ],
)
def test_a_driver_that_dies_between_records_and_offsets(
    guarantee: str, dies_in: tuple[type, str], times: int, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = bench.topic(2), bench.topic(2)
    bench.fill(source, RECORDS)
    with monkeypatch.context() as patched:
        patched.setattr(*dies_in, die)
        with pytest.raises(Exception, match="FOREACH_BATCH"):
            bench.run(source, target, {"guarantee": guarantee})
    bench.run(source, target, {"guarantee": guarantee})
    assert counts(bench, target) == Counter({record: times for record in RECORDS if times})


@pytest.mark.parametrize(
    ("guarantee", "told", "comes_again"),
    [
        ("exactly_once", "nothing of the batch is visible", True),
        ("at_least_once", "of the failed batch all, a part or nothing may be visible; the next start writes all", True),
        ("at_most_once", "the batch is lost, but for what may be visible of it: its progress is committed", False),
    ],
)
def test_a_record_that_is_too_large_tells_what_becomes_of_its_batch(
    guarantee: str, told: str, comes_again: bool, bench: Workbench
) -> None:
    source, target = bench.topic(1), bench.topic(1, config={"max.message.bytes": "20000"})
    bench.fill(source, RECORDS)
    sink = {"guarantee": guarantee, "compression": "none"}
    with pytest.raises(Exception, match=rf"(?s)RECORD_TOO_LARGE.*split the record; {told}"):
        bench.run(source, target, sink, transform=lambda lines: lines.selectExpr("key", "repeat('x', 30000) as value"))
    bench.run(source, target, sink)
    assert counts(bench, target) == Counter(RECORDS if comes_again else [])


def test_at_most_once_loses_no_batch_to_a_first_guess_of_its_size(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It seems to fit the driver, which finds out when a part is there: that was sent, and the rest lost, without any crash."""
    source, target = bench.topic(4), bench.topic(2)
    bench.fill(source, RECORDS)
    monkeypatch.setattr(writing, "HELD_BYTES", 1)
    monkeypatch.setattr(driver, "HELD_BYTES", 1)
    tried: list[int] = []

    def outgrown(frame: DataFrame, columns: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        tried.append(len(tried))
        for number, batch in enumerate(arrow_batches(frame, columns)):
            if number == 1:
                raise RuntimeError("Total size of serialized results is bigger than spark.driver.maxResultSize")
            yield batch

    monkeypatch.setattr(writing, "arrow_batches", outgrown)
    bench.run(source, target, {"guarantee": "at_most_once"})
    assert tried == [0]
    assert counts(bench, target) == Counter(RECORDS)
