"""Relays in processes of their own, to be killed or stopped at a step; among them undefended ones, as controls.

Run as a program it is where they come from (``tests/forkserver.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.forkserver import serve

from onceflow.ingest.committer import SourceCommitter
from onceflow.kafka.settings import ClusterSettings
from onceflow.outbox.position import KEY
from onceflow.outbox.records import as_records, prepare
from onceflow.outbox.relay import Relay
from onceflow.outbox.service import KIND, outbox_at
from onceflow.outbox.table import Limits
from onceflow.outbox.topics import Topics


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
    dead_letters: bool = False
    create_partitions: int | None = None


class DeletesFirst(Relay):
    """Control: makes room in the table before Kafka has the records."""

    def step(self) -> int:
        rows = self._table.take(self._left, self._limits)
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
        rows = self._table.take(self._left, self._limits)
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
        with SourceCommitter(job.name, settings, kind=KIND, trust_positions=True, on_step=on_step) as committer:
            relay = VARIANTS[job.variant](
                job.name,
                table,
                committer,
                limits=Limits(job.batch_rows),
                topics=Topics(settings, job.create_partitions),
                dead_letters=job.dead_letters,
                on_step=on_step,
            )
            relay.start()
            return sum(iter(relay.step, 0))
    finally:
        table.close()


def _live(fields: dict[str, Any], told: dict[str, Any]) -> None:
    job = Job(**fields)
    steps = Steps(job.interrupt)
    told["steps"] = steps.seen
    told["sent"] = relay_all(job, steps)


if __name__ == "__main__":
    import onceflow.outbox.postgresql
    import onceflow.outbox.sqlite  # noqa: F401

    prepare()  # done here, it is done for all
    serve(_live)
