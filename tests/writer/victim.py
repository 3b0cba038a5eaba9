"""A service of its own process: it writes numbered events in transactions, or without, and is killed where it is told to be.

``victim.py <servers> <transactional id or -> <topic> <step or ->``: blocks of 5 events up to 15, progress in the marker (with a
transactional id) or in nothing at all (without). SIGKILL comes in block 1, at the step.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from onceflow.writer.coordination import Transactions
from onceflow.writer.sender import Sender
from onceflow.writer.writer import Writer

BLOCKS, EVENTS = 3, 5
STEPS = ("opened", "claimed", "begun", "sent", "acknowledged", "marked", "ended")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_after(owner: type, method: str, when: Callable[[Any], bool]) -> None:
    """From now on the process dies at the end of ``method``."""
    original = getattr(owner, method)

    def wrapped(self: Any, *arguments: Any) -> Any:
        result = original(self, *arguments)
        if when(self):
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


def in_transactions(servers: str, transactional_id: str, topic: str, step: str) -> None:
    arm(step)
    with Writer(bootstrap_servers=servers, source="victim", transactional_id=transactional_id) as writer:
        for block in range(int(writer.progress or 0), BLOCKS):
            with writer.transaction(progress=str(block + 1)):
                for n in range(block * EVENTS, (block + 1) * EVENTS):
                    writer.send(topic, str(n), position=("numbers", n))
                if step == "sent" and block == 1:
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
    servers, transactional_id, topic, step = sys.argv[1:]
    if transactional_id == "-":
        undefended(servers, topic, step)
    else:
        in_transactions(servers, transactional_id, topic, step)
