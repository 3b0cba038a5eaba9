"""A handler's calls on the event loop, in a task of their own.

What it survives::

    somebody cancels all tasks of the loop, or the reader gives the loop up (on_loop.py)
    the outer task is cancelled too, and that is how it is known: no event has failed by it

    a handler uses ``asyncio.TaskGroup``, and a child fails while the group waits for the others
    Python 3.11 leaves a cancellation counted on the task that has the group, for good. It is the inner task's: the event has
    failed, as with any other error. Taken for a cancellation of ours, one poisoned event would end the reader at each start

    the same, and the handler catches it (``except*``)
    what comes next runs in a new task: whatever asks there whether it is being cancelled is not told of the event before

    the loop is left when the inner task is made and has not begun; the reader gives up, and the loop goes on after all
    it is told that all is over, and does not begin

A task for each event would cost more than the rest of what is done for it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from onceflow.reader.on_loop import loop_is_gone
from onceflow.reader.returned import check_finished


class HandlerFailure(Exception):
    """``call`` raised ``cause`` for ``part``."""

    def __init__(self, part: Any, cause: Exception) -> None:
        super().__init__(part, cause)
        self.part = part
        self.cause = cause


class Calls:
    """Calls a function for one part after the other, and awaits what it returns."""

    def __init__(self, call: Callable[[Any], Any], parts: Sequence[Any]) -> None:
        self._call = call
        self._pending = deque(parts)
        self._is_over = False

    async def run(self) -> None:
        """All of them. Raises HandlerFailure, and ReaderError where it is cancelled."""
        while self._pending:
            if _cancellations():
                raise loop_is_gone()
            try:
                await asyncio.ensure_future(self._some())
            except HandlerFailure as failure:
                if _cancellations():
                    raise loop_is_gone() from failure.cause
                raise
            except asyncio.CancelledError as error:
                raise loop_is_gone() from error

    def give_up(self) -> None:
        """From now on no further call begins."""
        self._is_over = True

    async def _some(self) -> None:
        """All of them, or as many as leave nothing on this task."""
        while self._pending and not _cancellations():
            if self._is_over:
                raise asyncio.CancelledError
            part = self._pending.popleft()
            try:
                returned = self._call(part)
                while returned is not None and inspect.isawaitable(returned):
                    returned = await returned
            except (asyncio.CancelledError, Exception) as error:
                raise HandlerFailure(part, _reason(error)) from error
            if returned is not None:
                check_finished(returned)


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _reason(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError("the handler was cancelled")
