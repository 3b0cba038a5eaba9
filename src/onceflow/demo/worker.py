"""A process that runs the pipeline: ``python -m onceflow.demo.worker <scratch directory>``.

It starts Spark, says that it is ready and waits for its assignment, so that it can take over at once from one that was
killed. It lives in a process group of its own together with Spark's JVM. When its standard input ends, because the demo
has ended in whatever way, it kills that group, itself included.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from onceflow import KafkaSink
from onceflow.broker.java_tool import FAST_START
from onceflow.demo.assignment import Assignment, Message, Moment, Pipeline, Told
from onceflow.demo.builtin_sink import BuiltInSink
from onceflow.demo.moments import Moments
from onceflow.demo.pipeline import ForeachBatch, start
from onceflow.demo.topics import OUTPUTS
from onceflow.first_line import first_line_of
from onceflow.session import spark_session

# A socket's path is limited to 103 bytes (macOS), and Spark's names take 43 of them.
_SOCKET_DIRECTORY_BYTES = 60

Commands = queue.SimpleQueue[str]


def main(scratch: Path) -> int:
    """Run one assignment; gives the exit code."""
    commands: Commands = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    try:
        spark = _session(scratch)
        _tell(Message(Told.READY))
        _run(spark, Assignment.of_line(commands.get()), commands, scratch)
    except Exception as error:
        _tell(Message(Told.FAILED, error=f"{type(error).__name__}: {first_line_of(error)}"))
        raise
    _tell(Message(Told.DONE))
    spark.stop()
    return 0


def _read_commands(commands: Commands) -> None:
    # Not through sys.stdin: the interpreter cannot end while a thread holds its buffer.
    with os.fdopen(os.dup(0), encoding="utf-8") as lines:
        for line in lines:
            commands.put(line)
    os.killpg(0, signal.SIGKILL)


def _tell(message: Message) -> None:
    print(message.as_line(), flush=True)


def _session(scratch: Path) -> SparkSession:
    """A small and quick Spark: the jobs are tiny, and code compiled for them would not live long enough to pay."""
    return spark_session(
        "onceflow-demo",
        config={
            "spark.driver.extraJavaOptions": f'{" ".join(FAST_START)} -XX:-UsePerfData "-Djava.io.tmpdir={scratch}"',
            "spark.local.dir": scratch,
            "spark.sql.warehouse.dir": scratch / "warehouse",
            "spark.sql.codegen.wholeStage": False,
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.python.unix.domain.socket.enabled": len(os.fsencode(scratch)) <= _SOCKET_DIRECTORY_BYTES,
        },
    )


def _run(spark: SparkSession, assignment: Assignment, commands: Commands, scratch: Path) -> None:
    def wait_for_go() -> None:
        commands.get()

    moments = Moments(assignment.hold, _tell, wait_for_go)
    sink = _sink(assignment, moments, scratch)

    def write(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        moments(Moment.COMMITTED, batch_id)

    output = OUTPUTS[assignment.pipeline]
    query = start(spark, assignment.bootstrap_servers, assignment.checkpoint, output, write)
    query.awaitTermination()


def _sink(assignment: Assignment, moments: Moments, scratch: Path) -> ForeachBatch:
    servers = assignment.bootstrap_servers
    if assignment.pipeline is Pipeline.ONCEFLOW:
        return KafkaSink(name="demo", bootstrap_servers=servers, on_step=moments)
    return BuiltInSink(servers, moments, scratch)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
