"""A driver on a Spark cluster whose tasks write without a defence, and stand in the middle of that until a file comes.

Arguments: the way they write, master, its settings as JSON, bootstrap servers, topic, that file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from onceflow import spark_session

ROWS, TASKS = 100, 2
_TIMEOUT_S = 30  # of a task's own transactions: the fault comes within it, and waits until it is over
_BYTES = 10_000  # so that what a task has made leaves the buffer between its Python and Spark
_WAIT_S = 800.0
_LOOK_AGAIN_S = 0.05

_Write = Callable[[SparkSession, str, str, Path], None]


def by_sparks_own_sink(spark: SparkSession, servers: str, topic: str, gate: Path) -> None:
    _by_sparks_own_sink(spark, servers, topic, lambda: _wait_for(gate))


def by_sparks_own_sink_with_a_slow_attempt(spark: SparkSession, servers: str, topic: str, gate: Path) -> None:
    """The first attempt of the last task waits alone; where Spark speculates, another one overtakes it."""

    def wait() -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if (context.partitionId(), context.attemptNumber()) == (TASKS - 1, 0):
            _wait_for(gate)

    _by_sparks_own_sink(spark, servers, topic, wait)


def _by_sparks_own_sink(spark: SparkSession, servers: str, topic: str, wait: Callable[[], None]) -> None:
    """Each task waits before the second half of its rows."""

    def waiting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in batches for number in batch["id"].to_pylist()):
            if number % (ROWS // TASKS) == ROWS // TASKS // 2:
                wait()
            yield pa.RecordBatch.from_pydict({"key": [str(number)], "value": [str(number).ljust(_BYTES)]})

    rows = spark.range(0, ROWS, 1, TASKS).mapInArrow(waiting, "key string, value string")
    rows.write.format("kafka").options(**{"kafka.bootstrap.servers": servers, "topic": topic}).save()


def by_its_own_transactions(spark: SparkSession, servers: str, topic: str, gate: Path) -> None:
    """A task whose Python worker commits by itself: one half of the rows, and then the other.

    The topic's name is its transactional id, so a task that is run again fences the attempt before. Another task keeps the
    other executor busy: the first one is run again where it was.
    """

    def write(task: Iterable[Any]) -> None:
        from confluent_kafka import Producer  # here, for it goes through no pickle
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() > 0:
            _wait_for(gate)
            return
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": topic,
                "transaction.timeout.ms": 1000 * _TIMEOUT_S,
            }
        )
        producer.init_transactions(_WAIT_S)
        producer.begin_transaction()
        for (number,) in task:
            if number == ROWS // 2:
                producer.commit_transaction(_WAIT_S)
                producer.begin_transaction()
            producer.produce(topic, str(number), key=str(number))
            if number == ROWS // 2:
                producer.flush(_WAIT_S)
                _sign(gate, context.attemptNumber()).touch()
                _wait_for(gate)
        producer.commit_transaction(_WAIT_S)

    spark.range(0, TASKS * ROWS, 1, TASKS).foreachPartition(write)


def attempts(gate: Path) -> int:
    """How many of its attempts have committed the first half so far, and opened their second transaction."""
    return sum(1 for _ in gate.parent.glob(_sign(gate, "*").name))


def _sign(gate: Path, attempt: int | str) -> Path:
    return gate.with_name(f"attempt-{attempt}-waits")


def _wait_for(gate: Path) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not gate.exists() and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)


WAYS: dict[str, _Write] = {
    each.__name__: each
    for each in (by_sparks_own_sink, by_sparks_own_sink_with_a_slow_attempt, by_its_own_transactions)
}


def main(way: str, master: str, settings: str, servers: str, topic: str, gate: str) -> None:
    spark = spark_session("retried", master=master, config=json.loads(settings))
    WAYS[way](spark, servers, topic, Path(gate))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
