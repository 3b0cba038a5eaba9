"""Runs asyncio handlers on the caller's event loop, from the reader's own thread.

What it survives::

    the caller closes its loop, or leaves it for good, while a handler is to run or waits there
    no event has failed by that: the reader ends with an error, and books nothing. Counted as failures, the events would go to
    the dead letters one after the other, and nobody has handled them

    the loop is left, the reader gives up, and the loop goes on after all
    the coroutine was cancelled by then: it does not write through a transaction that is over

    somebody cancels all tasks of the loop, the handler's among them
    the same; a handler in which something else was cancelled has failed (handling.py)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
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
        try:
            asked = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:
            coroutine.close()
            raise loop_is_gone() from error
        try:
            self._wait(asked, coroutine)
            asked.result()
        except CancelledError as error:  # before it began
            raise loop_is_gone() from error

    def _wait(self, asked: Future[None], coroutine: Coroutine[Any, Any, None]) -> None:
        ran_at = time.monotonic()
        while not wait([asked], _LOOK_S).done:
            if self._loop.is_closed():
                if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                    coroutine.close()
                raise loop_is_gone()
            if self._loop.is_running():
                ran_at = time.monotonic()
            elif time.monotonic() - ran_at > _PAUSE_S and asked.cancel():
                raise loop_is_gone()


def loop_is_gone() -> ReaderError:
    """Told in the log as well: whoever awaited the reader on that loop does not hear of it any more."""
    error = ReaderError(
        "the event loop of the handlers was closed or left, or has cancelled them; of the events in hand none was booked",
        action="end the reader before the loop: cancel the task of run_async(), and await it",
    )
    log.error("%s", error.message)
    return error
