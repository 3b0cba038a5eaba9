"""The driver in a process of its own: ``python -m onceflow.pipeline.driver_process <descriptor of its connection>``.

It warms up, says so, and runs the plan when it is told to. ``onceflow.pipeline.standby`` has the other end and the words.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import signal
import sys
import threading
import warnings
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from onceflow.errors import OnceflowError
from onceflow.pipeline.control import Control, StopAsked
from onceflow.pipeline.standby import PULSE_S, Failed, Go, Prepare, Pulse, Ready, Triggered
from onceflow.transaction.progress import OnMismatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(descriptor: int) -> int:
    """Serves one run; gives the exit code."""
    # PySpark warns of the pandas that it finds installed, and logs each analysis error with its stack.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    os.set_inheritable(descriptor, False)
    parent = _Parent(Connection(descriptor))
    try:
        _serve(parent)
    except OnceflowError as error:
        parent.say(Failed(error))
        return 1
    return 0


class _Parent:
    """Whoever started this process. Its silence ends it, see ``onceflow.pipeline.standby``."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._saying = threading.Lock()
        self._going: queue.SimpleQueue[Go] = queue.SimpleQueue()
        self.is_asked = threading.Event()  # to run, or to end
        self.control = Control()
        self.prepared: Prepare = connection.recv()
        self.spark: SparkSession | None = None
        for work in (self._listen, self._beat):
            threading.Thread(target=work, name=f"onceflow{work.__name__}", daemon=True).start()

    def say(self, message: object) -> None:
        """To the parent, from any thread. One that is gone is noticed where it is listened to."""
        with self._saying, contextlib.suppress(OSError):
            self._connection.send(message)

    def wait_for_go(self) -> Go:
        return self._going.get()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._connection.recv()
                if isinstance(message, StopAsked):
                    self.control.inbox.put(message)
                else:
                    self._going.put(message)
                self.is_asked.set()
        shutil.rmtree(self.prepared.scratch, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    def _beat(self) -> None:
        """A JVM that is paused does not answer, and then there is no pulse."""
        pause = threading.Event()
        with contextlib.suppress(Exception):
            while not pause.wait(PULSE_S):
                if self.spark is not None:
                    assert self.spark._jvm is not None  # noqa: SLF001  the shortest question to the JVM
                    self.spark._jvm.System.nanoTime()  # noqa: SLF001
                self.say(Pulse())


def _serve(parent: _Parent) -> None:
    from onceflow.pipeline.rehearsal import rehearse
    from onceflow.pipeline.runner import run, session

    file, settings, spark_log, scratch = (
        parent.prepared.file, parent.prepared.settings, parent.prepared.spark_log, parent.prepared.scratch
    )  # fmt: skip
    parent.spark = session(file, spark_log, scratch)
    rehearse(file, parent.spark, settings, scratch, parent.is_asked)
    parent.say(Ready())
    go = parent.wait_for_go()
    mode = _still_to_do(go, parent.prepared)
    try:
        run(
            file, tell=parent.say, control=parent.control, mode=mode, spark_log=spark_log, settings=settings,
            triggered=lambda: parent.say(Triggered()),
        )  # fmt: skip
    finally:
        parent.spark.stop()


def _still_to_do(go: Go, prepared: Prepare) -> OnMismatch:
    """The mode, unless the driver before has done it::

    it is told to restart, begins anew and commits its first batch
    it is killed before it can tell of that batch; told to restart once more, we would write all of it again
    """
    if go.mode is OnMismatch.REFUSE or not go.begun:
        return go.mode
    from onceflow.transaction.committed import read_committed

    progress = read_committed(prepared.file.plan.name, prepared.settings).progress
    return OnMismatch.REFUSE if progress is not None and progress.query_id == go.begun else go.mode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
