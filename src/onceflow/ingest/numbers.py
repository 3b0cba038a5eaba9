"""Where the sequence of a table's column stands, and whether its numbers go on from a position.

the table is emptied, its sequence restarted (or the table dropped and made anew), and filled again
the last number is smaller than the position: refused

and filled with more rows than before, in one transaction: the last number is larger than the position
a restarted sequence is another run of it, which PostgreSQL tells: refused. SQLite does not tell
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any


@dataclass(frozen=True, slots=True)
class Numbers:
    """``drawn``: the last number that was given. ``series``: of which sequence, in which form, in which of its runs; or empty."""

    drawn: int
    series: tuple[str, ...] = ()


def series_of(numbers: Numbers | None) -> tuple[str, ...]:
    """Empty where nothing is known."""
    return numbers.series if numbers else ()


def fallen_behind(value: Any, numbers: Numbers | None) -> str:
    """Why the next numbers would be behind a position's value; empty if they are not. A moment later nothing may tell.

    A column of type numeric(9, 2) has 12.00 for 12.
    """
    if numbers is None or Decimal(value) <= numbers.drawn:
        return ""
    return f"its numbers began anew, the last one is {numbers.drawn}"


def another_series(before: tuple[str, ...], numbers: Numbers | None) -> str:
    """Why the numbers are not those of the series before; empty if they are, or nothing tells.

    A change of the form (a larger type, another maximum) is another run as well, and goes on with its numbers.
    """
    now = series_of(numbers)
    if numbers is None or not before or not now:
        return ""
    if before[0] == now[0] and (before[1] != now[1] or before[2] == now[2]):
        return ""
    return (
        "its numbers began anew (TRUNCATE ... RESTART IDENTITY, ALTER SEQUENCE ... RESTART, or another sequence), the last one "
        f"is {numbers.drawn}; if you know that they went on behind the position, --trust-order goes on as well"
    )
