"""An ingest to be killed: a real process, real requests, a real file.

Run as a program it forks one process for each job that it reads, as ``tests/faults/light.py`` does, so that a killed ingest costs
milliseconds. Lines of JSON in, lines of JSON out.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from onceflow.errors import OnceflowError
from onceflow.ingest.committer import Rows, SourceCommitter
from onceflow.ingest.event_rows import event_rows, numbers_as_text
from onceflow.ingest.files import FileOptions, FileSource, Format
from onceflow.ingest.runner import Ingest
from onceflow.kafka.settings import ClusterSettings


@dataclass(frozen=True)
class Job:
    """``interrupt``: (step, batch id, signal) that it sends itself, once. ``apart``: positions in a transaction of their own."""

    servers: str
    name: str
    topic: str
    path: str
    interrupt: tuple[str, int, int] | None = None
    apart: bool = False
    timeout_ms: int = 60_000


class _Steps:
    """Sees every step of the protocol, and ends the process where the job says."""

    def __init__(self, job: Job) -> None:
        self._interrupt = job.interrupt
        self.batch_id = -1
        self.seen: list[tuple[str, int]] = []

    def __call__(self, step: str, batch_id: int) -> None:
        self.batch_id = batch_id
        self.seen.append((step, batch_id))
        if self._interrupt and (step, batch_id) == tuple(self._interrupt[:2]):
            number, self._interrupt = self._interrupt[2], None
            os.kill(os.getpid(), number)


class _HalfwayRows:
    """Rows that tell when the first of them are being written."""

    def __init__(self, rows: Rows, steps: _Steps) -> None:
        self._rows = rows
        self._steps = steps

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        for number, row in enumerate(self._rows):
            if number == 1:
                self._steps("HALF", self._steps.batch_id)
            yield row


class _Committer(SourceCommitter):
    """As it is, with two more steps; or, as a control, with the positions committed after the rows and apart from them."""

    def __init__(self, job: Job, steps: _Steps) -> None:
        settings = ClusterSettings.of(job.servers)
        super().__init__(job.name, settings, transaction_timeout_ms=job.timeout_ms, patience_s=60, on_step=steps)
        self._job = job
        self._steps = steps

    def commit(self, rows: Rows, positions: Mapping[str, str | None]) -> int:
        count = super().commit(_HalfwayRows(rows, self._steps), {} if self._job.apart else positions)
        if self._job.apart:
            super().commit([], positions)
        self._steps("DONE", self._steps.batch_id)
        return count


def run(job: Job, steps: _Steps) -> int:
    # Small blocks, so that a small file takes several batches a transaction, and several transactions.
    source = FileSource(FileOptions([job.path], Format.JSONL, block_bytes=60))
    with _Committer(job, steps) as committer:
        return Ingest(job.name, job.topic, source, transaction_rows=20).run(committer)


def _child(job: Job, report: Path) -> None:
    steps = _Steps(job)
    outcome: dict[str, Any] = {}
    try:
        outcome["rows"] = run(job, steps)
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
    """Until the process has ended, or (with ``stopped``) has been stopped by SIGSTOP."""
    _, status = os.waitpid(request["pid"], os.WUNTRACED if request["stopped"] else 0)
    if os.WIFSTOPPED(status):
        return {"stopped": True}
    return {"stopped": False, "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}


def main() -> None:
    # The first array imports pandas, which takes a second: done here, it is done for all.
    event_rows(pa.array(["a"]), None, "any", numbers_as_text(1, 1), rising=True)
    actions = {"start": _start, "wait": _wait}
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(actions[request["do"]](request)), flush=True)


if __name__ == "__main__":
    main()
