"""The user's function, made one thing: plain or asyncio, for one event or for a batch, with the transaction or without."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from onceflow.errors import ConfigurationError, StoreError
from onceflow.reader.event import Event
from onceflow.reader.on_loop import loop_is_gone

RunCoroutine = Callable[[Coroutine[Any, Any, None]], None]


class Failed(Exception):
    """The function raised ``cause``. ``event`` is the one it was given, or None where it had a batch of several."""

    def __init__(self, event: Event | None, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.event = event
        self.cause = cause


class Handler:
    """Calls the function for events, in order. Raises Failed, and the store's own errors as they are.

    A function of two parameters gets the store's transaction as the second one; a function of one parameter has its effects
    elsewhere.
    """

    def __init__(self, function: Callable[..., Any], *, batch: bool = False) -> None:
        self.takes_transaction = _count_of_parameters(function) == 2
        self.is_async = inspect.iscoroutinefunction(function)
        self.batch = batch
        self.run_coroutine: RunCoroutine | None = None  # set by whoever runs the event loop
        self._function = function

    def run(self, events: Sequence[Event], transaction: Any) -> None:
        """Handles all of them; ``transaction`` is passed on if the function takes it."""
        if not events:
            return
        extra = (transaction,) if self.takes_transaction else ()
        if self.is_async:
            assert self.run_coroutine is not None
            self.run_coroutine(self._run_async(events, extra))
        elif self.batch:
            self._run_batch(events, extra)
        else:
            self._run_each(events, extra)

    def _run_each(self, events: Sequence[Event], extra: tuple[Any, ...]) -> None:
        function = self._function
        for event in events:
            try:
                function(event, *extra)
            except StoreError:
                raise
            except Exception as error:
                raise Failed(event, error) from error

    def _run_batch(self, events: Sequence[Event], extra: tuple[Any, ...]) -> None:
        try:
            self._function(events, *extra)
        except StoreError:
            raise
        except Exception as error:
            raise Failed(events[0] if len(events) == 1 else None, error) from error

    async def _run_async(self, events: Sequence[Event], extra: tuple[Any, ...]) -> None:
        parts: Sequence[Any] = [events] if self.batch else events
        for part in parts:
            try:
                await self._function(part, *extra)
            except StoreError:
                raise
            except (asyncio.CancelledError, Exception) as error:
                if _is_being_cancelled():
                    raise loop_is_gone() from error
                raise Failed(self._blamed(part, events), _reason(error)) from error

    def _blamed(self, part: Any, events: Sequence[Event]) -> Event | None:
        """The event of which it is known that it failed."""
        if not self.batch:
            return cast("Event", part)
        return events[0] if len(events) == 1 else None


def _is_being_cancelled() -> bool:
    """Whether somebody has cancelled the task itself, and not something that the handler waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _reason(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError("the handler was cancelled")


def _count_of_parameters(function: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    count = sum(each.kind in kinds and each.default is each.empty for each in parameters)
    if count not in (1, 2):
        mistake = f"it takes {count} parameters; a handler takes (event) or (event, tx), a batch handler (events) or (events, tx)"
        raise ConfigurationError.of("the handler", [mistake])
    return count
