"""``python -m onceflow.verify.engines.aborting PLAN``: the engine under test, a third of whose batches fail once."""

from __future__ import annotations

import sys

from onceflow.config import PlanFile
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.lines import Order
from onceflow.verify.engines.onceflow import run_plan
from onceflow.verify.engines.refusing import Refusing
from onceflow.verify.engines.serving import serve


def run_refusing(file: PlanFile, order: Order, conversation: Conversation) -> None:
    """Until it is told to stop. Raises what ends the pipeline."""
    run_plan(file, order, conversation, Refusing(conversation.step))


if __name__ == "__main__":
    sys.exit(serve(run_refusing, fences=True))
