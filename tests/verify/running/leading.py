"""The production supervisor over scripted drivers: ``python leading.py SILENCE_S COMMAND... ADDRESS STANDBYS PLAN``.

COMMAND is that of a driver, which is given ADDRESS and its descriptor; one that is silent for SILENCE_S is replaced. With a file
``dies`` beside the plan it is killed when all of its drivers have ended in order, before it has said so. A file ``spares`` there
is for drivers that do not die of SIGKILL at once: of their ``java``, or of ``all`` processes.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from onceflow.pipeline.events import Finished
from onceflow.pipeline.standby import WarmDriver
from onceflow.pipeline.supervisor import Limits, run_with_standby
from onceflow.verify.engines import supervised
from onceflow.verify.engines.supervised import lead


def end_without_a_word(*given: Any, **more: Any) -> Finished:
    run_with_standby(*given, **more)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives that")


def kill_python_alone(driver: WarmDriver) -> None:
    if driver._process.poll() is None:
        os.kill(driver.pid, signal.SIGKILL)


def kill_nobody(driver: WarmDriver) -> None: ...


if __name__ == "__main__":
    silence_s, *command, address, standbys, plan = sys.argv[1:]
    spares = Path(plan).parent / "spares"
    if spares.exists():
        setattr(WarmDriver, "kill", kill_nobody if spares.read_text() == "all" else kill_python_alone)  # noqa: B010
    if (Path(plan).parent / "dies").exists():
        vars(supervised)["run_with_standby"] = end_without_a_word
    limits = Limits(silence_s=float(silence_s))
    sys.exit(lead(Path(plan), (*command, address), int(standbys), limits))
