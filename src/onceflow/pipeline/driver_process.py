"""The driver in a process of its own: ``python -m onceflow.pipeline.driver_process <descriptor of its connection>``.

It warms up, says so, and runs the plan when it is told to. ``onceflow.pipeline.standby`` has the other end and the words.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceflow.errors import Fenced, OnceflowError
from onceflow.pipeline.control import Control, StopAsked
from onceflow.pipeline.early_fence import EarlyFence, fenced
from onceflow.pipeline.last_driver import lock_of
from onceflow.pipeline.standby import PULSE_S, Failed, Go, Prepare, Pulse, Ready, Triggered
from onceflow.transaction.progress import OnMismatch, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from onceflow.config import Plan
    from onceflow.kafka.settings import ClusterSettings
    from onceflow.pipeline.rehearsal import Rehearsal

log = logging.getLogger(__name__)


def main(descriptor: int, run: Callable[..., object] | None = None) -> int:
    """Serves one run; gives the exit code. ``run`` takes the place of the runner's, and is given what that is."""
    _leave_signals_to_the_parent()
    # PySpark warns of the pandas that it finds installed, and logs each analysis error with its stack.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    os.set_inheritable(descriptor, False)
    parent = _Parent(Connection(descriptor))
    try:
        return _serve(parent, run)
    except OnceflowError as error:
        parent.say(Failed(error))
        return 1


def _leave_signals_to_the_parent() -> None:
    """Whose decision it is how all of this ends::

        a service manager stops the service (systemd, unless told otherwise), or somebody all that is called onceflow
        SIGTERM comes to the supervisor, which asks the driver to end after its batch, and to the driver and its JVM as well
        they would die of it in the middle of that batch, and readers wait until its transaction times out

    What ignores a signal hands that on to what it starts, and a JVM leaves it so. Nobody needs them: the supervisor speaks
    through the connection, and kills.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


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
        self._fence = EarlyFence(self.prepared.file.plan, self.prepared.settings)
        self._lock = lock_of(self.prepared.file, self.prepared.settings)
        self._warm = threading.Event()
        for work in (self._listen, self._beat):
            threading.Thread(target=work, name=f"onceflow{work.__name__}", daemon=True).start()

    def say(self, message: object) -> None:
        """To the parent, from any thread. One that is gone is noticed where it is listened to."""
        with self._saying, contextlib.suppress(OSError):
            self._connection.send(message)

    def wait_for_go(self, rehearsal: Rehearsal) -> Go:
        """Warm: says so, and waits until it is told to run. Meanwhile it stays warm."""
        self._warm.set()
        self.say(Ready())
        rehearsal.keep(self._warm.clear, self._warm.set)
        go = self._going.get()
        self._fence.wait()
        return go

    def _listen(self) -> None:
        """Whatever ends it ends all of this process: told nothing any more it would wait, and take memory, for ever."""
        try:
            while True:
                self._hear(self._connection.recv())
        except (EOFError, OSError):
            pass
        except Exception:
            log.exception("what the supervisor said cannot be done: this driver (process %d) ends", os.getpid())
        finally:
            _end_group(self.prepared.scratch)

    def _hear(self, message: Go | StopAsked) -> None:
        if isinstance(message, StopAsked):
            self.control.inbox.put(message)
        else:
            self._take_over(message)
        self.is_asked.set()

    def _take_over(self, go: Go) -> None:
        """Told to run while it only warms up, it first ends what a driver before left open: one that ran under the same
        supervisor, or that died with its own.
        """
        if not self._warm.is_set():
            self._fence.begin(lambda: bool(go.begun) or self._lock.take_from_dead())
        self._going.put(go)

    def _beat(self) -> None:
        """A JVM that is paused does not answer, and then there is no pulse."""
        pause = threading.Event()
        with contextlib.suppress(Exception):
            while not pause.wait(PULSE_S):
                if self.spark is not None:
                    assert self.spark._jvm is not None  # noqa: SLF001  the shortest question to the JVM
                    self.spark._jvm.System.nanoTime()  # noqa: SLF001
                self.say(Pulse())


def _end_group(scratch: Path) -> None:
    """Ends this process and its JVM, and only then removes their scratch; that takes a process outside of the group::

    the scratch is removed first, in it the local copy of a state store
    the JVM lives for some moments more, in the middle of a checkpoint: it lists the copy, half of which is gone
    it stores that half as the state of the batch, where the next driver finds it
    """
    kill_and_remove = 'kill -s KILL -- "-$0"; rm -rf -- "$1"'
    with contextlib.suppress(OSError):  # no memory, no process: the scratch stays
        subprocess.Popen(
            ["/bin/sh", "-c", kill_and_remove, str(os.getpgrp()), str(scratch)], cwd="/", start_new_session=True
        ).wait()
    os.killpg(0, signal.SIGKILL)


def _serve(parent: _Parent, run: Callable[..., object] | None) -> int:
    from onceflow.pipeline.displaced import told_apart
    from onceflow.pipeline.rehearsal import Rehearsal
    from onceflow.pipeline.runner import end_session, session
    from onceflow.pipeline.runner import run as run_alone

    file, settings, spark_log, scratch = (
        parent.prepared.file, parent.prepared.settings, parent.prepared.spark_log, parent.prepared.scratch
    )  # fmt: skip
    parent.spark = session(file, spark_log, scratch)
    rehearsal = Rehearsal(file, parent.spark, settings, scratch, parent.is_asked)
    rehearsal.run()
    go = parent.wait_for_go(rehearsal)
    mode = _still_to_do(go, parent.prepared)
    try:
        (run or run_alone)(
            file, tell=parent.say, control=parent.control, mode=mode, begun=go.begun, spark_log=spark_log, settings=settings,
            triggered=lambda: parent.say(Triggered()),
        )  # fmt: skip
    except OnceflowError as error:
        # Now: the session takes seconds to end, and somebody is warm who can take over.
        parent.say(Failed(told_apart(error, file.plan, settings) if isinstance(error, Fenced) else error))
        return 1
    finally:
        end_session(parent.spark)
    return 0


def _still_to_do(go: Go, prepared: Prepare) -> OnMismatch:
    """The mode, unless the driver before has done it::

    it is told to restart, begins anew and commits its first batch
    it is killed before it can tell of that batch; told to restart once more, we would write all of it again
    """
    plan = prepared.file.plan
    # At least once has no progress to look at, and perhaps no right to fence.
    if go.mode is OnMismatch.REFUSE or not go.begun or plan.guarantee == "at_least_once":
        return go.mode
    progress = _final_progress(plan, prepared.settings)
    return OnMismatch.REFUSE if progress is not None and progress.query_id == go.begun else go.mode


def _final_progress(plan: Plan, settings: ClusterSettings) -> Progress | None:
    """The committed progress once nothing of the driver before can change it any more::

    it asks for its first commit and is killed; the coordinator has not told the progress group of that yet
    read now, the progress is the old one; a moment later the first batch is committed, and we would begin anew once more

    Fencing ends what was open, as the run does that follows, so that nobody waits for a transaction's timeout.
    """
    with fenced(plan, settings) as requests:
        return requests.read_committed().progress


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
