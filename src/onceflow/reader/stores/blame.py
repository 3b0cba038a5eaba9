"""Whose fault it is that a handler failed: a store looks for its own trouble in what the error was raised from."""

from __future__ import annotations

from collections.abc import Iterator


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was raised from or in spite of: a handler may have made one of its own of the database's.

    Each once: ``raise error from error`` makes a circle, and Python does not mind.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
