"""The production engine without one of its defences: ``python sabotaged.py DEFENCE PLAN``. For tests alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from onceflow.transaction import protocol
from onceflow.transaction.progress import WRITE, Batch, Decision, OnMismatch, Progress, Verdict, decide
from onceflow.verify.engines.onceflow import run_plan
from onceflow.verify.engines.serving import serve


def without_skip() -> None:
    """A batch that is committed already is written again."""

    def careless(progress: Progress, batch: Batch, allowed: OnMismatch) -> Decision:
        decision = decide(progress, batch, allowed)
        return WRITE if decision.verdict is Verdict.SKIP else decision

    vars(protocol)["decide"] = careless


def without_refusal() -> None:
    """A checkpoint that does not continue the committed progress is taken up as it is."""

    def careless(progress: Progress, batch: Batch, allowed: OnMismatch) -> Decision:
        return decide(progress, batch, OnMismatch.RESTART)

    vars(protocol)["decide"] = careless


DEFENCES: Mapping[str, Callable[[], None]] = {"skip": without_skip, "refusal": without_refusal}


if __name__ == "__main__":
    DEFENCES[sys.argv.pop(1)]()
    sys.exit(serve(run_plan))
