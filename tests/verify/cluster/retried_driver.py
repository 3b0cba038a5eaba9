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
from pyspark.sql import DataFrame

from onceflow import spark_session

ROWS, TASKS = 100, 2
_BYTES = 10_000  # so that what a task has made leaves the buffer between its Python and Spark
_WAIT_S = 800.0
_LOOK_AGAIN_S = 0.05

_Write = Callable[[DataFrame, str, str, Path], None]


def by_sparks_own_sink(rows: DataFrame, servers: str, topic: str, gate: Path) -> None:
    def standing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in batches for number in batch["id"].to_pylist()):
            if _is_half(number):
                _wait_for(gate)
            yield pa.RecordBatch.from_pydict({"key": [str(number)], "value": [str(number).ljust(_BYTES)]})

    made = rows.mapInArrow(standing, "key string, value string")
    made.write.format("kafka").options(**{"kafka.bootstrap.servers": servers, "topic": topic}).save()


def by_transactions_of_tasks(rows: DataFrame, servers: str, topic: str, gate: Path) -> None:
    """Each Python worker commits by itself: one half of its task's rows, and then the other.

    Its transactional id is the task's (``transactional_id``), so a task that is run again fences the attempt before.
    """

    def write(task: Iterable[Any]) -> None:
        from confluent_kafka import Producer  # here, for it goes through no pickle
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number_of_task = context.partitionId()
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": transactional_id(topic, number_of_task),
                "transaction.timeout.ms": int(_WAIT_S * 1000),  # nobody but the fault ends it
            }
        )
        producer.init_transactions(_WAIT_S)
        producer.begin_transaction()
        for (number,) in task:
            if _is_half(number):
                producer.commit_transaction(_WAIT_S)
                producer.begin_transaction()
            producer.produce(topic, str(number), key=str(number))
            if _is_half(number):
                producer.flush(_WAIT_S)
                standing(gate, number_of_task).touch()
                _wait_for(gate)
        producer.commit_transaction(_WAIT_S)

    rows.foreachPartition(write)


def transactional_id(topic: str, task: int) -> str:
    return f"{topic}-{task}"


def standing(gate: Path, task: int) -> Path:
    """Is there when a worker's first transaction is committed, and its second one open."""
    return gate.with_name(f"task-{task}-stands")


def _is_half(number: int) -> bool:
    return number % (ROWS // TASKS) == ROWS // TASKS // 2


def _wait_for(gate: Path) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not gate.exists() and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)


WAYS: dict[str, _Write] = {each.__name__: each for each in (by_sparks_own_sink, by_transactions_of_tasks)}


def main(way: str, master: str, settings: str, servers: str, topic: str, gate: str) -> None:
    spark = spark_session("retried", master=master, config=json.loads(settings))
    WAYS[way](spark.range(0, ROWS, 1, TASKS).toDF("id"), servers, topic, Path(gate))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
