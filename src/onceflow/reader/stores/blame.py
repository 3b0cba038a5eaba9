"""Whose fault it is: the store's own trouble in what a handler's error was raised from, and what no event is guilty of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onceflow.errors import StoreError
from onceflow.reader.stores.interface import CommitRefused


@contextmanager
def nobody_else_writes() -> Iterator[None]:
    """Around a transaction of the store alone: a commit that is refused is no failure of events. Raises StoreError."""
    try:
        yield
    except CommitRefused as error:
        raise own_refused(error) from error


def own_refused(error: BaseException) -> StoreError:
    """The database has said no to what the store alone has written."""
    said = (isinstance(error, CommitRefused) and error.__cause__) or error
    return StoreError(
        f"the store's database refused what the store itself writes, and no handler: {type(said).__name__}: {said}",
        action="see the message: look for missing rights, and for constraints and triggers on the tables onceflow_*. Nothing was "
        "committed, and the events come again",
    )


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was raised from or in spite of: a handler may have made one of its own of the database's.

    A group holds what went wrong at the same time (``asyncio.TaskGroup``): all of it is looked at. Each once: ``raise error from
    error`` makes a circle, and Python does not mind.
    """
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        waiting.append(found.__cause__ or found.__context__)
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions
