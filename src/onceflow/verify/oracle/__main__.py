"""``python -m onceflow.verify.oracle PLAN CHECKPOINT SERVERS RESULT``: what a run must have written, as files in RESULT.

Lives in a process group of its own with Spark's JVM, and kills that when its standard input ends, because the caller has
ended in whatever way.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from onceflow.broker.java_tool import FAST_START
from onceflow.config import PlanFile, load
from onceflow.kafka.settings import ClusterSettings
from onceflow.session import NO_CHANGELOGS, full_names, spark_session
from onceflow.verify.oracle.answer import replayed
from onceflow.verify.oracle.how_far import note, progress_beside

_STATES = 10
"""Of so many batches; only that of the newest is ever gone on from, and each start lists all there are (``Replay._forget``)."""
_SOCKET_DIRECTORY_BYTES = 60  # as in session.py


def main(arguments: list[str] | None = None) -> int:
    """Replays and writes the result. Whatever goes wrong is raised: the caller shows the log."""
    parser = argparse.ArgumentParser(prog="python -m onceflow.verify.oracle", description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("result", type=Path)
    parser.add_argument("--committed", default="", help="topic:partition:offset,... of the pipeline's group")
    chosen = parser.parse_args(arguments)
    threading.Thread(target=_end_with_caller, daemon=True).start()
    # In the caller's scratch, which goes when this process group is gone: the JVM outlives Python, and may still write.
    with tempfile.TemporaryDirectory(prefix="spark-", dir=Path.cwd(), ignore_cleanup_errors=True) as scratch:
        _answer(chosen, Path(scratch))
    return 0


def _end_with_caller() -> None:
    # Not through sys.stdin: the interpreter cannot end while a thread holds its buffer.
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


def _answer(chosen: argparse.Namespace, scratch: Path) -> None:
    settings = ClusterSettings.of(chosen.bootstrap_servers)
    file = load(chosen.plan, {})
    spark = session(file, scratch)
    positions = _positions(chosen.committed)
    on_batch = partial(note, progress_beside(chosen.result))
    replayed(file, spark, settings, chosen.checkpoint, scratch / "replay", positions, on_batch).save(chosen.result)
    spark.stop()


def session(file: PlanFile, scratch: Path) -> SparkSession:
    """A small and quick Spark, with the plan's own settings: its jobs are tiny."""
    return spark_session("onceflow-oracle", config=settings(file.plan.spark, scratch), log_level="error")


def settings(given: Mapping[str, str], scratch: Path) -> dict[str, object]:
    """Those of the plan, ``given`` with or without ``spark.`` before the name, and over them what makes it small and quick."""
    own = full_names(given)
    own.pop("spark.master", None)
    return {
        **own,
        "spark.driver.extraJavaOptions": f'{" ".join(FAST_START)} -XX:-UsePerfData "-Djava.io.tmpdir={scratch}"',
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": scratch / "warehouse",
        "spark.sql.codegen.wholeStage": False,
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.streaming.minBatchesToRetain": _STATES,
        **NO_CHANGELOGS,
        "spark.sql.streaming.kafka.useDeprecatedOffsetFetching": False,  # its consumers would join the group of their source
        "spark.python.unix.domain.socket.enabled": len(os.fsencode(scratch)) <= _SOCKET_DIRECTORY_BYTES,
    }


def _positions(text: str) -> dict[tuple[str, int], int]:
    parts = [entry.split(":") for entry in text.split(",") if entry]
    return {(topic, int(partition)): int(offset) for topic, partition, offset in parts}


if __name__ == "__main__":
    sys.exit(main())
