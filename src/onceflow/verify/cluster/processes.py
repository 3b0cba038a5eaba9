"""Processes of this machine as ``/proc`` tells them: who is whose child, and what runs. Linux."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def running() -> Iterator[tuple[int, int, str]]:
    """(pid, its parent's, command line with spaces between) of every process that is no zombie."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command:
                    yield int(entry.name), _parent(entry), command


def _parent(entry: Path) -> int:
    # The name in parentheses may contain anything, parentheses too; state and parent follow the last one.
    return int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False if the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def is_there(pid: int) -> bool:
    """Whether a process has that pid, and is no zombie."""
    try:
        return bool((_PROC / str(pid) / "cmdline").read_bytes())
    except OSError:
        return False
