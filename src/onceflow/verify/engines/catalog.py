"""The engines by name."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from onceflow.verify.engines.transaction import ENDS, NEVER, OPENS, THROUGHOUT, UNKNOWN, Around


@dataclass(frozen=True, slots=True)
class Engine:
    """A command that runs a plan; the plan's path is added to it. ``judged`` is False for a control."""

    name: str
    title: str
    command: tuple[str, ...]
    judged: bool = True
    is_ours: bool = False  # so it ends where it is no driver any more, and commits its progress with what it writes
    steps: tuple[str, ...] = ()  # of a batch, in their order: places to be killed at; empty: those that it tells
    recovery_steps: tuple[str, ...] = ()  # those that come when it takes over from one that died
    resumes: bool = True  # knows where its committed output ends when its checkpoint is lost
    transactions: Mapping[str, Around] = field(default_factory=dict, hash=False)  # by step; of others nothing is known
    leads: bool = False  # starts its drivers by itself, and keeps standbys warm
    visible_from: str = (
        ""  # the step from which on a reader may see something of the batch; empty: when it is committed
    )


_OURS: Mapping[str, Around] = {
    **dict.fromkeys(("INSPECT", "FENCE"), UNKNOWN),  # what a driver before left open, until it is fenced
    **dict.fromkeys(("READ", "CONFIRM", "CHECK_CONFLICT", "RENEW", "REFRESH", "RESOLVE", "COMMITTED"), NEVER),
    **dict.fromkeys(("CLAIM_STORE", "WRITE"), OPENS),
    "PRODUCE": UNKNOWN,  # before the first request of a batch it is not; and whether any has arrived is not told
    "AUDIT": THROUGHOUT,  # every record is acknowledged
    "STORE": UNKNOWN,  # a batch without records opens it here
    **dict.fromkeys(("CLAIM_COMMIT", "COMMIT"), ENDS),
    **dict.fromkeys(("ABORT", "SETTLE", "LOOK", "CHECK_CLAIM", "RETAKE"), UNKNOWN),
}
"""Each step that our engine tells, and the transaction under the pipeline's transactional id then: on both write paths and in
both transaction versions. (One that has timed out is closed, and no step tells it.)"""

ENGINES: Mapping[str, Engine] = {
    "onceflow": Engine(
        "onceflow",
        "onceflow",
        (sys.executable, "-m", "onceflow.verify.engines.onceflow"),
        is_ours=True,
        steps=("WRITE", "PRODUCE", "AUDIT", "STORE", "COMMIT", "COMMITTED"),
        recovery_steps=("INSPECT", "FENCE", "READ", "CONFIRM", "CLAIM_STORE", "CLAIM_COMMIT", "WRITE", "COMMIT"),
        transactions=_OURS,
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
        transactions=dict.fromkeys(("WRITE", "WRITTEN", "COMMITTED"), NEVER),
        visible_from="WRITE",
    ),
}

EXECUTORS = replace(
    ENGINES["onceflow"],
    title="onceflow, executors write",
    command=(sys.executable, "-m", "onceflow.verify.engines.executors"),
    # The requests of a batch are the executors' then, and are not told.
    steps=("WRITE", "AUDIT", "STORE", "COMMIT", "COMMITTED"),
)
"""The engine under test, and the driver writes no batch."""

SUPERVISED = replace(
    ENGINES["onceflow"],
    title="onceflow run --standbys",
    command=(sys.executable, "-m", "onceflow.verify.engines.supervised"),
    leads=True,
)
"""The engine under test, whose drivers are started and followed by the supervisor of ``onceflow run --standbys``."""

ABORTING = replace(ENGINES["onceflow"], command=(sys.executable, "-m", "onceflow.verify.engines.aborting"))
"""The engine under test, a third of whose batches fail once before their commit, and are aborted and written again."""

ABORTING_EXECUTORS = replace(EXECUTORS, command=(sys.executable, "-m", "onceflow.verify.engines.aborting_executors"))
"""The same of the engine whose driver writes no batch."""


def engine_of(command: str) -> Engine:
    """An engine of the user's own: a command line. Raises ValueError if it is none."""
    words = tuple(shlex.split(command))
    if not words:
        raise ValueError("it names no program")
    return Engine("own", command, words)
