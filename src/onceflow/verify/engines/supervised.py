"""``python -m onceflow.verify.engines.supervised ADDRESS STANDBYS PLAN``: the very supervisor of ``onceflow run --standbys``.

It starts the drivers, watches over them, and has standbys take over, as it does for users; here nobody helps it. Its drivers are
those of ``onceflow run``, too, and report at ADDRESS (``supervised_driver``); what it says itself is which standbys are warm,
which drivers it has lost and why, and how it ended.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from onceflow.config import load
from onceflow.errors import OnceflowError
from onceflow.pipeline import Control, Mode
from onceflow.pipeline.events import BatchCommitted, DriverLost, Event, StandbyReady
from onceflow.pipeline.standby import PROGRAM
from onceflow.pipeline.supervisor import Limits, run_with_standby
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.failing import failure
from onceflow.verify.engines.lines import Message, Told

DRIVER = (*PROGRAM[:-1], "onceflow.verify.engines.supervised_driver")
"""The command of a driver of ``onceflow run``, but for the module."""
_USUAL = Limits()


def lead(plan: Path, program: Sequence[str], standbys: int, limits: Limits = _USUAL) -> int:
    """Until it is told to stop; gives the exit status. ``program`` is the command of a driver, without its descriptor.

    The plan is taken as the file has it: no environment variable changes what is verified.
    """
    conversation = Conversation()
    control = Control()
    conversation.on_stop(lambda: control.stop("asked to stop"))

    def tell(event: Event) -> None:
        if isinstance(event, StandbyReady):
            conversation.tell(Message(Told.READY, pid=event.pid))
        if isinstance(event, DriverLost):
            conversation.tell(Message(Told.LOST, pid=event.pid, error=event.reason))
        if not isinstance(event, BatchCommitted):  # there are many
            print(event, file=sys.stderr, flush=True)

    try:
        file = load(plan, {})
        mode = Mode(conversation.wait_for_run().mode)
        run_with_standby(
            file, tell=tell, control=control, mode=mode, spark_log="error", limits=limits, standbys=standbys,
            program=program,
        )  # fmt: skip
    except Exception as error:
        conversation.tell(failure(error))
        if isinstance(error, OnceflowError):
            print(error, file=sys.stderr)
            return 1
        raise
    conversation.tell(Message(Told.FINISHED))
    return 0


if __name__ == "__main__":
    sys.exit(lead(Path(sys.argv[3]), (*DRIVER, sys.argv[1]), int(sys.argv[2])))
