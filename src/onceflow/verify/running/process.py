"""One process of an engine: started, listened to, ordered, paused, killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from onceflow.verify.engines.lines import Message, Order
from onceflow.verify.private import private_environment
from onceflow.verify.running.group import END_TIMEOUT_S, ProcessGroup
from onceflow.verify.running.hearing import Hearing

_LOG_LINES = 15


class EngineProcess(ProcessGroup):
    """One engine process and its JVM, in a process group of their own.

    ``heard`` is called with each of its messages, on a thread of this process's own, and with None when all of the group
    is gone. ``scratch`` is its own directory and goes with it; ``log`` gets its standard error, and stays. One that ``leads``
    has drivers of its own, and no Spark.
    """

    def __init__(
        self,
        command: Sequence[str],
        plan: Path,
        scratch: Path,
        log: Path,
        heard: Callable[[Message | None], None],
        *,
        leads: bool = False,
    ) -> None:
        self.log = log
        self._heard = heard
        self._scratch = scratch
        self._saying = threading.Lock()
        scratch.mkdir(parents=True)
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, str(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=scratch,
                env=_environment(scratch, leads=leads),
                # A group of its own, so that driver and JVM are killed at once, and Ctrl-C reaches the supervisor alone.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        super().__init__(self._process.pid, Hearing(self._process.stdout.fileno(), heard))
        self._reader = threading.Thread(target=self._read, name=f"onceflow-engine-{self.pid}", daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def order(self, order: Order) -> bool:
        assert self._process.stdin is not None
        try:
            with self._saying:
                self._process.stdin.write(f"{order.as_line()}\n".encode())
                self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        return True

    def _await_stop(self) -> None:
        with contextlib.suppress(ChildProcessError):  # it has ended, and was waited for
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    @property
    def is_left(self) -> bool:
        """Also behind its own end.

        ::

            leader   a script that has started the engine behind it: it ends
            engine   lives on, and has the output open that it was given: somebody of the group is there
        """
        return self.is_running or self._reader.is_alive()

    def kill_alone(self) -> None:
        self._process.kill()
        self._process.wait(END_TIMEOUT_S)
        self.hear()

    def reap(self) -> None:
        try:
            self._await_end()
        finally:  # whoever is left ends by itself now, if it listens: nobody watches it any more
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _await_end(self) -> None:
        self._process.wait(END_TIMEOUT_S)
        self.resume()
        # The JVM holds the same output: its end is the end of both.
        self._reader.join(END_TIMEOUT_S)
        if self._reader.is_alive():
            raise self._still_there()

    def said(self) -> str:
        tail = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "".join(f"\n  {line}" for line in tail) or " (nothing)"

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            self._hearing.until_the_end()
        self._heard(None)


def _environment(scratch: Path, *, leads: bool = False) -> dict[str, str]:
    """Without the user's places, and with every temporary file in ``scratch``; who leads gives each driver a place of its own.

    SPARK_LOCAL_DIRS would overrule that: what killed drivers leave would stay as long as their leader.
    """
    inherited = private_environment(scratch)
    inherited.pop("SPARK_LOCAL_DIRS", None)
    own = {
        "TMPDIR": str(scratch),
        "JAVA_TOOL_OPTIONS": f"{inherited.get('JAVA_TOOL_OPTIONS', '')} '-Djava.io.tmpdir={scratch}'".strip(),
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:-UsePerfData",
    }
    if not leads:
        own["SPARK_LOCAL_DIRS"] = str(scratch)
    return {**inherited, **own}
