"""What one run under faults gives: all that the report shows, and nothing that it would have to compute again.

Times are seconds since the run's beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

from onceflow.verify.checker.verdict import Verdict
from onceflow.verify.engines.transaction import Transaction


class Lane(StrEnum):
    """The row of the timeline on which something happened."""

    FAULT = "fault"  # from its injection until it is healed
    DRIVER = "driver"  # the life of a driver process, from its start until its end
    BROKER = "broker"  # the same of a broker
    READER = "reader"  # the same of a reader behind the output
    BATCH = "batch"  # a committed micro-batch, from Spark's trigger until the commit was answered
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened from ``began_s`` until ``ended_s`` (the same, for what takes no time)."""

    lane: Lane
    name: str
    began_s: float
    ended_s: float
    detail: str = ""


class Lost(StrEnum):
    """What was lost that kept new output away."""

    DRIVER = "driver"  # SIGKILL to it, or to one of its two processes
    ENDED = "driver that ended by itself"  # under a fault that kills none
    OTHER = "other process"  # SIGKILL to one that works for it: a broker, a worker of Spark, an executor, a Python process of its


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long a fault kept new output away: from ``fault`` at ``at_s`` to the first record of a batch that was not yet
    committed then, as a read_committed reader saw it. ``seconds`` None: none came until the end.

    ``others`` are faults that had a hand in it: the one before it in the same row, and those that came until it was over.
    Where the driver was killed again before it was over, the last kill came ``killed_again_s`` later (0: not again), and the
    first record of a batch that was not yet committed *then* came ``seconds_then`` after it.
    """

    fault: str
    at_s: float
    seconds: float | None
    others: tuple[str, ...] = ()
    killed_again_s: float = 0.0
    seconds_then: float | None = None
    lost: Lost = Lost.DRIVER

    @property
    def since_last_kill(self) -> Recovery:
        """The same from the last kill on: nobody brings new output between two that follow fast."""
        if not self.killed_again_s:
            return self
        return Recovery(self.fault, self.at_s + self.killed_again_s, self.seconds_then, self.others, lost=self.lost)


@dataclass(frozen=True, slots=True)
class Encounter:
    """A fault that struck at ``at_s``, and what it came upon. ``met``: work was under way that it could disturb. ``beside``: it
    came about, and could disturb none, for it strikes only what waits.

    ``batches`` were committed since the fault before it (or the beginning) was over, until this one was.
    """

    fault: str
    at_s: float
    met: bool
    found: str  # in words: what was under way, or why it met nothing
    step: str = ""  # of the commit, or of a start
    transaction: Transaction = Transaction.NONE  # whether one was open, as far as it is known
    batches: int = 0
    in_row: bool = False  # it came right behind the one before, and waited for no recovery from that
    beside: bool = False

    @property
    def text(self) -> str:
        """In one line."""
        batches = f"{self.batches} {'batch' if self.batches == 1 else 'batches'} since the last fault"
        return f"{'met work' if self.met else 'met no work'}: {self.found}; {batches}"


@dataclass(frozen=True, slots=True)
class Series:
    """A quantity over time, both float64 and of one length: visible output records, distance of the last stable offset
    from the log's end, lag of the pipeline.
    """

    name: str
    unit: str
    at_s: pa.DoubleArray
    value: pa.DoubleArray


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of one engine.

    ``failures`` are reasons for which what was found may not be what is there: it did not end, say. ``weaknesses`` are reasons
    for which finding nothing proves nothing, though the run went to its end: no fault met work, say. ``is_stuck``: it did not end
    since the pipeline stood still by itself, which is no accident.
    """

    engine: str  # "onceflow", "Spark's Kafka sink", ...
    pipeline: str
    seed: int
    faults: tuple[str, ...]  # the kinds of the mix that were possible, whether or not each was drawn
    began_at: float  # seconds since the epoch
    seconds: float
    verdict: Verdict
    happenings: tuple[Happening, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    encounters: tuple[Encounter, ...] = ()  # one a fault that was injected
    series: tuple[Series, ...] = ()
    counts: Mapping[str, int] = field(
        default_factory=dict
    )  # records of input committed, aborted, of output, batches, ...
    versions: Mapping[str, str] = field(default_factory=dict)  # of onceflow, Kafka, Spark, Python
    failures: tuple[str, ...] = ()
    is_stuck: bool = False
    weaknesses: tuple[str, ...] = ()
    judged: bool = True  # False: a control, whose violations are shown and do not fail the verification
    held_to_goals: bool = False  # whether it fails the verification to miss one
    lso_held_s: float | None = None  # the longest time for which a dead instance held the last stable offset
    lso_stood_s: float | None = None  # the longest for which one of the output stood still, whatever held it
    command: str = ""  # what runs it again
    notes: tuple[str, ...] = ()  # what of the output was not looked at, and what of the rest is in doubt
    doubted_times: str = ""  # why the times that were measured may be wrong; empty where they are not

    @property
    def good(self) -> bool:
        """Whether the run shows that nothing is lost, repeated or torn."""
        return not self.failures and not self.weaknesses and not self.verdict.violations
