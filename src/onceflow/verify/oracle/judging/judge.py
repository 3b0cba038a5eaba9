"""The judge: one history of all that was recorded, read by the checker."""

from __future__ import annotations

from dataclasses import dataclass

from onceflow.verify.checker import Verdict, check_history
from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.judging.history import history_of
from onceflow.verify.recording.recorded import Recorded


@dataclass(frozen=True, slots=True)
class Judgement(Verdict):
    """The verdict on a run, and the reasons for which the run, or a part of it, proves nothing."""

    reasons: tuple[str, ...] = ()


def judge(recorded: Recorded, expected: Expected | None) -> Judgement:
    """Judges a run. Without ``expected``, or where that is refused, the output's content is not judged, and a reason says so.

    Batches are committed as far as the progress in ``recorded.observed`` says; for an engine without one (Spark's own sink)
    they are committed if Spark's commit log has them, and else when any of their output is visible.
    """
    history, reasons = history_of(recorded, expected)
    verdict = check_history(history, where="the run's history")
    return Judgement(verdict.history, verdict.findings, verdict.checks, tuple(reasons))
