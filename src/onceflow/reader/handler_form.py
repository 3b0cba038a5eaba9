"""What kind of function a handler is, as far as that can be seen before it is called.

What a call gives back tells the rest (``returned.py``): behind a decorator, or in a lambda, an ``async def`` cannot be seen.
Looking through ``functools.wraps`` would be a guess: a decorator that itself runs what it wraps would be taken for that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from onceflow.errors import ConfigurationError

TRANSACTION = "tx"
"""What a parameter must be called that is given by keyword alone."""
_FORMS = "a handler takes (event) or (event, tx), a batch handler (events) or (events, tx)"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class HandlerForm:
    """``by_keyword``: the transaction is ``(event, *, tx)``. ``is_async``: the call gives a coroutine."""

    takes_transaction: bool
    by_keyword: bool
    is_async: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> HandlerForm:
        """Raises ConfigurationError for what is no handler."""
        parameters = _required_parameters(function)
        positional = [each for each in parameters if each.kind in _POSITIONAL]
        by_keyword = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
        mistakes = [
            f"it needs the keyword argument {name!r}, which nobody gives; {_FORMS}"
            for name in by_keyword
            if name != TRANSACTION
        ]
        count = len(positional) + (TRANSACTION in by_keyword)
        if not positional or count > 2:
            mistakes.append(f"it takes {count} parameters; {_FORMS}")
        if _any_is(function, inspect.isgeneratorfunction) or _any_is(function, inspect.isasyncgenfunction):
            mistakes.append("it is a generator function: a call runs nothing of it; return nothing instead of yielding")
        if mistakes:
            raise ConfigurationError.of("the handler", mistakes)
        return cls(count == 2, TRANSACTION in by_keyword, _any_is(function, inspect.iscoroutinefunction))


def _required_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigurationError.of("the handler", [f"its parameters cannot be seen: {error}; {_FORMS}"]) from error
    return [each for each in parameters if each.default is each.empty]


def _any_is(function: Any, kind: Callable[[Any], bool]) -> bool:
    """Whether it is of that kind, or is an object that is called by such a method; seen through ``functools.partial``."""
    while isinstance(function, partial):
        function = function.func
    return kind(function) or kind(getattr(type(function), "__call__", None))  # noqa: B004 (the class has what a call finds)
