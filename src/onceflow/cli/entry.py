"""``onceflow`` and ``python -m onceflow.cli``: where both begin.

What it survives::

    Ctrl-C while the modules of the commands are still imported
    KeyboardInterrupt would be raised somewhere in an import: shown as a traceback, taken by a library for a failure of its own

Nothing is open then, so the process ends at once, with the status of any other interrupt. Hence nothing slow is imported above.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130


def main() -> None:
    """Runs a command. Whoever has set SIGINT to be ignored (``nohup``, ``command &`` in a script) meant it."""
    is_taken = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_taken:
        signal.signal(signal.SIGINT, _end_at_once)
    from onceflow.cli.main import app

    try:
        if is_taken:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app()
    except KeyboardInterrupt:  # before a command has begun
        sys.exit(INTERRUPTED)


def _end_at_once(_: int, __: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)
