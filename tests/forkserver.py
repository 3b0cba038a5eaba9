"""Processes to be killed or stopped at a step, forked in milliseconds from one that has imported everything already.

A program calls ``serve`` with what its processes do; a test holds a ``ForkServer`` of that program. Lines of JSON go in and out:
a job is a dataclass, and what a process has to tell arrives however it ends, except by a kill.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from onceflow.errors import OnceflowError

ROOT = Path(__file__).parents[1]
_END_S = 120.0
_UNCAUGHT = 70

Told = dict[str, Any]
Life = Callable[[dict[str, Any], Told], None]
"""What a process does: its job's fields, and where it puts what it has to tell."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: the signal that killed it (0: none), its error code and message, and what it told."""

    signal: int
    error: str
    text: str
    told: Told

    @property
    def steps(self) -> tuple[Any, ...]:
        """The steps that it went through."""
        return tuple(tuple(step) if isinstance(step, list) else step for step in self.told.get("steps", ()))


class ForkServer:
    """The processes of one program, a module that calls ``serve``."""

    def __init__(self, module: str, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        self._reports: dict[int, Path] = {}
        self._server = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the program; its processes have ended before, but for those that a failed test has left stopped."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        for pid in self._reports:
            os.kill(pid, signal.SIGKILL)
        self._server.stdin.close()
        self._server.wait(_END_S)
        self._server.stdout.close()

    def start(self, job: Any) -> int:
        """A process for a job (a dataclass); its id."""
        report = self._directory / f"report-{next(self._numbers)}"
        pid: int = self._ask(do="start", job=asdict(job), report=str(report))["pid"]
        self._reports[pid] = report
        return pid

    def wait(self, pid: int) -> Ended:
        """Until it has ended."""
        number = self._ask(do="wait", pid=pid, stopped=False)["signal"]
        report = self._reports.pop(pid)
        told = json.loads(report.read_text()) if report.exists() else {}
        return Ended(number, told.pop("error", ""), told.pop("text", ""), told)

    def wait_until_stopped(self, pid: int) -> None:
        """Until SIGSTOP has stopped it."""
        if not self._ask(do="wait", pid=pid, stopped=True)["stopped"]:
            report = self._reports.pop(pid)  # its id may be another process's by now
            raise AssertionError(
                f"it ended before it was stopped: {report.read_text() if report.exists() else 'killed'}"
            )

    def start_stopped(self, job: Any) -> int:
        """A process that has come to where its job stops it."""
        pid = self.start(job)
        self.wait_until_stopped(pid)
        return pid

    def wake(self, pid: int) -> Ended:
        """Until a process that was stopped has ended."""
        self.go_on(pid)
        return self.wait(pid)

    def go_on(self, pid: int) -> None:
        """Wakes a process that was stopped."""
        os.kill(pid, signal.SIGCONT)

    def run(self, job: Any) -> Ended:
        """A process from its start to its end."""
        return self.wait(self.start(job))

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer, "the fork server died"
        told: dict[str, Any] = json.loads(answer)
        return told


# --------------------------------------------------------------------------------------------------- in the program


def serve(live: Life) -> None:
    """Forks a process for each job that comes in. What is slow to import should be imported before."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        answer = _start(live, request) if request["do"] == "start" else _wait(request)
        print(json.dumps(answer), flush=True)


def _start(live: Life, request: dict[str, Any]) -> dict[str, Any]:
    pid = os.fork()
    if pid == 0:
        code = _UNCAUGHT
        try:
            _child(live, request["job"], Path(request["report"]))
            code = 0
        finally:
            os._exit(code)
    return {"pid": pid}


def _child(live: Life, job: dict[str, Any], report: Path) -> None:
    told: Told = {}
    outcome: dict[str, str] = {}
    try:
        live(job, told)
    except OnceflowError as error:
        outcome = {"error": error.code, "text": str(error)}
    except BaseException:  # noqa: BLE001  whatever it was, the test must hear of it
        outcome = {"error": "BUG", "text": traceback.format_exc()}
    report.write_text(json.dumps({**told, **outcome}))


def _wait(request: dict[str, Any]) -> dict[str, Any]:
    """Until the process has ended, or (with ``stopped``) has been stopped by SIGSTOP."""
    _, status = os.waitpid(request["pid"], os.WUNTRACED if request["stopped"] else 0)
    if os.WIFSTOPPED(status):
        return {"stopped": True}
    return {"stopped": False, "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}
