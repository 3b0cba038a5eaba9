"""The parent process of a broker or another server: starts it and, unless it is to outlive us, kills it when we are gone.

Run as a script of its own, with nothing of onceflow imported::

    guard.py <descriptor of the lock> attached|group|detached <command…>

It writes the command's pid to its standard output. Attached, it then waits: when its standard input ends (the process
that started it closed it, or died in whatever way) it kills the command, and it ends when the command ends. For a group,
whatever the command has started is killed with it: all of the process group, this process too. Detached, it ends at once,
so that the command belongs to nobody and leaves no zombie. The lock is -1 where there is none.

Why a process and not PR_SET_PDEATHSIG: that signal comes when the *thread* that started the child ends, and only on
Linux.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main(arguments: list[str]) -> int:
    """Start the command and watch over it; gives its exit code."""
    lock, mode, *command = arguments
    locks = [int(lock)] if int(lock) >= 0 else []
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr, pass_fds=locks)
    for each in locks:
        os.close(each)  # it must end with the command alone
    print(child.pid, flush=True)
    if mode == "detached":
        # Not returning: the interpreter would wait for nothing, but warn of a child that still runs.
        os._exit(0)
    threading.Thread(target=_kill_at_end_of_input, args=(child, mode), daemon=True).start()
    return child.wait()


def _kill_at_end_of_input(child: subprocess.Popen[bytes], mode: str) -> None:
    # Not through sys.stdin: the interpreter cannot end while a thread holds its buffer.
    while os.read(0, 1):
        pass
    if mode == "group":
        os.killpg(0, signal.SIGKILL)
    child.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
