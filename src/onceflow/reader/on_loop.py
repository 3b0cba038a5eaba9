"""Runs asyncio handlers on the caller's event loop, from the reader's own thread.

What it survives::

    the caller closes its loop, or leaves it for good, while a handler is to run or waits there
    no event has failed by that: the reader ends with an error, and books nothing. Counted as failures, the events would go to
    the dead letters one after the other, and nobody has handled them

    the loop stands still before a handler has begun, the reader gives up, and the loop goes on after all
    the loop makes a task of what it was given, and that takes its first step before it hears that it was cancelled. So one of the
    two takes the turn: the handler that begins, or the reader that gives up. A handler that has no turn does nothing

    the same, and the handler had begun
    it was cancelled by then, and does not go on; only where what it waited for has come already it takes one more step, up to its
    next ``await``. Through a transaction that is over it writes nothing by that

    somebody cancels all tasks of the loop, the handler's among them
    the same; a handler in which something else was cancelled has failed (handling.py)
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future, wait
from typing import Any

from onceflow.errors import ReaderError

log = logging.getLogger("onceflow.reader")
_LOOK_S = 0.2
_PAUSE_S = 5.0  # between two ``run_until_complete`` a loop stands still as well


class OnLoop:
    """Runs a coroutine on ``loop`` and waits for it. Raises what it raises, and ReaderError where the loop does not run it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        once = _Once(coroutine)
        begin = once.begin()
        try:
            asked = asyncio.run_coroutine_threadsafe(begin, self._loop)
        except RuntimeError as error:
            begin.close()
            once.give_up()
            raise loop_is_gone() from error
        try:
            self._wait(asked, once)
            asked.result()
        except CancelledError as error:  # before it began
            once.give_up()
            raise loop_is_gone() from error

    def _wait(self, asked: Future[None], once: _Once) -> None:
        ran_at = time.monotonic()
        while not wait([asked], _LOOK_S).done:
            if self._loop.is_closed():
                once.give_up()
                raise loop_is_gone()
            if self._loop.is_running():
                ran_at = time.monotonic()
            elif time.monotonic() - ran_at > _PAUSE_S:
                once.give_up()
                if asked.cancel():
                    raise loop_is_gone()


class _Once:
    """A coroutine that either begins or never will: the loop's thread and the reader's agree on that by one lock."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._turn = threading.Lock()  # never given back

    async def begin(self) -> None:
        """Runs the coroutine, unless it was given up."""
        if not self._turn.acquire(blocking=False):
            raise asyncio.CancelledError
        await self._coroutine

    def give_up(self) -> None:
        """From now on it does not begin; what has begun is left alone."""
        if self._turn.acquire(blocking=False):
            self._coroutine.close()


def loop_is_gone() -> ReaderError:
    """Told in the log as well: whoever awaited the reader on that loop does not hear of it any more."""
    error = ReaderError(
        "the event loop of the handlers was closed or left, or has cancelled them; of the events in hand none was booked",
        action="end the reader before the loop: cancel the task of run_async(), and await it",
    )
    log.error("%s", error.message)
    return error
