"""A driver process that is started ahead and waits: Python imported, Spark up, the plan rehearsed, nothing of Kafka held.

Taking over is one message to a process that is ready. What makes it safe is not this file but fencing: two drivers at once
are never wrong, only one of them can commit. So a takeover needs no proof that the one before is dead::

    the driver is paused (SIGSTOP, a swapping machine) in the middle of its batch
    the standby is told to run: InitProducerId aborts the open transaction at once, so readers go on
    the paused one wakes up and writes: refused; it commits: refused; it ends with Fenced

A driver process lives as long as the connection to whoever started it. When that ends, because its parent was killed or
asked to end at once, it kills itself and its JVM, as in a crash: nobody would see what it does or end it any more, and a
service manager may start the next supervisor right away. A batch that was open stays invisible, and the next start finishes
it. (Not PR_SET_PDEATHSIG: it tells of the end of a thread, and only on Linux.)

Messages are pickled objects on a socket of their own; the standard output stays free for whatever the plan's Java prints.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

from onceflow.config import PlanFile
from onceflow.errors import OnceflowError
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.control import StopAsked
from onceflow.pipeline.events import Event
from onceflow.transaction.progress import OnMismatch


def _safe_path() -> list[str]:
    """With -m alone Python looks for every module in the working directory first::

        the plan lies beside a queue.py; onceflow run, a script, looks where it lies itself, and runs
        each driver of it takes that for Python's own: it ends at once, and so does the next one

    Left so where onceflow itself is found in there alone.
    """
    with contextlib.suppress(OSError):
        if Path(__file__).parents[2].samefile("."):
            return []
    return ["-P"]


PROGRAM = (sys.executable, *_safe_path(), "-m", "onceflow.pipeline.driver_process")
PULSE_S = 1.0
_END_PATIENCE_S = 10.0
_LOOK_S = 0.05

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepare:
    """The first message to a driver: what it will run. ``scratch`` is a directory of its own, removed by its parent."""

    file: PlanFile
    settings: ClusterSettings
    spark_log: str
    scratch: Path


@dataclass(frozen=True, slots=True)
class Go:
    """Take over.

    ``begun`` is the query that the driver before, with the same ``mode``, began: once that has committed, there is nothing
    left to resume or to restart, and until then it goes on where that one began.
    """

    mode: OnMismatch
    begun: str


@dataclass(frozen=True, slots=True)
class Ready:
    """Warm: from now on a takeover takes no longer than it must."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """Python and the JVM run; said every ``PULSE_S`` seconds."""


@dataclass(frozen=True, slots=True)
class Triggered:
    """A trigger of the query is done, with or without data."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The run ended with this error, and nothing of it goes on; the process ends too, when its Spark has."""

    error: OnceflowError


@dataclass(frozen=True, slots=True)
class Gone:
    """The last word: the process has ended. ``exit_code`` below zero is the signal that ended it."""

    exit_code: int


Said = Event | Ready | Pulse | Triggered | Failed | Gone
Hear = Callable[["WarmDriver", Said], None]


class WarmDriver:
    """One driver process, its JVM included. ``hear`` is called with what it says, on a thread of its own.

    ``go`` may be called at any time, also before it is ready: it then skips what is left of the rehearsal. ``program`` is
    the command that speaks as ``driver_process`` does; its last argument is the descriptor of the connection. Linux, macOS.
    """

    def __init__(
        self,
        file: PlanFile,
        settings: ClusterSettings,
        hear: Hear,
        *,
        spark_log: str = "off",
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._hear = hear
        self._reaping = threading.Lock()
        # Where it fails nothing is left: the last thread that there was may have gone into the process that was started.
        with contextlib.ExitStack() as begun:
            self._scratch = Path(tempfile.mkdtemp(prefix="onceflow-"))
            begun.callback(shutil.rmtree, self._scratch, ignore_errors=True)
            self._connection, theirs = Pipe()
            begun.callback(self._connection.close)
            with theirs:
                self._process = self._start(program, theirs.fileno())
            begun.callback(self._end)
            self._say(Prepare(file, settings, spark_log, self._scratch))
            self._listener = threading.Thread(target=self._listen, name=f"onceflow-driver-{self.pid}", daemon=True)
            self._listener.start()
            begun.pop_all()

    def _start(self, program: Sequence[str], descriptor: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*program, str(descriptor)],
            stdin=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            env={**os.environ, "TMPDIR": str(self._scratch)},
            # A group of its own, so that driver and JVM are killed at once, and Ctrl-C reaches the supervisor alone.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The Python process, and the process group that the JVM is in too."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether it is gone, and nothing is left of it."""
        return not self._listener.is_alive()

    def go(self, mode: OnMismatch = OnMismatch.REFUSE, begun: str = "") -> None:
        """Run the plan now."""
        self._say(Go(mode, begun))

    def stop(self, reason: str) -> None:
        """End after the running batch."""
        self._say(StopAsked(reason))

    def kill(self) -> None:
        """SIGKILL to Python and JVM; does not wait for their end. Once is enough, twice is no mistake."""
        with self._reaping:
            if self._process.returncode is None:
                # macOS denies it where nobody of the group is alive.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it, and wait until all of it is gone; not for ever, as it may be where no signal reaches it."""
        self.kill()
        self._listener.join(2 * _END_PATIENCE_S)

    def _end(self) -> None:
        """Where nobody listens to it: kills what was only just started, and waits for it, but not for ever."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_PATIENCE_S)

    def _say(self, message: object) -> None:
        # A driver that is gone has said so, or is about to.
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def _listen(self) -> None:
        try:
            while True:
                self._hear(self, self._connection.recv())
        except (EOFError, OSError):
            pass
        except Exception:
            log.exception("what the driver (process %d) said cannot be understood: it is ended", self.pid)
        # Its JVM would take seconds to notice that Python is gone, and processor time from the next driver.
        self.kill()
        self._hear(self, Gone(self._reap()))
        self._clean()

    def _reap(self) -> int:
        """Waits for the end, after the kill: a process group whose leader was waited for may be another's."""
        while True:
            # Not held for longer than a look: whoever calls kill() must not wait for a process that does not die.
            with self._reaping:
                exit_code = self._process.poll()
            if exit_code is not None:
                return exit_code
            time.sleep(_LOOK_S)

    def _clean(self) -> None:
        deadline = time.monotonic() + _END_PATIENCE_S
        while self._group_lives() and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        self._forget()

    def _forget(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._connection.close()

    def _group_lives(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True
