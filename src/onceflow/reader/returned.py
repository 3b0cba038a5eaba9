"""What a handler's call gave back: nothing is left to do, or something is.

What it survives::

    an ``async def`` that cannot be seen before it is called: behind an ordinary decorator, or in a lambda
    what it returned is awaited on the event loop. Thrown away, nothing of the handler would have run, and every event would count
    as handled

    what it returned runs only when somebody goes through it (a generator, ``map``), or in another thread (an executor's future)
    nobody knows that it is done: the reader ends with an error, and nothing is booked
"""

from __future__ import annotations

import concurrent.futures
import inspect
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from onceflow.errors import ConfigurationError

_UNFINISHED = (GeneratorType, AsyncGeneratorType, map, filter, concurrent.futures.Future)


def check_finished(returned: Any) -> None:
    """Raises ConfigurationError for what shows that the handler's work is not done."""
    if not isinstance(returned, _UNFINISHED):
        return
    if isinstance(returned, GeneratorType):
        returned.close()
    mistake = (
        f"it returned {type(returned).__name__!r} object, and its work is not done by that: do it before returning, "
        "or be async def; none of the events in hand was booked"
    )
    raise ConfigurationError.of("the handler", [mistake])


def drop(awaitable: Any) -> None:
    """Closes a coroutine that never began, so that nobody is told of it when it is collected."""
    if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
        awaitable.close()
