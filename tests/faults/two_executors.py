"""A driver with two real executors; the first writer task that has sent records kills its executor with SIGKILL.

Arguments: bootstrap servers, source topic, target topic, marker file, checkpoint. A program of its own, because a process can
have one Spark session, and the tests' runs its tasks in the driver.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa

from onceflow import KafkaSink, spark_session
from onceflow.session import SOURCE_DEFAULTS
from onceflow.transaction import executor_path
from onceflow.transaction.messages import Counts

EXECUTORS = {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}


def deadly(marker: Path) -> type:
    class DeadlyWrite(executor_path._Write):  # of this program, so that it is pickled by value
        def _write(self, batches: Iterable[pa.RecordBatch]) -> Counts:
            return executor_path._Write._write(self, kill_after_first(batches))

    def kill_after_first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if not marker.exists():
                marker.touch()
                os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL)  # worker, its daemon, the executor

    return DeadlyWrite


def main(servers: str, source: str, target: str, marker: str, checkpoint: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    spark = spark_session("two executors", master="local-cluster[2,1,1024]", config=EXECUTORS)
    setattr(executor_path, "_Write", deadly(Path(marker)))  # noqa: B010  a class of the module, replaced
    sink = KafkaSink(target, name=target, bootstrap_servers=servers, driver_bytes=0)
    lines = spark.readStream.format("kafka").options(**SOURCE_DEFAULTS).option("kafka.bootstrap.servers", servers)
    lines = lines.option("subscribe", source).option("startingOffsets", "earliest")
    writer = lines.load().select("key", "value").writeStream.foreachBatch(sink).trigger(availableNow=True)
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()
    sink.close()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
