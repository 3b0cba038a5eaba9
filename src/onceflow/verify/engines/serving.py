"""What the engines have in common: warm up, wait for the order to run, run, and say how it ended."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from onceflow.config import PlanFile, load
from onceflow.errors import OnceflowError
from onceflow.pipeline.early_fence import EarlyFence
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.failing import failure
from onceflow.verify.engines.lines import Message, Order, Told
from onceflow.verify.engines.warming import cluster_of, warm_up

Run = Callable[[PlanFile, Order, Conversation], None]


def serve(run: Run, *, fences: bool = False) -> int:
    """Runs the plan that the command line names; gives the exit status.

    The plan is taken as the file has it: no environment variable changes what is verified. ``fences``: told to run while it only
    warms up, it first ends what the driver before left open, as ``onceflow run --standby`` does.
    """
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    conversation = Conversation()
    try:
        file = load(Path(sys.argv[1]), {})
        settings = cluster_of(file)
        fence = EarlyFence(file.plan, settings)

        def warm() -> None:
            conversation.on_early_run(None)
            conversation.tell(Message(Told.READY))

        def cold() -> None:
            conversation.tell(Message(Told.COLD))
            conversation.on_early_run(begin)

        begin = fence.begin if fences else None
        conversation.on_early_run(begin)
        rehearsal = warm_up(file, settings, conversation.is_asked)
        warm()
        rehearsal.keep(cold, warm)
        order = conversation.wait_for_run()
        fence.wait()
        run(file, order, conversation)
    except Exception as error:
        conversation.tell(failure(error))
        if isinstance(error, OnceflowError):
            print(error, file=sys.stderr)
            return 1
        raise
    conversation.tell(Message(Told.FINISHED))
    return 0
