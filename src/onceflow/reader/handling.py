"""The user's function, made one thing: plain or asyncio, for one event or for a batch, with the transaction or without."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NoReturn, cast

from onceflow.errors import ConfigurationError, StoreError
from onceflow.reader.event import Event
from onceflow.reader.handler_form import TRANSACTION, HandlerForm
from onceflow.reader.on_loop import loop_is_gone
from onceflow.reader.reasons import has_text, told
from onceflow.reader.returned import check_finished, drop
from onceflow.reader.tasks import Calls, HandlerFailure

RunCoroutine = Callable[[Coroutine[Any, Any, None]], None]


class Failed(Exception):
    """The function raised ``cause``. ``event`` is the one it was given, or None where it had a batch of several.

    The cause can always be told: one whose ``__str__`` raises is replaced by one that says so.
    """

    def __init__(self, event: Event | None, cause: Exception) -> None:
        super().__init__(told(cause))
        self.event = event
        self.cause = cause if has_text(cause) else RuntimeError(told(cause))


class Handler:
    """Calls the function for events, in order. Raises Failed, and the store's own errors as they are.

    A function of two parameters gets the store's transaction as the second one (by keyword, where it must be); a function of one
    parameter has its effects elsewhere. What is returned and can be awaited is awaited, and what shows that the work is not
    done is refused with ConfigurationError: no event counts as handled by a call of which nothing has run.
    """

    def __init__(self, function: Callable[..., Any], *, batch: bool = False) -> None:
        form = HandlerForm.of(function)
        self.takes_transaction = form.takes_transaction
        self.is_async = form.is_async
        self.batch = batch
        self.run_coroutine: RunCoroutine | None = None  # set by whoever runs the event loop
        self._by_keyword = form.by_keyword
        self._function = function

    def run(self, events: Sequence[Event], transaction: Any) -> None:
        """Handles all of them; ``transaction`` is passed on if the function takes it."""
        if not events:
            return
        call = self._call_with(transaction)
        parts: Sequence[Any] = [events] if self.batch else events
        if self.batch:
            call = _with_a_list_of_its_own(call)
        if self.is_async:
            self._run_on_loop(call, parts)
        else:
            self._run_here(call, parts)

    def _call_with(self, transaction: Any) -> Callable[[Any], Any]:
        function = self._function
        if not self.takes_transaction:
            return function
        if self._by_keyword:
            return partial(function, **{TRANSACTION: transaction})
        return lambda part: function(part, transaction)

    def _run_here(self, call: Callable[[Any], Any], parts: Sequence[Any]) -> None:
        for part in parts:
            try:
                returned = call(part)
            except Exception as error:  # noqa: BLE001 (it is the user's)
                self._fail(part, error)
            if returned is not None:
                self._finish(part, returned)

    def _finish(self, part: Any, returned: Any) -> None:
        """What a plain function returned may have to be awaited."""
        if not inspect.isawaitable(returned):
            check_finished(returned)
            return
        try:
            self._run_on_loop(lambda _: returned, [part])
        finally:
            drop(returned)

    def _run_on_loop(self, call: Callable[[Any], Any], parts: Sequence[Any]) -> None:
        if self.run_coroutine is None or _inside_of_a_loop():
            mistake = (
                "it is asyncio's, and no event loop can run it here: inside of a running one, await reader.run_async()"
            )
            raise ConfigurationError.of("the handler", [mistake])
        calls = Calls(call, parts)
        coroutine = calls.run()
        try:
            self.run_coroutine(coroutine)
        except HandlerFailure as failure:
            self._fail(failure.part, failure.cause)
        except RuntimeError as error:  # the loop's: it was closed, or stopped by the handler
            raise loop_is_gone() from error
        finally:
            calls.give_up()
            drop(coroutine)

    def _fail(self, part: Any, cause: Exception) -> NoReturn:
        """Raises the store's own error as it is: it keeps what it was raised from, by which its trouble is told."""
        store_error = _store_error(cause)
        if store_error is not None:
            raise store_error
        raise Failed(self._blamed(part), cause) from cause

    def _blamed(self, part: Any) -> Event | None:
        """The event of which it is known that it failed."""
        if not self.batch:
            return cast("Event", part)
        return part[0] if len(part) == 1 else None


def _with_a_list_of_its_own(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A handler may empty it as it works (``while events: book(events.pop())``), and whose failure it was is asked of ours.

    Of an empty one nobody could say: it would be tried again for ever, at once. Of one with a single event left it would be that
    one's, to which the handler had not come.
    """
    return lambda events: call(list(events))


def _store_error(error: Exception) -> StoreError | None:
    """What the store itself raised; of a group (of an ``asyncio.TaskGroup``) the first, whatever else is in it.

    The store goes away in one child, and another one fails, by that or by itself: whether the event is guilty is seen when the
    store is back. Counted now, it could be buried for the store's trouble.
    """
    if isinstance(error, ExceptionGroup):
        return next(filter(None, map(_store_error, error.exceptions)), None)
    return error if isinstance(error, StoreError) else None


def _inside_of_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
