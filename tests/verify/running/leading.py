"""The production supervisor over scripted drivers: ``python leading.py SILENCE_S COMMAND... ADDRESS STANDBYS PLAN``.

COMMAND is that of a driver, which is given ADDRESS and its descriptor; one that is silent for SILENCE_S is replaced.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onceflow.pipeline.supervisor import Limits
from onceflow.verify.engines.supervised import lead

if __name__ == "__main__":
    silence_s, *command, address, standbys, plan = sys.argv[1:]
    limits = Limits(silence_s=float(silence_s))
    sys.exit(lead(Path(plan), (*command, address), int(standbys), limits))
