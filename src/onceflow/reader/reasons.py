"""What a failure says, as text that a log and a header of Kafka can hold, whatever the exception is made of.

What it survives::

    the text holds a lone surrogate (a file's name that is no UTF-8, as ``os.fsdecode`` gives it), which no UTF-8 can say
    it is escaped. Raised at the dead letter, the UnicodeEncodeError would end the reader at that event, at each start

    the exception's own ``__str__`` raises
    that is said in its place
"""

from __future__ import annotations

from collections.abc import Iterator


def told(error: BaseException) -> str:
    """Its class and its text; of a group also those of what is in it, which its own text only counts."""
    text = f"{type(error).__name__}: {_text(error)}"
    if isinstance(error, BaseExceptionGroup):
        text = f"{text}: {'; '.join(map(told, _leaves(error)))}"
    return text.encode("utf-8", "backslashreplace").decode()


def has_text(error: BaseException) -> bool:
    """Whether its ``__str__`` returns."""
    try:
        str(error)
    except Exception:  # noqa: BLE001 (it is the user's)
        return False
    return True


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 (it is the user's)
        return f"(it has no text: its __str__ raised {type(second).__name__})"


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each
