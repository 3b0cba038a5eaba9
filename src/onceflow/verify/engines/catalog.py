"""The engines by name."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Engine:
    """A command that runs a plan; the plan's path is added to it. ``judged`` is False for a control."""

    name: str
    title: str
    command: tuple[str, ...]
    judged: bool = True
    steps: tuple[str, ...] = ()  # of a batch, in their order: places to be killed at; empty: those that it tells
    recovery_steps: tuple[str, ...] = ()  # those that come when it takes over from one that died
    resumes: bool = True  # knows where its committed output ends when its checkpoint is lost
    transaction_steps: tuple[str, ...] = ()  # those in which it has a transaction open
    visible_from: str = (
        ""  # the step from which on a reader may see something of the batch; empty: when it is committed
    )


ENGINES: Mapping[str, Engine] = {
    "onceflow": Engine(
        "onceflow",
        "onceflow",
        (sys.executable, "-m", "onceflow.verify.engines.onceflow"),
        steps=("WRITE", "PRODUCE", "AUDIT", "STORE", "COMMIT", "COMMITTED"),
        recovery_steps=("INSPECT", "FENCE", "READ", "CONFIRM", "CLAIM_STORE", "CLAIM_COMMIT", "WRITE", "COMMIT"),
        transaction_steps=("PRODUCE", "AUDIT", "STORE", "COMMIT", "CLAIM_COMMIT", "ABORT", "LOOK"),
        visible_from="COMMIT",
    ),
    "spark": Engine(
        "spark",
        "Spark's Kafka sink",
        (sys.executable, "-m", "onceflow.verify.engines.spark"),
        judged=False,
        steps=("WRITE", "WRITTEN", "COMMITTED"),
        recovery_steps=("WRITE",),
        resumes=False,
        visible_from="WRITE",
    ),
}

ABORTING = replace(ENGINES["onceflow"], command=(sys.executable, "-m", "onceflow.verify.engines.aborting"))
"""The engine under test, a third of whose batches fail once before their commit, and are aborted and written again."""


def engine_of(command: str) -> Engine:
    """An engine of the user's own: a command line. Raises ValueError if it is none."""
    words = tuple(shlex.split(command))
    if not words:
        raise ValueError("it names no program")
    return Engine("own", command, words)
