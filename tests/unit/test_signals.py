"""A command hears a signal whatever its main thread does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

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
def command(*arguments: str, stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    program = [sys.executable, "-c", DEAF, *arguments]
    if stderr == CLOSED:
        program, stderr = ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *program], subprocess.DEVNULL
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
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
