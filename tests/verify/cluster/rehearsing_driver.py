"""A driver that rehearses a plan, as a standby does, and prints as JSON how many tasks each executor ended that is there.

It says when it has rehearsed. Where a line comes on its standard input then, it waits until it has to rehearse again, says that
it is cold and how many executors it has, and does.
Arguments: the plan, master, its settings as JSON, scratch directory. A program of its own, because a process can have one Spark
session.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession

from onceflow.config import load
from onceflow.pipeline.cluster import connect
from onceflow.pipeline.rehearsal import Rehearsal
from onceflow.pipeline.runner import session


class _Failing(logging.Handler):
    """A rehearsal that fails is only noted."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.exit(record.getMessage())


def main(plan: str, master: str, settings: str, scratch: str) -> None:
    file = load(Path(plan), {})
    file.plan.spark.update({"master": master, **json.loads(settings)})
    logging.getLogger("onceflow.pipeline").addHandler(_Failing(logging.INFO))
    logging.getLogger("onceflow.pipeline").setLevel(logging.INFO)
    spark = session(file, "error", Path(scratch))
    enough = threading.Event()
    rehearsal = Rehearsal(file, spark, connect(file, lambda _: None), Path(scratch), enough)
    rehearsal.run()
    print("rehearsed", flush=True)
    if sys.stdin.readline():
        rehearsal.keep(lambda: print("cold", len(tasks_of(spark)) - 1, flush=True), enough.set)
    print(json.dumps(tasks_of(spark)))
    spark.stop()


def tasks_of(spark: SparkSession) -> dict[str, int]:
    """How many tasks each executor has ended, the driver among them."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    each = [executors.apply(number) for number in range(executors.size())]
    return {executor.id(): executor.completedTasks() for executor in each}


if __name__ == "__main__":
    main(*sys.argv[1:])
