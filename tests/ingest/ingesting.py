"""An ingest to be killed: a real process, real requests, a real file or table.

Run as a program it is where they come from (``tests/forkserver.py``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from tests.forkserver import serve

from onceflow.ingest import tables
from onceflow.ingest.committer import Rows, SourceCommitter
from onceflow.ingest.event_rows import event_rows, numbers_as_text
from onceflow.ingest.files import FileOptions, FileSource, Format
from onceflow.ingest.runner import Ingest
from onceflow.ingest.source import Source
from onceflow.ingest.tables import TableOptions, TableSource, connect
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.failures import AttemptFailed
from onceflow.transaction.requests import transactional_id

PATIENCE_S = 300  # for the start of a broker that comes back, on a busy machine


@dataclass(frozen=True)
class Job:
    """``interrupt``: (step, batch id, signal) that it sends itself, once. ``apart``: positions in a transaction of their own.

    ``path`` of a file, or with ``table`` the address of a database. ``disturbed``: what happens once in the middle of the second
    transaction: the attempt ``fails``, or a stranger takes the transactional id (``hijacked``).
    """

    servers: str
    name: str
    topic: str
    path: str
    interrupt: tuple[str, int, int] | None = None
    apart: bool = False
    timeout_ms: int = 60_000
    table: str = ""
    rising: str = "n"
    tiebreak: str | None = None
    from_now_on: bool = False
    disturbed: str = ""


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


class _Disturbance:
    """Comes once."""

    def __init__(self, job: Job, transactional_id: str) -> None:
        self._job = job
        self._id = transactional_id
        self._is_due = bool(job.disturbed)

    def __call__(self, batch_id: int) -> None:
        if not self._is_due or batch_id != 1:
            return
        self._is_due = False
        if self._job.disturbed == "fails":
            raise AttemptFailed("as where a broker does not answer")
        Producer({"bootstrap.servers": self._job.servers, "transactional.id": self._id}).init_transactions(60)


class _HalfwayRows:
    """Rows that tell when the first of them are being written."""

    def __init__(self, rows: Rows, steps: _Steps, disturb: _Disturbance) -> None:
        self._rows = rows
        self._steps = steps
        self._disturb = disturb

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        for number, row in enumerate(self._rows):
            if number == 1:
                self._steps("HALF", self._steps.batch_id)
                self._disturb(self._steps.batch_id)
            yield row


class _Committer(SourceCommitter):
    """As it is, with two more steps; or, as a control, with the positions committed after the rows and apart from them."""

    def __init__(self, job: Job, steps: _Steps) -> None:
        settings = ClusterSettings.of(job.servers)
        super().__init__(
            job.name, settings, transaction_timeout_ms=job.timeout_ms, patience_s=PATIENCE_S, on_step=steps
        )
        self._job = job
        self._steps = steps
        self._disturb = _Disturbance(job, transactional_id(f"ingest-{job.name}"))

    def commit(self, rows: Rows, positions: Mapping[str, str | None]) -> int:
        count = super().commit(_HalfwayRows(rows, self._steps, self._disturb), {} if self._job.apart else positions)
        if self._job.apart:
            super().commit([], positions)
        self._steps("DONE", self._steps.batch_id)
        return count


def source_of(job: Job) -> Source:
    """Small blocks and pages, so that a few rows take several batches a transaction, and several transactions."""
    if not job.table:
        return FileSource(FileOptions([job.path], Format.JSONL, block_bytes=60))
    tables.PAGE_ROWS = 7
    options = TableOptions(job.table, job.rising, tiebreak=job.tiebreak, delay_s=0.0)
    return TableSource(connect(job.path, options), options)


def run(job: Job, steps: _Steps) -> int:
    with closing(source_of(job)) as source, _Committer(job, steps) as committer:
        ingest = Ingest(job.name, job.topic, source, transaction_rows=20, from_now_on=job.from_now_on)
        return ingest.run(committer)


def _live(fields: dict[str, Any], told: dict[str, Any]) -> None:
    job = Job(**fields)
    steps = _Steps(job)
    told["steps"] = steps.seen
    told["rows"] = run(job, steps)


if __name__ == "__main__":
    import onceflow.ingest.postgresql
    import onceflow.ingest.sqlite  # noqa: F401

    # The first array imports pandas, which takes a second: done here, it is done for all.
    event_rows(pa.array(["a"]), None, "any", numbers_as_text(1, 1), rising=True)
    serve(_live)
