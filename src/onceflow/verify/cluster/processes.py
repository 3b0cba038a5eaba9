"""Processes of this machine as ``/proc`` tells them: who is whose child, and what runs. Linux."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_LISTENS = "0A"  # the state of a socket in /proc/net/tcp


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


def listening_ports(group: int) -> set[int]:
    """The TCP ports on which the processes of a process group listen."""
    inodes = {inode for pid, _, _ in running() if _group(pid) == group for inode in _sockets(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # a machine without IPv6
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and fields[9] in inodes:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def _group(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None


def _sockets(pid: int) -> Iterator[str]:
    """The inodes of its sockets."""
    with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                kind, _, inode = str(entry.readlink()).partition(":")  # socket:[4711]
                if kind == "socket":
                    yield inode.strip("[]")


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
