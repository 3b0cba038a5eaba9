"""``python -m onceflow.verify.engines.aborting_executors PLAN``: executors write, and a third of their batches fail once."""

from __future__ import annotations

import sys

from onceflow.config import PlanFile
from onceflow.transaction import writing
from onceflow.transaction.executor_path import write_on_executors
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.lines import Order
from onceflow.verify.engines.onceflow import run_plan
from onceflow.verify.engines.refusing import RefusingExecutors
from onceflow.verify.engines.serving import serve


def run_refusing_executors(file: PlanFile, order: Order, conversation: Conversation) -> None:
    """Until it is told to stop. Raises what ends the pipeline."""
    refusing = RefusingExecutors(conversation.step, write_on_executors)
    # The requests of tasks are told nobody, and no pipeline needs to be: so production has no place for this.
    vars(writing)["write_on_executors"] = refusing.write
    run_plan(file, order, conversation, refusing, driver_bytes=0)


if __name__ == "__main__":
    sys.exit(serve(run_refusing_executors, fences=True))
