"""One process of an engine: started, listened to, ordered, paused, killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from onceflow.errors import VerificationError
from onceflow.verify.cluster import processes
from onceflow.verify.engines.lines import Message, Order
from onceflow.verify.private import private_environment
from onceflow.verify.running.hearing import Hearing

_END_TIMEOUT_S = 120
_LOG_LINES = 15

# Stops a process, or a group by its number with a minus, and lets it go on as soon as its own input ends: also when we die
# meanwhile. Nobody else would ever wake it again, and it ends by itself once it is awake.
_STOPPER = 'kill -STOP "$1" && echo stopped && read -r _; kill -CONT "$1"'


class EngineProcess:
    """One engine process and its JVM, in a process group of their own.

    ``heard`` is called with each of its messages, on a thread of this process's own, and with None when all of the group
    is gone. ``scratch`` is its own directory and goes with it; ``log`` gets its standard error, and stays.
    """

    def __init__(
        self, command: Sequence[str], plan: Path, scratch: Path, log: Path, heard: Callable[[Message | None], None]
    ) -> None:
        self.log = log
        self._heard = heard
        self._scratch = scratch
        self._stopper: subprocess.Popen[bytes] | None = None
        self._saying = threading.Lock()
        scratch.mkdir(parents=True)
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, str(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=scratch,
                env=_environment(scratch),
                # A group of its own, so that driver and JVM are killed at once, and Ctrl-C reaches the supervisor alone.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._hearing = Hearing(self._process.stdout.fileno(), heard)
        self._reader = threading.Thread(target=self._read, name=f"onceflow-engine-{self.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def jvm(self) -> int | None:
        """The pid of its JVM; None if it has none, or none yet."""
        return next(iter(processes.jvms(self.pid)), None)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def is_paused(self) -> bool:
        return self._stopper is not None

    def order(self, order: Order) -> bool:
        """Tells it something; False if it is gone."""
        assert self._process.stdin is not None
        try:
            with self._saying:
                self._process.stdin.write(f"{order.as_line()}\n".encode())
                self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        return True

    def pause(self, *, alone: bool = False) -> bool:
        """SIGSTOP to the whole group, or to the process ``alone``; when it returns, all that was told before has been heard.

        False: it is gone.
        """
        stopper = subprocess.Popen(
            ["/bin/sh", "-c", _STOPPER, "sh", str(self.pid if alone else -self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert stopper.stdout is not None
        stopped = stopper.stdout.readline()
        stopper.stdout.close()
        self._stopper = stopper
        if not stopped:
            self.resume()
            return False
        # The signal is sent; a process that waits for a processor stops when it gets one, and until then it may tell more.
        with contextlib.suppress(ChildProcessError):  # it has ended, and was waited for
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.hear()
        return True

    def hear(self) -> None:
        """All that it has said already is heard when this returns."""
        self._hearing.up_to_now()

    def resume(self) -> None:
        """SIGCONT, if it is paused."""
        stopper, self._stopper = self._stopper, None
        if stopper is not None:
            assert stopper.stdin is not None
            stopper.stdin.close()
            stopper.wait(_END_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL to the whole group, and waits until all of it is gone. Once is enough, twice is no mistake.

        ::

            leader   a script that has started the engine behind it: it ends
            engine   lives on, and has the output open that it was given: somebody of the group is there
        """
        if self.is_running or self._reader.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.reap()

    def kill_alone(self) -> None:
        """SIGKILL to the process, and to nothing else of its group; when it returns, all that it had told has been heard."""
        self._process.kill()
        self._process.wait(_END_TIMEOUT_S)
        self.hear()

    def reap(self) -> None:
        """Waits for the end of one that ends by itself, and cleans up after it. Raises VerificationError if some of it stays."""
        try:
            self._await_end()
        finally:  # whoever is left ends by itself now, if it listens: nobody watches it any more
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _await_end(self) -> None:
        self._process.wait(_END_TIMEOUT_S)
        self.resume()
        # The JVM holds the same output: its end is the end of both.
        self._reader.join(_END_TIMEOUT_S)
        if self._reader.is_alive():
            raise VerificationError(
                f"processes of the group {self.pid} are still there {_END_TIMEOUT_S} s after its end"
            )

    def said(self) -> str:
        """The end of its log, to be shown."""
        tail = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "".join(f"\n  {line}" for line in tail) or " (nothing)"

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            self._hearing.until_the_end()
        self._heard(None)


def _environment(scratch: Path) -> dict[str, str]:
    """Without the user's places, and with every temporary file in ``scratch``."""
    inherited = private_environment(scratch)
    own = {
        "TMPDIR": str(scratch),
        "SPARK_LOCAL_DIRS": str(scratch),
        "JAVA_TOOL_OPTIONS": f"{inherited.get('JAVA_TOOL_OPTIONS', '')} '-Djava.io.tmpdir={scratch}'".strip(),
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:-UsePerfData",
    }
    return {**inherited, **own}
