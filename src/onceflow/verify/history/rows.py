"""Rows as Python has them to columns as Arrow has them; of a column that cannot be made, what is wrong is said with its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from onceflow.verify.history.validation import rows_text

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def columns_of(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> tuple[dict[str, pa.Array], dict[str, str]]:
    """The columns of these names as far as they can be made, and of each other one what is wrong with it."""
    columns: dict[str, pa.Array] = {}
    unreadable: dict[str, str] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[printable(name)] = pa.array(values)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
            wrong = "; ".join(_mistakes(values)) or f"cannot be read: {error}"
            unreadable[printable(name)] = f"column {printable(name)} {wrong}"
    return columns, unreadable


def printable(text: str) -> str:
    """The text with escapes in the place of lone surrogates, which JSON can name and UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _mistakes(values: list[Any]) -> Iterator[str]:
    first = next((type(value) for value in values if value is not None), None)
    if odd := _rows(values, lambda value: type(value) is not first):
        yield f"mixes types; {odd} differ from the first"
    if large := _rows(values, lambda value: isinstance(value, int) and not _LEAST <= value <= _MOST):
        yield f"has numbers beyond 64 bits in {large}"
    if broken := _rows(values, lambda value: isinstance(value, str) and printable(value) != value):
        yield f"has text that is not Unicode (a lone surrogate) in {broken}"


def _rows(values: list[Any], is_wrong: Callable[[Any], bool]) -> str:
    """The numbers of the rows in which it is wrong, as text; empty where it is right in all."""
    found = [row for row, value in enumerate(values) if value is not None and is_wrong(value)]
    return rows_text(np.array(found, np.int64)) if found else ""
