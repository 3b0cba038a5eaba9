"""Processes of this machine as ``/proc`` tells them: who is whose child, and what runs. Linux."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from onceflow.errors import VerificationError

_PROC = Path("/proc")
_CONNECTED, _LISTENS = "01", "0A"  # the state of a socket in /proc/net/tcp
_DEAD = "X"
_STANDS_STILL, _HAS_ENDED = frozenset({"T", "t"}), frozenset({"Z", _DEAD})  # the states of a thread
_LOOK_AGAIN_S = 0.001
_OBEYS_WITHIN_S = 30.0  # a signal; it waits for a processor, or for a disk


def running() -> Iterator[tuple[int, int, str]]:
    """(pid, its parent's, command line with spaces between) of every process that is no zombie."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command:
                    yield int(entry.name), _parent(entry), command


def _parent(entry: Path) -> int:
    return int(_status(entry)[1])


def _status(entry: Path) -> list[str]:
    """State, parent and more."""
    # The name in parentheses may contain anything, parentheses too; all else follows the last one.
    return (entry / "stat").read_text().rpartition(")")[2].split()


def jvms(group: int) -> list[int]:
    """The pids of the JVMs of a process group.

    What a JVM starts has the JVM's name until it has its own, and is none.
    """
    found = {pid: parent for pid, parent, _ in running() if _group(pid) == group and _name(pid) == "java"}
    return [pid for pid, parent in found.items() if parent not in found]


def members(group: int) -> list[int]:
    """The pids of a process group, but for those that have ended and were not waited for."""
    return [pid for pid, _, _ in running() if _group(pid) == group]


def _name(pid: int) -> str:
    """That of the program, and no way to it."""
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "comm").read_text().rstrip("\n")
    return ""


def listening_ports(group: int) -> set[int]:
    """The TCP ports on which the processes of a process group listen."""
    inodes = {inode for pid, _, _ in running() if _group(pid) == group for inode in sockets(pid)}
    return {each.port for each in _tcp() if each.state == _LISTENS and each.inode in inodes}


def is_connected(pid: int, ports: Collection[int]) -> bool:
    """Whether it has a TCP connection to one of these ports, of whatever machine."""
    inodes = sockets(pid)
    return any(each.state == _CONNECTED and each.to_port in ports and each.inode in inodes for each in _tcp())


class _Socket(NamedTuple):
    port: int
    to_port: int
    state: str
    inode: str


def _tcp() -> Iterator[_Socket]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # a machine without IPv6
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                port, to_port = (int(address.rpartition(":")[2], 16) for address in fields[1:3])
                yield _Socket(port, to_port, fields[3], fields[9])


def _group(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None


def sockets(pid: int) -> frozenset[str]:
    """The inodes of its sockets; none where it has ended, or is another user's."""
    found = []
    with contextlib.suppress(OSError):
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                kind, _, inode = str(entry.readlink()).partition(":")  # socket:[4711]
                if kind == "socket":
                    found.append(inode.strip("[]"))
    return frozenset(found)


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False if the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def freeze(pid: int) -> bool:
    """SIGSTOP; when it returns all threads of the process stand still. False if it is gone.

    A thread that waits for a processor stops when it gets one, and until then it may do more. Raises VerificationError, and
    lets it go on, if it does not stand still in half a minute.
    """
    if not send(pid, signal.SIGSTOP):
        return False
    try:
        return await_stop(pid)
    except VerificationError:
        send(pid, signal.SIGCONT)
        raise


def await_stop(pid: int) -> bool:
    """Until all threads of one that was sent SIGSTOP stand still. False if it has ended. Raises VerificationError."""
    return not _await_states(pid, _STANDS_STILL | _HAS_ENDED) <= _HAS_ENDED


def kill(pid: int) -> bool:
    """SIGKILL; when it returns the process has ended. False if it was gone before.

    It does what is left of its end itself, when it gets a processor. Raises VerificationError if it does not in half a minute.
    """
    if _states(pid) <= _HAS_ENDED or not send(pid, signal.SIGKILL):
        return False
    _await_states(pid, _HAS_ENDED)
    return True


def _await_states(pid: int, awaited: AbstractSet[str]) -> AbstractSet[str]:
    """The states of its threads, when all are among these."""
    deadline = time.monotonic() + _OBEYS_WITHIN_S
    while not (states := _states(pid)) <= awaited:
        if time.monotonic() > deadline:
            found = ", ".join(sorted(states))
            raise VerificationError(
                f"process {pid} did not obey a signal within {_OBEYS_WITHIN_S} s: its state is {found}"
            )
        time.sleep(_LOOK_AGAIN_S)
    return states


def _states(pid: int) -> AbstractSet[str]:
    """Of its threads, for the first one may have ended before the others; of a process that is gone, dead."""
    found = set()
    with contextlib.suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                found.add(_status(thread)[0])
    return found or {_DEAD}


def variable(pid: int, name: str) -> str | None:
    """What a process found in its environment when it was started; None: nothing, or it has ended, or is another user's."""
    with contextlib.suppress(OSError):
        for entry in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
            found, _, value = entry.decode(errors="replace").partition("=")
            if found == name:
                return value
    return None


def is_there(pid: int) -> bool:
    """Whether a process has that pid, and is no zombie."""
    try:
        return bool((_PROC / str(pid) / "cmdline").read_bytes())
    except OSError:
        return False
