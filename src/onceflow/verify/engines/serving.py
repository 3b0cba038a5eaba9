"""What the engines have in common: warm up, wait for the order to run, run, and say how it ended."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from onceflow.config import PlanFile, load
from onceflow.errors import OnceflowError
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.lines import Message, Order, Told
from onceflow.verify.engines.warming import warm_up

Run = Callable[[PlanFile, Order, Conversation], None]


def serve(run: Run) -> int:
    """Runs the plan that the command line names; gives the exit status.

    The plan is taken as the file has it: no environment variable changes what is verified.
    """
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    conversation = Conversation()
    try:
        file = load(Path(sys.argv[1]), {})
        warm_up(file, conversation.is_asked)
        conversation.tell(Message(Told.READY))
        run(file, conversation.wait_for_run(), conversation)
    except Exception as error:
        conversation.tell(_failure(error))
        if isinstance(error, OnceflowError):
            print(error, file=sys.stderr)
            return 1
        raise
    conversation.tell(Message(Told.FINISHED))
    return 0


def _failure(error: Exception) -> Message:
    code = error.code if isinstance(error, OnceflowError) else type(error).__name__
    return Message(Told.FAILED, code=code, error=str(error).splitlines()[0] if str(error) else code)
