"""``python -m onceflow.verify.engines.aborting PLAN``: the engine under test, and a third of its batches fail once on their way.

Kafka's own copier aborts a third of its transactions and copies the messages again. A pipeline aborts nothing without a reason,
so it is given one, where a broker could give it: a produce request of the attempt is refused. What follows is the
production code's own: the transaction is aborted, with what earlier requests of it wrote, and the batch is written again under
a fresh epoch.
"""

from __future__ import annotations

import sys
from random import Random

from onceflow.config import PlanFile
from onceflow.transaction.coordinator import OnStep
from onceflow.transaction.failures import AttemptFailed
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.lines import Order
from onceflow.verify.engines.onceflow import run_plan
from onceflow.verify.engines.serving import serve

ABORTED = 1 / 3


class Refusing:
    """Told each step, as ``KafkaSink.on_step`` is; refuses one produce request of the first attempt of a batch that is due.

    Half of them lose their first request, when nothing is written yet, half the second one. Whether a batch is due follows from
    its number.
    """

    def __init__(self, step: OnStep) -> None:
        self._step = step
        self._requests = 0
        self._refused = -1

    def __call__(self, step: str, batch: int) -> None:
        self._step(step, batch)
        if step == "WRITE":
            self._requests = 0
        if step == "PRODUCE":
            self._requests += 1
            if self._requests == request_refused(batch) and batch != self._refused:
                self._refused = batch
                raise AttemptFailed("this attempt was to be aborted")


def request_refused(batch: int) -> int:
    """Which produce request of a batch's first attempt is refused, from 1; 0 for none."""
    chance = Random(f"aborted-{batch}").random()  # noqa: S311  repeatable on purpose
    return 0 if chance >= ABORTED else 1 + (chance >= ABORTED / 2)


def run_refusing(file: PlanFile, order: Order, conversation: Conversation) -> None:
    """Until it is told to stop. Raises what ends the pipeline."""
    run_plan(file, order, conversation, Refusing(conversation.step))


if __name__ == "__main__":
    sys.exit(serve(run_refusing, fences=True))
