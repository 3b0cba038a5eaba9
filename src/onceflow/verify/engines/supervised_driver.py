"""``python -m onceflow.verify.engines.supervised_driver ADDRESS DESCRIPTOR``: a driver of ``supervised`` that reports.

It is ``onceflow.pipeline.driver_process``, and hears from its supervisor through DESCRIPTOR when to run and when to stop. What
its sink does it tells at ADDRESS (an abstract socket), where it is also told to wait at a step.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from onceflow.config import PlanFile
from onceflow.pipeline import driver_process
from onceflow.pipeline.events import Finished
from onceflow.pipeline.runner import run
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.failing import failure
from onceflow.verify.engines.lines import Message, Told
from onceflow.verify.engines.onceflow import SteppedSink
from onceflow.verify.engines.reporting import reporting_at


def run_reporting(conversation: Conversation, file: PlanFile, **given: Any) -> Finished:
    """Runs the plan as the runner does, with a sink that tells its steps."""
    conversation.begin()
    try:
        finished = run(file, make_sink=partial(SteppedSink, conversation=conversation), **given)
    except Exception as error:
        conversation.tell(failure(error))
        raise
    conversation.tell(Message(Told.FINISHED))
    return finished


if __name__ == "__main__":
    with reporting_at(sys.argv[1]) as conversation:
        sys.exit(driver_process.main(int(sys.argv[2]), partial(run_reporting, conversation)))
