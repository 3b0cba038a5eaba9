"""A flag that a signal's handler sets in the thread that waits for it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from onceflow.stop_flag import StopFlag

PATIENCE_S = 60.0

# The handler runs at each line of the wait in turn, as a signal may come between any two. With a threading.Event it stands still.
SET_AT_EACH_LINE = """
import faulthandler, sys, threading, queue
from onceflow.stop_flag import StopFlag
faulthandler.dump_traceback_later({patience}, exit=True)
Flag = eval(sys.argv[1])
at = 1
while True:
    flag, seen = Flag(), 0
    def trace(frame, what, argument):
        global seen
        if what == "line" and not flag.is_set():
            seen += 1
            if seen == at:
                sys.settrace(None)
                flag.set()
        return trace
    sys.settrace(trace)
    flag.wait(0.01)
    sys.settrace(None)
    if not flag.is_set():
        break
    assert flag.wait(0)
    at += 1
print(at - 1, "lines")
"""


def test_it_is_set_at_any_line_of_a_wait() -> None:
    done = _at_each_line("StopFlag", PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 4


def test_control_an_event_stands_still() -> None:
    assert _at_each_line("threading.Event", 3).returncode == 1


def _at_each_line(flag: str, patience_s: float) -> subprocess.CompletedProcess[str]:
    program = SET_AT_EACH_LINE.replace("{patience}", str(patience_s))
    return subprocess.run(
        [sys.executable, "-c", program, flag], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )


def test_it_wakes_all_that_wait() -> None:
    flag = StopFlag()
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(flag.wait(PATIENCE_S))) for _ in range(3)]
    for thread in threads:
        thread.start()
    flag.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert woken == [True] * 3


def test_a_wait_that_nobody_ends_says_so() -> None:
    assert StopFlag().wait(0.01) is False


def test_a_handler_ends_the_wait_of_its_own_thread() -> None:
    flag = StopFlag()
    before = signal.signal(signal.SIGUSR1, lambda *_: flag.set())
    try:
        threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1)).start()
        assert flag.wait(PATIENCE_S)
    finally:
        signal.signal(signal.SIGUSR1, before)
