"""An error in one line, for a message that has more to say."""

from __future__ import annotations

from onceflow.errors import OnceflowError


def first_line_of(error: BaseException) -> str:
    """The first line of what it says, without its code and advice if it is ours; its type where it says nothing."""
    text = error.message if isinstance(error, OnceflowError) else str(error)
    return (text.strip() or type(error).__name__).splitlines()[0]
