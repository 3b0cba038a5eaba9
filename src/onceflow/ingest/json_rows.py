"""Rows of Arrow batches as JSON text, column by column in C++: escaped strings joined in one pass, no Python object per value.

Hazard::

    a day, a moment or a time of day is none that Arrow can write: infinity as some write it, 24:00:00, a day after the year 32767
    it does not say so, but gives the text "<value out of range: ...>" for a value: refused

Numbers are written with all their digits, as PostgreSQL's ``to_json`` does; NaN and the infinities, which JSON lacks, become
the strings "NaN", "Infinity" and "-Infinity". Dates and times are ISO 8601 strings, bytes are base64. Within lists and structs,
which are made of columns as well, each value is written as in a column of its own.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from onceflow.errors import InputError

_SHORT = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0C: "\\f", 0x0D: "\\r"}
_LISTS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)
_NOT_NUMBERS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}

Piece = Any
"""A literal (str), or a value for each row (a string array)."""


def rows_as_json(batch: pa.RecordBatch) -> pa.Array:
    """One JSON object (string) for each row, its members in the order of the columns. Raises InputError."""
    members: list[tuple[str, list[Piece]]] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            members.append((name, _value(column)))
        except (ValueError, OverflowError) as error:
            raise _not_written(f"column {name}", error) from None
    return _objects(members)


def _objects(members: Iterable[tuple[str, list[Piece]]]) -> pa.Array:
    pieces: list[Piece] = []
    for number, (name, value) in enumerate(members):
        pieces += ["," if number else "{", json.dumps(name, ensure_ascii=False) + ":", *value]
    return _joined([*pieces, "}"])


def _joined(pieces: Iterable[Piece]) -> pa.Array:
    return pc.binary_join_element_wise(*_literals_joined(pieces), "")


def column_as_text(column: pa.Array) -> pa.Array:
    """The column as plain text (string, nullable): what a key is made of. What is a string in JSON has no quotes here."""
    if pt.is_dictionary(column.type):
        return column_as_text(column.dictionary_decode())
    if _is_text(column.type):
        return column.cast(pa.string())
    try:
        text, _ = _text(column)
    except (ValueError, OverflowError) as error:
        raise _not_written("the column of the key", error) from None
    return _unquoted(text)


def _unquoted(text: pa.Array) -> pa.Array:
    """JSON values, those that are strings by what they say: bytes, UUIDs, durations, and floats that are no numbers."""
    quoted = pc.starts_with(text, '"')
    if not pc.any(quoted).as_py():
        return text
    said = [
        json.loads(value) if is_quoted else value
        for value, is_quoted in zip(text.to_pylist(), quoted.to_pylist(), strict=True)
    ]
    return pa.array(said, pa.string())


def escaped(text: pa.Array) -> pa.Array:
    """Strings as they stand between the quotes of JSON; most columns need nothing, which one look at their bytes tells."""
    for byte in _special_bytes(text):
        text = pc.replace_substring(text, chr(byte), _SHORT.get(byte, f"\\u{byte:04x}"))
    return text


def _special_bytes(text: pa.Array) -> list[int]:
    """The bytes in it that JSON wants escaped; the backslash first, which the other escapes contain."""
    data = _bytes_of(text)
    if not ((data < 0x20).any() or (data == 0x22).any() or (data == 0x5C).any()):
        return []
    present = np.flatnonzero(np.bincount(data, minlength=128)).tolist()
    found = {byte for byte in present if byte < 0x20 or byte in _SHORT}
    return sorted(found, key=lambda byte: (byte != 0x5C, byte))


def _bytes_of(text: pa.Array) -> npt.NDArray[np.uint8]:
    _, bounds, data = text.buffers()
    if data is None or len(text) == 0:
        return np.empty(0, np.uint8)
    starts = np.frombuffer(bounds, np.int32)[text.offset : text.offset + len(text) + 1]
    return np.frombuffer(data, np.uint8)[starts[0] : starts[-1]]


def _literals_joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Neighbouring literals as one, so that the join has few parts."""
    literal = ""
    for piece in pieces:
        if isinstance(piece, str):
            literal += piece
        else:
            yield literal
            yield piece
            literal = ""
    yield literal


def _value(column: pa.Array) -> list[Piece]:
    text, quoted = _text(column)
    quote = '"' if quoted else ""
    if column.null_count == 0:
        return [quote, text, quote]
    whole = _joined([quote, text, quote]) if quoted else text
    return [whole.fill_null("null")]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def _text(column: pa.Array) -> tuple[pa.Array, bool]:
    """The column as text (string, null where it is null), and whether JSON wants it in quotes."""
    kind = column.type
    if pt.is_dictionary(kind):
        return _text(column.dictionary_decode())
    if _is_text(kind):
        return escaped(column.cast(pa.string())), True
    if pt.is_floating(kind):
        return _floats(column), False
    if pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_decimal(kind) or pt.is_null(kind):
        return column.cast(pa.string()), False
    if pt.is_date(kind) or pt.is_time(kind):
        return _times(column.cast(pa.date32()) if pt.is_date64(kind) else column), True
    if pt.is_timestamp(kind):
        return _timestamps(column), True
    if pt.is_struct(kind):
        return _structs(column), False
    if pt.is_map(kind):
        return _maps(column), False
    if any(is_one(kind) for is_one in _LISTS):
        return _lists(column, _value(column.flatten())), False
    return pa.array([None if value is None else json_text(value) for value in column.to_pylist()], pa.string()), False


def _floats(column: pa.Array) -> pa.Array:
    text = (column.cast(pa.float32()) if pt.is_float16(column.type) else column).cast(pa.string())
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return text
    for found, written in _NOT_NUMBERS.items():
        text = pc.if_else(pc.equal(text, found), written, text)
    return text


def _timestamps(column: pa.Array) -> pa.Array:
    """``2010-12-01T08:26:00``; with a time zone in UTC, ending in Z, whatever the zone is called."""
    if column.type.tz is None:
        return pc.replace_substring(_times(column), " ", "T")
    return pc.binary_join_element_wise(_timestamps(column.cast(pa.timestamp(column.type.unit))), "Z", "")


def _times(column: pa.Array) -> pa.Array:
    """Raises ValueError for one that Arrow has no text for."""
    text = column.cast(pa.string())
    odd = text.filter(pc.starts_with(text, "<"))
    if len(odd):
        raise ValueError(odd[0].as_py())
    return text


def _structs(column: pa.StructArray) -> pa.Array:
    """Objects. Raises ValueError for one with two members of a name."""
    names = column.type.names
    if len(set(names)) < len(names):
        raise ValueError(f"two members of {', '.join(names)} have one name")
    objects = _objects((name, _value(part)) for name, part in zip(names, column.flatten(), strict=True))
    return pc.if_else(column.is_valid(), objects if names else "{}", None)


def _maps(column: pa.MapArray) -> pa.Array:
    """Arrays of pairs, as the names need not be text, nor different."""
    name, value = pa.field("key", column.type.key_type, nullable=False), pa.field("value", column.type.item_type)
    pairs = column.cast(pa.list_(pa.struct([name, value])))
    names, values = pairs.flatten().flatten()
    return _lists(pairs, ["[", *_value(names), ",", *_value(values), "]"])


def _lists(column: pa.Array, parts: list[Piece]) -> pa.Array:
    """Arrays; ``parts``: what is in all of them."""
    ends = np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False))
    lists = pa.ListArray.from_arrays(np.concatenate([[0], ends]).astype(np.int32), _joined(parts))
    arrays = _joined(["[", pc.binary_join(lists, ","), "]"])
    return pc.if_else(column.is_valid(), arrays, None)


def json_text(value: Any) -> str:
    """A Python value as JSON: for bytes and the like, which are rare, and for SQLite, whose columns have no one type."""
    try:
        return _dumped(value)
    except ValueError:  # a float that JSON lacks: so rare that only then it is looked for
        return _dumped(_numbers_told(value))


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def _numbers_told(value: Any) -> Any:
    """The same with "NaN", "Infinity" and "-Infinity" where these are, however deep."""
    if isinstance(value, float) and not math.isfinite(value):
        return json.loads(_NOT_NUMBERS[str(value)])
    if isinstance(value, dict):
        return {name: _numbers_told(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers_told(part) for part in value]
    return value


def _plain(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _not_written(what: str, error: Exception) -> InputError:
    return InputError(f"{what} holds a value that cannot be written as JSON: {error}", action="cast or drop the column")
