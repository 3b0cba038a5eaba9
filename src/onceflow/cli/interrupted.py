"""How a long command ends when it is interrupted: once, and through every ``finally``, so that nothing stays behind."""

from __future__ import annotations

import os
import signal
from types import FrameType


def clean_up_when_interrupted() -> None:
    """SIGINT and SIGTERM raise SystemExit from now on; for the main thread of a process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> None:
    # A second one would only tear the cleaning up apart.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    os.write(2, b"\ninterrupted: ending all processes and cleaning up\n")
    raise SystemExit(128 + number)
