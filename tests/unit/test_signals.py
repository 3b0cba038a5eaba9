"""A command hears a signal whatever its main thread does."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from onceflow.cli.signals import NUMBERS, clean_up_when_interrupted

PATIENCE_S = 60.0
CLOSED = -100

# The main thread is in a wait that the signal does not end, and its Python handlers do not run: as when the signal comes between
# its look for signals and the wait. Here the signal goes to another thread, for this one has it blocked.
DEAF = f"""
import signal, sys, threading
from onceflow.cli.signals import end_in_order

may_stop = sys.argv[1] == "runs"
end = threading.Semaphore(0)

def stop(name):
    print(name, flush=True)
    if "ends" in sys.argv:
        end.release()

with end_in_order(stop, lambda: may_stop):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    print("ready", flush=True)
    end.acquire(timeout={PATIENCE_S})
print("ended", flush=True)
"""


@contextmanager
def command(*arguments: str, program: str = DEAF, stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    words, pipe = [sys.executable, "-c", program, *arguments], subprocess.PIPE
    if stderr == CLOSED:
        words, stderr = ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *words], subprocess.DEVNULL
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=stderr, text=True) as process:
        try:
            assert _line(process) == "ready"
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_one_ends(number: signal.Signals) -> None:
    with command("runs") as process:
        process.send_signal(number)
        assert _line(process) == number.name
        process.send_signal(number)
        assert process.wait(PATIENCE_S / 2) == 128 + number
        assert process.communicate() == ("", "\ninterrupted\n")


def test_a_signal_before_it_may_stop_ends_at_once() -> None:
    with command("starts") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S / 2) == 128 + signal.SIGTERM
        assert process.communicate() == ("", "\ninterrupted\n")


def test_a_command_that_is_asked_ends_in_order() -> None:
    with command("runs", "ends") as process:
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=PATIENCE_S / 2) == ("SIGTERM\nended\n", "")
        assert process.returncode == 0


@contextmanager
def pipe_without_a_reader() -> Iterator[int]:
    """As when the program behind ``2>&1 |`` has ended."""
    read, write = os.pipe()
    os.close(read)
    try:
        yield write
    finally:
        os.close(write)


@contextmanager
def full_pipe() -> Iterator[int]:
    """As when that program has stopped reading."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, bytes(1 << 16))
    os.set_blocking(write, True)
    try:
        yield write
    finally:
        os.close(read)
        os.close(write)


@contextmanager
def closed() -> Iterator[int]:
    yield CLOSED


@pytest.mark.parametrize("made", [pipe_without_a_reader, full_pipe, closed])
def test_a_signal_ends_at_once_though_nothing_can_be_said(made: Callable[[], AbstractContextManager[int]]) -> None:
    with made() as stderr, command("starts", stderr=stderr) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S / 2) == 128 + signal.SIGTERM


SHOWING = f"""
import threading
from onceflow.cli.progress import told
from onceflow.cli.signals import end_in_order

with told(as_json=False, terminal=True), end_in_order(print, lambda: False):
    print("ready", flush=True)
    threading.Event().wait({PATIENCE_S})
"""
HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"


def test_a_terminal_has_its_cursor_back_where_a_signal_ends_at_once() -> None:
    ours, theirs = pty.openpty()
    words, environment = [sys.executable, "-c", SHOWING], {**os.environ, "TERM": "xterm"}
    with (
        os.fdopen(ours, "rb", buffering=0) as terminal,
        subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process,
    ):
        os.close(theirs)
        try:
            seen = b""
            while b"ready" not in seen:
                seen += terminal.read(1024)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S / 2) == 128 + signal.SIGTERM
            with contextlib.suppress(OSError):  # that the other end is closed, once all is read
                while more := terminal.read(1024):
                    seen += more
        finally:
            process.kill()
    assert HIDDEN in seen
    assert seen.rfind(HIDDEN) < seen.rfind(SHOWN)


# The signal comes to another thread, so it ends no wait of the main one's: as where it comes just before that wait. No thread
# gives up the GIL but to wait, so the main one does when another sees it there.
CLEANING = f"""
import faulthandler, signal, sys, threading, time
from onceflow.cli.signals import clean_up_when_interrupted

sys.setswitchinterval({PATIENCE_S})
faulthandler.dump_traceback_later({PATIENCE_S / 2}, exit=True)  # or the test would wait as well
main, never = threading.get_ident(), threading.Lock()

def wait_for_ever():
    never.acquire()

def deliver():
    while sys._current_frames()[main].f_code is not wait_for_ever.__code__:
        time.sleep(0.001)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

never.acquire()
with clean_up_when_interrupted():
    threading.Thread(target=deliver, daemon=True).start()
    try:
        print("ready", flush=True)
        wait_for_ever()
    finally:
        print("cleaning up", flush=True)
        sys.stdin.readline()
        print("cleaned up", flush=True)
"""


def test_what_cleans_up_is_interrupted_in_whatever_wait_and_no_further_signal_tears_it_apart() -> None:
    with command(program=CLEANING) as process:
        assert _line(process) == "cleaning up"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.communicate("go on\n", timeout=PATIENCE_S / 2) == (
            "cleaned up\n",
            "\ninterrupted: ending all processes and cleaning up\n",
        )
        assert process.returncode == 128 + signal.SIGTERM


def test_behind_it_signals_do_what_they_did_before() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with clean_up_when_interrupted():
        assert [signal.getsignal(number) for number in NUMBERS] != before
    assert [signal.getsignal(number) for number in NUMBERS] == before


HANGING_UP = f"""
import signal, sys, threading
from onceflow.cli.signals import clean_up_when_interrupted

if "nohup" in sys.argv:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
with clean_up_when_interrupted():
    try:
        print("ready", flush=True)
        threading.Event().wait({PATIENCE_S})
    finally:
        print("cleaned up", flush=True)
"""


def test_a_terminal_that_is_closed_is_cleaned_up_behind() -> None:
    with command(program=HANGING_UP) as process:
        process.send_signal(signal.SIGHUP)
        assert _line(process) == "cleaned up"
        assert process.wait(PATIENCE_S / 2) == 128 + signal.SIGHUP


def test_who_was_started_to_survive_the_terminal_does() -> None:
    with command("nohup", program=HANGING_UP) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S / 2) == 128 + signal.SIGTERM
