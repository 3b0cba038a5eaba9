"""A worker process as the demo sees it: started, told what to do, listened to, killed."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from onceflow.demo.assignment import GO, Assignment, Message, Told
from onceflow.errors import DemoError

_ANSWER_TIMEOUT_S = 120
_END_TIMEOUT_S = 30
_LOG_LINES = 15


class Worker:
    """One worker, in a process group of its own. ``scratch`` is its own directory and goes with it; ``log`` stays."""

    def __init__(self, scratch: Path, log: Path) -> None:
        self._scratch = scratch
        self._log = log
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        scratch.mkdir()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "onceflow.demo.worker", str(scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                cwd=scratch,
                env=_environment(scratch),
                # A group of its own, so that driver and JVM are killed at once, and Ctrl-C reaches the demo alone.
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Below zero: the signal that ended it. None: it runs."""
        return self._process.poll()

    def assign(self, assignment: Assignment) -> None:
        """Wait until it is ready, and set it to work."""
        message = self.listen()
        if message.told is not Told.READY:
            raise self._failed(f"a worker said {message.told} instead of ready")
        self._say(assignment.as_line())

    def go(self) -> None:
        """Let it go on from the step at which it waits."""
        self._say(GO)

    def listen(self) -> Message:
        """The next thing that it tells. Raises DemoError if it failed, ended or is silent for two minutes."""
        try:
            message = self._messages.get(timeout=_ANSWER_TIMEOUT_S)
        except queue.Empty:
            raise self._failed(f"a worker has said nothing for {_ANSWER_TIMEOUT_S} s") from None
        if message is None:
            raise self._failed(f"a worker ended by itself, exit code {self._process.wait(_END_TIMEOUT_S)}")
        if message.told is Told.FAILED:
            raise self._failed(f"a worker failed: {message.error}")
        return message

    def kill(self) -> None:
        """SIGKILL to driver and JVM, and wait until both are gone. Once is enough, twice is no mistake."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(_END_TIMEOUT_S)
        # The JVM holds the same output: its end is the end of both.
        self._reader.join(_END_TIMEOUT_S)
        self._close()

    def _close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("a worker ended by itself") from None

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                message = Message.of_line(line)
                if message is not None:
                    self._messages.put(message)
        self._messages.put(None)

    def _failed(self, what: str) -> DemoError:
        tail = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        said = "".join(f"\n  {line}" for line in tail)
        return DemoError(f"{what}. The end of its log:{said or ' (nothing)'}", action="see the log; --keep keeps it")


def _environment(scratch: Path) -> dict[str, str]:
    own = {
        # Whatever Python and Spark's launcher leave when they are killed is left here.
        "TMPDIR": str(scratch),
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:-UsePerfData",
    }
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if paths:
        own["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in paths)
    return {**os.environ, **own}
