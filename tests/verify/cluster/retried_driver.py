"""A driver on a Spark cluster whose tasks write to Kafka, and stand in the middle of that until a file comes. Nothing makes
them exactly-once: what is run again is written again.

Arguments: how they write (``WAYS``), master, its settings as JSON, bootstrap servers, topic, that file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer
from pyspark import TaskContext
from pyspark.sql import DataFrame

from onceflow import spark_session

ROWS, TASKS = 100, 2
_HALF = ROWS // TASKS // 2
_BYTES = 10_000  # so that what a task has made leaves the buffer between its Python and Spark
_WAIT_S = 800.0
_LOOK_AGAIN_S = 0.05


def through_sparks_own_sink(rows: DataFrame, servers: str, topic: str, gate: str) -> None:
    """The JVM writes, what a Python worker gives it."""

    def standing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in batches for number in batch["id"].to_pylist()):
            if number % (ROWS // TASKS) == _HALF:
                _stand_until(gate)
            yield pa.RecordBatch.from_pydict({"key": [str(number)], "value": [str(number).ljust(_BYTES)]})

    given = rows.mapInArrow(standing, "key string, value string")
    given.write.format("kafka").options(**{"kafka.bootstrap.servers": servers, "topic": topic}).save()


def in_transactions_of_each_task(rows: DataFrame, servers: str, topic: str, gate: str) -> None:
    """A Python worker writes. Task n, with the transactional id ``<topic>-n``, commits half of its records, then the others."""

    def writing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [number for batch in batches for number in batch["id"].to_pylist()]
        context = TaskContext.get()
        assert context is not None
        producer = Producer({"bootstrap.servers": servers, "transactional.id": f"{topic}-{context.partitionId()}"})
        producer.init_transactions()
        for half, stands in ((numbers[:_HALF], False), (numbers[_HALF:], True)):
            producer.begin_transaction()
            for number in half:
                producer.produce(topic, str(number))
            producer.flush()
            if stands:
                _stand_until(gate)
            producer.commit_transaction()
        yield from ()

    rows.mapInArrow(writing, "nothing string").write.format("noop").mode("overwrite").save()


def _stand_until(gate: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not Path(gate).exists() and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)


WAYS = {each.__name__: each for each in (through_sparks_own_sink, in_transactions_of_each_task)}


def main(way: str, master: str, settings: str, servers: str, topic: str, gate: str) -> None:
    spark = spark_session("retried", master=master, config=json.loads(settings))
    WAYS[way](spark.range(0, ROWS, 1, TASKS), servers, topic, gate)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
