"""Relays in processes of their own, to be killed or stopped at a step; among them undefended ones, as controls.

Run as a program it is where they come from: it has imported everything and forks one process for each job that it reads.
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
from typing import Any

from onceflow.errors import OnceflowError
from onceflow.ingest.committer import SourceCommitter
from onceflow.kafka.settings import ClusterSettings
from onceflow.outbox.position import KEY
from onceflow.outbox.records import as_records
from onceflow.outbox.relay import Relay
from onceflow.outbox.service import KIND, outbox_at
from onceflow.outbox.table import Limits

TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Job:
    """One relay's life, until the table is empty. ``interrupt``: (step, how many times it came, signal)."""

    name: str
    url: str
    table: str
    servers: str
    batch_rows: int = 4
    variant: str = "real"
    interrupt: tuple[str, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    signal: int
    error: str
    text: str
    steps: tuple[str, ...]


class DeletesFirst(Relay):
    """Control: makes room in the table before Kafka has the records."""

    def step(self) -> int:
        rows = self._table.take(self._sent.batch, self._limits)
        if rows:
            sent = self._sent.following((row.position, row.id) for row in rows)
            self._table.forget(sent)
            self._on_step("BETWEEN")
            self._committer.commit(as_records(rows, "control", 0), {KEY: sent.to_json()})
            self._sent = sent
        return len(rows)


class CommitsApart(Relay):
    """Control: the position has a transaction of its own, after the records'."""

    def step(self) -> int:
        rows = self._table.take(self._sent.batch, self._limits)
        if rows:
            sent = self._sent.following((row.position, row.id) for row in rows)
            self._committer.commit(as_records(rows, "control", 0), {})
            self._on_step("BETWEEN")
            self._committer.commit([], {KEY: sent.to_json()})
            self._table.forget(sent)
            self._sent = sent
        return len(rows)


VARIANTS: dict[str, type[Relay]] = {"real": Relay, "deletes first": DeletesFirst, "commits apart": CommitsApart}


class Steps:
    """Counts the steps, and sends this process the signal at the one that was named."""

    def __init__(self, interrupt: tuple[str, int, int] | None) -> None:
        self.seen: list[str] = []
        self._interrupt = interrupt

    def __call__(self, step: str, *_: int) -> None:
        self.seen.append(step)
        if self._interrupt and (step, self.seen.count(step)) == tuple(self._interrupt[:2]):
            os.kill(os.getpid(), self._interrupt[2])


def relay_all(job: Job, on_step: Callable[..., None] = lambda *step: None) -> int:
    """Sends what is in the table."""
    table = outbox_at(job.url, job.table)
    settings = ClusterSettings.of(job.servers)
    try:
        table.open()
        with SourceCommitter(job.name, settings, kind=KIND, on_step=on_step) as committer:
            kind = VARIANTS[job.variant]
            relay = kind(job.name, table, committer, limits=Limits(job.batch_rows), on_step=on_step)
            relay.start()
            return sum(iter(relay.step, 0))
    finally:
        table.close()


# ------------------------------------------------------------------------------------------------------ the fork server


class Workers:
    """The fork server, as the tests use it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        self._reports: dict[int, Path] = {}
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(TIMEOUT_S)
        self._server.stdout.close()

    def start(self, job: Job) -> int:
        report = self._directory / f"report-{next(self._numbers)}"
        pid: int = self._ask(do="start", job=asdict(job), report=str(report))["pid"]
        self._reports[pid] = report
        return pid

    def wait(self, pid: int) -> Ended:
        status = self._ask(do="wait", pid=pid, stopped=False)
        report = self._reports.pop(pid)
        told = json.loads(report.read_text()) if report.exists() else {}
        return Ended(status["signal"], told.get("error", ""), told.get("text", ""), tuple(told.get("steps", ())))

    def wait_until_stopped(self, pid: int) -> None:
        assert self._ask(do="wait", pid=pid, stopped=True)["stopped"], "it ended before it was stopped"

    def run(self, job: Job) -> Ended:
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


def _child(job: Job, report: Path) -> None:
    steps = Steps(job.interrupt)
    outcome: dict[str, Any] = {}
    try:
        relay_all(job, steps)
    except OnceflowError as error:
        outcome = {"error": error.code, "text": str(error)}
    except BaseException:  # noqa: BLE001  whatever it was, the test must hear of it
        outcome = {"error": "BUG", "text": traceback.format_exc()}
    report.write_text(json.dumps({**outcome, "steps": steps.seen}))


def _start(request: dict[str, Any]) -> dict[str, Any]:
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            _child(Job(**request["job"]), Path(request["report"]))
            code = 0
        finally:
            os._exit(code)
    return {"pid": pid}


def _wait(request: dict[str, Any]) -> dict[str, Any]:
    _, status = os.waitpid(request["pid"], os.WUNTRACED if request["stopped"] else 0)
    if os.WIFSTOPPED(status):
        return {"stopped": True}
    return {"stopped": False, "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}


def main() -> None:
    logging.disable(logging.CRITICAL)
    import onceflow.outbox.postgresql
    import onceflow.outbox.sqlite  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        answer = _start(request) if request["do"] == "start" else _wait(request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
