"""Services in processes of their own: they write numbered events in transactions, or without, and are killed where they are told.

Blocks of 5 events up to 15, progress in the marker (with a transactional id) or in nothing at all (without). The signal comes at
the step, of block 1 if it is one of a block. A block that was aborted is run again.

Run as a program it is where they come from (``tests/forkserver.py``).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.forkserver import serve
from tests.writer.on_a_loop import OnLoop

from onceflow.errors import DeliveryFailed, TransactionAborted
from onceflow.writer.coordination import Transactions
from onceflow.writer.ledger import Ledger
from onceflow.writer.sender import Sender
from onceflow.writer.writer import Writer

BLOCKS, EVENTS = 3, 5
STEPS = ("opened", "read", "claiming", "claimed", "begun", "sent", "acknowledged", "marked", "ended")
RECOVERY = ("aborted", "looked", "fenced", "found")
"""The steps after a block with an event that the broker refuses, of a topic that takes no more than ``SMALL_BYTES``."""
SMALL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Job:
    """One life. ``name``: the transactional id, if there is one. ``step``: where ``signal`` comes, if any does.

    ``on_a_loop``: an AsyncWriter writes. ``kafka``: options of its client.
    """

    servers: str
    name: str | None
    topic: str
    step: str = ""
    signal: int = int(signal.SIGKILL)
    on_a_loop: bool = False
    kafka: dict[str, Any] | None = None


class Interrupt:
    """Sends this process the job's signal at the end of a method of its step, the first time that a condition holds."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self) -> None:
        os.kill(os.getpid(), self._job.signal)

    def after(self, owner: type, method: str, when: Callable[[Any], bool]) -> None:
        original = getattr(owner, method)

        def wrapped(owned: Any, *arguments: Any, **options: Any) -> Any:
            result = original(owned, *arguments, **options)
            if when(owned):
                setattr(owner, method, original)
                self()
            return result

        setattr(owner, method, wrapped)

    def arm(self) -> None:
        if self._job.step in ENDS_OF:
            self.after(*ENDS_OF[self._job.step])


def always(_: Any) -> bool:
    return True


def in_block_one(transactions: Transactions) -> bool:
    return transactions.marker.number >= 1


def in_block_two(transactions: Transactions) -> bool:
    return transactions.marker.number == 2


flushes = itertools.count()
ENDS_OF: dict[str, tuple[type, str, Callable[[Any], bool]]] = {
    "opened": (Transactions, "_fence", always),
    "read": (Ledger, "read", always),
    "claiming": (Transactions, "_enter", always),
    "claimed": (Transactions, "_claim", always),
    "begun": (Transactions, "begin", in_block_one),
    "acknowledged": (Sender, "flush", lambda _: next(flushes) == 1),
    "marked": (Transactions, "_enter", in_block_one),
    "ended": (Transactions, "settle", in_block_two),
    "aborted": (Transactions, "abort", in_block_one),
    "looked": (Transactions, "_check_owner", always),
    "fenced": (Transactions, "_fence", in_block_one),
    "found": (Transactions, "_take", always),
}
"""The method behind which each step comes; "sent" lies between two of them."""


def in_transactions(job: Job) -> None:
    interrupt = Interrupt(job)
    interrupt.arm()
    left = {job.step}
    kafka = {**(job.kafka or {}), **({"compression.type": "gzip"} if job.step in RECOVERY else {})}
    kind: type[Writer | OnLoop] = OnLoop if job.on_a_loop else Writer
    with kind(bootstrap_servers=job.servers, source="victim", transactional_id=job.name, kafka=kafka) as writer:
        while (block := int(writer.progress or 0)) < BLOCKS:
            with contextlib.suppress(TransactionAborted, DeliveryFailed), writer.transaction(progress=str(block + 1)):
                if block == 1 and left & {*RECOVERY}:
                    left.clear()
                    writer.send(job.topic, os.urandom(3 * SMALL_BYTES), id="refused")
                for n in range(block * EVENTS, (block + 1) * EVENTS):
                    writer.send(job.topic, str(n), position=("numbers", n))
                if block == 1 and "sent" in left:
                    left.clear()
                    writer.flush()
                    interrupt()


def undefended(job: Job) -> None:
    with Writer(bootstrap_servers=job.servers, source="victim") as writer:
        for n in range(BLOCKS * EVENTS):
            writer.send(job.topic, str(n), position=("numbers", n))
        writer.flush()
        if job.step:
            Interrupt(job)()


def _live(fields: dict[str, Any], told: dict[str, Any]) -> None:
    job = Job(**fields)
    if job.name is None:
        undefended(job)
    else:
        in_transactions(job)


if __name__ == "__main__":
    serve(_live)
