"""The production engine without one of its defences: ``python sabotaged.py DEFENCE PLAN``. For tests alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

from onceflow.transaction import protocol
from onceflow.transaction.asking import Asking
from onceflow.transaction.messages import Event, Identity
from onceflow.transaction.progress import WRITE, Batch, Decision, OnMismatch, Progress, Verdict, decide
from onceflow.transaction.questions import At
from onceflow.transaction.talk import Talk
from onceflow.verify.engines.onceflow import run_plan
from onceflow.verify.engines.serving import serve

APART_S = 1.0  # for which each batch is half there: some looks of the watcher


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


def without_unity() -> None:
    """The offsets of a batch are committed before its transaction, whose end then has nothing but the progress for the group."""
    store = Asking.store

    def apart(asking: Asking, identity: Identity, progress: Progress, source: Mapping[At, int]) -> Talk[Event]:
        for question in asking.questions.plain_offsets(source):
            yield from asking.ask(question)
        time.sleep(APART_S)
        return (yield from store(asking, identity, progress, {}))

    setattr(Asking, "store", apart)  # noqa: B010  mypy forbids the assignment


DEFENCES: Mapping[str, Callable[[], None]] = {
    "skip": without_skip,
    "refusal": without_refusal,
    "unity": without_unity,
}


if __name__ == "__main__":
    DEFENCES[sys.argv.pop(1)]()
    sys.exit(serve(run_plan))
