"""Rows to write, each with its CloudEvents identity in the headers, built by columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from onceflow.events import ID_HEADER, SEQUENCE_HEADER, SOURCE_HEADER, SPECVERSION, SPECVERSION_HEADER, TYPE_HEADER
from onceflow.transaction.arrow import Integers, join, lengths
from onceflow.transaction.columns import HEADERS_TYPE

EVENT_TYPE = "onceflow.row"


def event_rows(values: pa.Array, keys: pa.Array | None, source: str, ids: pa.Array, *, rising: bool) -> pa.RecordBatch:
    """The columns value, key and headers. ``ids`` (string): each row's position; ``rising``: they are rising numbers too."""
    columns = {"value": values, "headers": _headers(source, ids, rising=rising)}
    return pa.RecordBatch.from_pydict({**columns, "key": keys} if keys is not None else columns)


def numbers_as_text(first: int, count: int) -> pa.Array:
    """``first`` and the ``count`` - 1 numbers after it, as strings."""
    return pa.array(np.arange(first, first + count, dtype=np.int64)).cast(pa.string())


def _headers(source: str, ids: pa.Array, *, rising: bool) -> pa.Array:
    """list<struct<key, value>>.

    The names are the same in each row, and the values of a row lie next to each other: lengths alone say where each begins.
    """
    ids = ids.cast(pa.binary())
    parts = {
        SPECVERSION_HEADER: SPECVERSION.encode(),
        ID_HEADER: ids,
        SOURCE_HEADER: source.encode(),
        TYPE_HEADER: EVENT_TYPE.encode(),
        **({SEQUENCE_HEADER: ids} if rising else {}),
    }
    rows, names = len(ids), list(parts)
    sizes = np.empty((rows, len(names)), np.int32)
    for column, part in enumerate(parts.values()):
        sizes[:, column] = len(part) if isinstance(part, bytes) else lengths(part)
    values = _values(join(*parts.values()), sizes)
    entries = pa.StructArray.from_arrays([_names(names, rows), values], fields=list(HEADERS_TYPE.value_type))
    starts = pa.array(np.arange(0, (rows + 1) * len(names), len(names), dtype=np.int32))
    return pa.ListArray.from_arrays(starts, entries, type=HEADERS_TYPE)


def _values(joined: pa.Array, sizes: Integers) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), sizes.size, [None, pa.py_buffer(_starts(sizes)), joined.buffers()[2]])


def _names(names: list[str], rows: int) -> pa.Array:
    sizes = np.tile(np.array([len(name) for name in names], np.int32), rows)
    data = pa.py_buffer("".join(names).encode() * rows)
    return pa.Array.from_buffers(pa.string(), sizes.size, [None, pa.py_buffer(_starts(sizes)), data])


def _starts(sizes: Integers) -> Integers:
    starts = np.zeros(sizes.size + 1, np.int32)
    np.cumsum(sizes.ravel(), out=starts[1:])
    return starts
