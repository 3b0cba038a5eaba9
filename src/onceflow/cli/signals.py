"""How a long command takes signals. Two ways to end, and one to hear:

``end_in_order``: what commits may be asked to end; a second signal ends it at once, as a crash would.
``clean_up_when_interrupted``: what has processes of its own ends through every ``finally``, so that none of them stays.

What it survives::

    the main thread has looked for signals and goes into a wait; a signal comes before it is there
    Python runs a handler in the main thread, once that does something again: when the batch is over (seen: five minutes later,
    which the second signal was to cut short; beside two busy threads one signal in thirty came so)

So a thread hears them, from the pipe that the interpreter writes to at the moment of the signal (``signal.set_wakeup_fd``), and
sends a signal that the main thread itself has to take on to it until it has.

::

    stderr goes to a program that ended (``2>&1 | tee log``: Ctrl-C ends tee too), or to one that has stopped reading
    "interrupted" cannot be written: the thread would die of it, or wait for ever, and no further signal would be heard

So a process that is to end does so whether or not it can say it.

::

    the terminal shows a table that is drawn over and over (progress.py), for which its cursor is hidden
    the process ends at once, and nothing shows it again: whoever types there does not see where

So that is done first.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TextIO

from onceflow.stop_flag import StopFlag

NUMBERS = (signal.SIGINT, signal.SIGTERM)
_AND_A_CLOSED_TERMINAL = (*NUMBERS, signal.SIGHUP)
_AGAIN_S = 0.05
_SHOW_CURSOR = b"\x1b[?25h"


@contextmanager
def end_in_order(stop: Callable[[str], None], may_stop: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """For the main thread: within it the first SIGINT or SIGTERM calls ``stop`` with its name, on a thread of its own.

    A second one, or one before ``may_stop``, ends the process with 128 and its number, as a crash would: nothing is half visible,
    and the next start finds out what was open.
    """
    asked = False

    def take(number: int) -> None:
        nonlocal asked
        if asked or not may_stop():
            _end_at_once(128 + number)
        asked = True
        stop(signal.Signals(number).name)

    with _heard(take):
        yield


@contextmanager
def clean_up_when_interrupted() -> Iterator[None]:
    """For the main thread: within it the first SIGINT, SIGTERM or SIGHUP raises SystemExit there, with 128 and its number.

    Further ones do nothing: they would only tear the cleaning up apart. SIGHUP (the terminal is closed) stays ignored where it
    is, as ``nohup`` wants it.
    """
    taken = StopFlag()
    main, asked = threading.get_ident(), False

    def end(number: int, _: FrameType | None) -> None:
        if not taken.is_set():
            taken.set()
            raise SystemExit(128 + number)

    def take(number: int) -> None:
        nonlocal asked
        if asked:
            return
        asked = True
        with suppress(OSError, ValueError):
            _say(b"\ninterrupted: ending all processes and cleaning up\n")
        while not taken.wait(_AGAIN_S):
            signal.pthread_kill(main, number)  # ends its wait

    with _heard(take, end, _AND_A_CLOSED_TERMINAL):
        try:
            yield
        finally:
            taken.set()  # or a signal that comes with the end would be sent on for ever


def _end_at_once(status: int) -> None:
    try:
        _show_cursor()
        _say(b"\ninterrupted\n")
    finally:
        os._exit(status)


def _show_cursor() -> None:
    with suppress(OSError, ValueError):
        if sys.__stdout__ is not None and sys.__stdout__.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
            _write(sys.__stdout__, _SHOW_CURSOR)


def _say(text: bytes) -> None:
    """On the standard error, if there is one: else it was closed when Python started, and by now its number may be anything's."""
    if sys.__stderr__ is not None:
        _write(sys.__stderr__, text)


def _write(to: TextIO, text: bytes) -> None:
    """If it takes the text now."""
    _, writable, _ = select.select([], [to], [], 0)
    if writable:
        os.write(to.fileno(), text)


def _nothing(number: int, _: FrameType | None) -> None:
    pass


@contextmanager
def _heard(
    take: Callable[[int], None],
    in_main: Callable[[int, FrameType | None], None] = _nothing,
    numbers: Sequence[signal.Signals] = NUMBERS,
) -> Iterator[None]:
    """``take`` is called on a thread of its own, ``in_main`` in the main thread, whenever that looks for signals."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    heard = [each for each in numbers if each in NUMBERS or signal.getsignal(each) is not signal.SIG_IGN]
    thread = threading.Thread(target=_listen, args=(read, take, heard), name="onceflow-signals", daemon=True)
    # Without a handler of Python's, nothing is written to the pipe.
    handlers = {number: signal.signal(number, in_main) for number in heard}
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        os.close(write)
        thread.join()


def _listen(pipe: int, take: Callable[[int], None], wanted: Collection[int]) -> None:
    with open(pipe, "rb", buffering=0) as signals:
        while heard := signals.read(64):
            for number in heard:
                if number in wanted:
                    take(number)
