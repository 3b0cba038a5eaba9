"""A service of its own process: it writes numbered events in transactions, or without, and is killed where it is told to be.

``victim.py <servers> <transactional id or -> <topic> <step or -> [stop] [asyncio]``: blocks of 5 events up to 15, progress
in the marker (with a transactional id) or in nothing at all (without). SIGKILL comes in block 1, at the step; with ``stop``
SIGSTOP instead; with ``asyncio`` it is an AsyncWriter that writes. A block that was aborted is run again; a process that was
fenced ends with the exit code ``FENCED``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from tests.writer.on_a_loop import OnLoop

from onceflow.errors import Fenced, TransactionAborted
from onceflow.writer.coordination import Transactions
from onceflow.writer.sender import Sender
from onceflow.writer.writer import Writer

BLOCKS, EVENTS = 3, 5
FENCED = 3
TRANSACTION_TIMEOUT_MS = 5000  # of a victim that is stopped
STEPS = ("opened", "claimed", "begun", "sent", "acknowledged", "marked", "ended")


last_signal = signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), last_signal)


def killed_after(owner: type, method: str, when: Callable[[Any], bool]) -> None:
    """The process dies at the end of ``method``, the first time that ``when`` holds."""
    original = getattr(owner, method)

    def wrapped(self: Any, *arguments: Any) -> Any:
        result = original(self, *arguments)
        if when(self):
            setattr(owner, method, original)
            die()
        return result

    setattr(owner, method, wrapped)


def arm(step: str) -> None:
    def in_block_one(transactions: Transactions) -> bool:
        return transactions.marker.number >= 1

    if step == "opened":
        killed_after(Transactions, "_fence", lambda _: True)
    if step == "claimed":
        killed_after(Transactions, "_claim", lambda _: True)
    if step == "begun":
        killed_after(Transactions, "begin", in_block_one)
    if step == "acknowledged":
        flushes = iter(range(100))
        killed_after(Sender, "flush", lambda _: next(flushes) == 1)
    if step == "marked":
        killed_after(Transactions, "_enter", in_block_one)
    if step == "ended":
        killed_after(Transactions, "settle", lambda transactions: transactions.marker.number == 2)


def in_transactions(
    kind: type[Writer | OnLoop], servers: str, transactional_id: str, topic: str, step: str, options: dict[str, int]
) -> None:
    arm(step)
    dies_here = step == "sent"
    with kind(bootstrap_servers=servers, source="victim", transactional_id=transactional_id, kafka=options) as writer:
        while (block := int(writer.progress or 0)) < BLOCKS:
            with contextlib.suppress(TransactionAborted), writer.transaction(progress=str(block + 1)):
                for n in range(block * EVENTS, (block + 1) * EVENTS):
                    writer.send(topic, str(n), position=("numbers", n))
                if block == 1 and dies_here:
                    dies_here = False
                    writer.flush()
                    die()


def undefended(servers: str, topic: str, step: str) -> None:
    with Writer(bootstrap_servers=servers, source="victim") as writer:
        for n in range(BLOCKS * EVENTS):
            writer.send(topic, str(n), position=("numbers", n))
        writer.flush()
        if step != "-":
            die()


if __name__ == "__main__":
    servers, transactional_id, topic, step, *how = sys.argv[1:]
    if "stop" in how:
        last_signal = signal.SIGSTOP
    if transactional_id == "-":
        undefended(servers, topic, step)
    else:
        try:
            in_transactions(
                OnLoop if "asyncio" in how else Writer,
                servers,
                transactional_id,
                topic,
                step,
                {"transaction.timeout.ms": TRANSACTION_TIMEOUT_MS} if "stop" in how else {},
            )
        except Fenced:
            sys.exit(FENCED)
