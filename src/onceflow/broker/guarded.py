"""Server processes that end with us, however we end: each has a guard as its parent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from onceflow.broker import guard

_END_S = 30


class Guarded:
    """A command and its guard. ``pid`` is the command's; None if it could not be started.

    ``mode``: see ``guard.py``. The command's output goes to the file ``output``; it inherits the descriptor ``lock``.
    """

    def __init__(
        self,
        command: Sequence[str],
        mode: Literal["attached", "group", "detached"],
        output: Path,
        *,
        lock: int = -1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        with output.open("w") as file:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(lock), mode, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                cwd=output.parent,
                env=environment,
                pass_fds=[lock] if lock >= 0 else [],
                # Ctrl-C in a terminal goes to all processes of the session; servers are stopped by us, in our order.
                start_new_session=True,
            )
        assert self._guard.stdout is not None
        told = self._guard.stdout.readline().strip()
        self._guard.stdout.close()
        self.pid = int(told) if told else None

    def end(self) -> None:
        """Let the guard do its last work, and wait until it is gone. A detached command stays."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(timeout=_END_S)

    @property
    def is_running(self) -> bool:
        """Whether the command is there (its guard ends with it)."""
        return self._guard.poll() is None

    def wait(self) -> None:
        """Wait until the command has ended."""
        self._guard.wait(timeout=_END_S)
