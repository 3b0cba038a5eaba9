"""``python -m onceflow.verify.engines.aborting_executors PLAN``: executors write, and a third of their batches fail once."""

from __future__ import annotations

import sys

from onceflow.config import PlanFile
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.lines import Order
from onceflow.verify.engines.onceflow import run_plan
from onceflow.verify.engines.refusing import RefusingInTasks
from onceflow.verify.engines.serving import serve


def run_refusing_executors(file: PlanFile, order: Order, conversation: Conversation) -> None:
    """Until it is told to stop. Raises what ends the pipeline."""
    refusing = RefusingInTasks(conversation.step)
    run_plan(file, order, conversation, refusing, driver_bytes=0, on_task_request=refusing.in_tasks)


if __name__ == "__main__":
    sys.exit(serve(run_refusing_executors, fences=True))
