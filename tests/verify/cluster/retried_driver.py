"""A driver on a Spark cluster whose tasks write through Spark's own sink, and stand in the middle of that until a file comes.

Arguments: master, its settings as JSON, bootstrap servers, topic, that file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from onceflow import spark_session

ROWS, TASKS = 100, 2
_BYTES = 10_000  # so that what a task has made leaves the buffer between its Python and Spark
_WAIT_S = 800.0
_LOOK_AGAIN_S = 0.05


def main(master: str, settings: str, servers: str, topic: str, gate: str) -> None:
    def standing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in batches for number in batch["id"].to_pylist()):
            if number % (ROWS // TASKS) == ROWS // TASKS // 2:
                deadline = time.monotonic() + _WAIT_S
                while not Path(gate).exists() and time.monotonic() < deadline:
                    time.sleep(_LOOK_AGAIN_S)
            yield pa.RecordBatch.from_pydict({"key": [str(number)], "value": [str(number).ljust(_BYTES)]})

    spark = spark_session("retried", master=master, config=json.loads(settings))
    rows = spark.range(0, ROWS, 1, TASKS).mapInArrow(standing, "key string, value string")
    rows.write.format("kafka").options(**{"kafka.bootstrap.servers": servers, "topic": topic}).save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
