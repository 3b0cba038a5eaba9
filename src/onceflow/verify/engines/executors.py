"""``python -m onceflow.verify.engines.executors PLAN``: the engine under test, and executors write every batch.

As it is, the driver writes what fits its memory, and a verification's batches are small: what befalls an executor then befalls a
task that reads, and none that has records of the open transaction on their way.
"""

from __future__ import annotations

import sys

from onceflow.config import PlanFile
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.lines import Order
from onceflow.verify.engines.onceflow import run_plan
from onceflow.verify.engines.serving import serve


def run_on_executors(file: PlanFile, order: Order, conversation: Conversation) -> None:
    """Until it is told to stop. Raises what ends the pipeline."""
    run_plan(file, order, conversation, driver_bytes=0)


if __name__ == "__main__":
    sys.exit(serve(run_on_executors, fences=True))
