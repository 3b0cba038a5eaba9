"""Who may write on an executor: the first attempt of a task, and nobody after it. Whoever may not says so, and raises nothing."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from onceflow.transaction import executor_path
from onceflow.transaction.failures import AttemptFailed
from onceflow.transaction.messages import Identity
from onceflow.transaction.producer import Target

Attempt = Callable[[int], None]
WRITE = executor_path._Write(Target(Identity(1, 0), "any", 2), {"bootstrap_servers": ["127.0.0.1:9"]}, 60.0)
"""Nobody listens there."""


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """Makes this process the worker of such an attempt of task 3; behind the test it may be a driver again."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    context = TaskContext._getOrCreate()

    def make(number: int) -> None:
        context._attemptNumber, context._partitionId = number, 3

    return make


def written(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in WRITE(batches) for row in batch.to_pylist()]


def a_chunk() -> pa.RecordBatch:
    raise AssertionError("a chunk was taken")


def untouched() -> Iterator[pa.RecordBatch]:
    yield a_chunk()


def test_the_first_attempt_of_a_writer_may_write(attempt: Attempt) -> None:
    attempt(0)
    executor_path._refuse_second_attempt()


@pytest.mark.parametrize("number", [1, 2])
def test_only_the_first_attempt_of_a_writer_may_write(number: int, attempt: Attempt) -> None:
    attempt(number)
    with pytest.raises(AttemptFailed, match=rf"task 3, attempt {number}.*only the first attempt may write"):
        executor_path._refuse_second_attempt()


def test_a_later_attempt_takes_no_chunk_and_reports(attempt: Attempt) -> None:
    """Raised, Spark would run the task once more, and in the end say in its own words that the job failed."""
    attempt(1)
    (row,) = written(untouched())
    error = pickle.loads(row.pop("error"))
    assert isinstance(error, AttemptFailed)
    assert "only the first attempt may write" in str(error)
    assert row == {"topic": None, "partition": None, "count": None}


def test_the_first_attempt_tells_what_was_acknowledged(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt(0)
    monkeypatch.setattr(executor_path._Write, "_write", lambda self, batches: {("out", 5): 7})
    assert written(untouched()) == [{"topic": "out", "partition": 5, "count": 7, "error": None}]


def test_what_the_first_attempt_fails_by_is_reported_and_not_raised(attempt: Attempt) -> None:
    attempt(0)
    (row,) = written(untouched())
    assert isinstance(pickle.loads(row["error"]), AssertionError)


def test_a_writer_without_chunks_opens_no_connection(attempt: Attempt) -> None:
    attempt(0)
    assert written(iter([])) == []
