"""The production supervisor over scripted drivers: ``python leading.py SILENCE_S COMMAND... ADDRESS STANDBYS PLAN``.

COMMAND is that of a driver, which is given ADDRESS and its descriptor; one that is silent for SILENCE_S is replaced. With a file
``dies`` beside the plan it is killed when all of its drivers have ended in order, before it has said so.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from onceflow.pipeline.events import Finished
from onceflow.pipeline.supervisor import Limits, run_with_standby
from onceflow.verify.engines import supervised
from onceflow.verify.engines.supervised import lead


def end_without_a_word(*given: Any, **more: Any) -> Finished:
    run_with_standby(*given, **more)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives that")


if __name__ == "__main__":
    silence_s, *command, address, standbys, plan = sys.argv[1:]
    if (Path(plan).parent / "dies").exists():
        vars(supervised)["run_with_standby"] = end_without_a_word
    limits = Limits(silence_s=float(silence_s))
    sys.exit(lead(Path(plan), (*command, address), int(standbys), limits))
