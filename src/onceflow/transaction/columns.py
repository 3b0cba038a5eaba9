"""The columns of a batch to write: one shape, whatever the caller's types."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from onceflow.errors import ColumnError, InputError

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMESTAMP_TYPE = pa.timestamp("ms")


def normalize(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The record columns of ``batch`` in one shape; other columns are left out and no value is copied.

    ``value`` (required) and ``key``: string or binary in, binary or large_binary out, nullable; ``headers``: Spark's
    ``array<struct<key: string, value: binary>>``, nullable; ``timestamp``: any unit and zone in, timestamp[ms] out,
    nullable. Raises ColumnError when ``value`` is missing or a column has another type, InputError when a timestamp
    does not fit. Runs on driver or executor; a normalized batch comes back as it is.
    """
    names = batch.schema.names
    if "value" not in names:
        raise ColumnError("the column value is missing", action="add a column value (string or binary)", column="value")
    converters = {"value": as_binary, "key": as_binary, "headers": _headers, "timestamp": _timestamp}
    columns = {name: convert(batch.column(name), name) for name, convert in converters.items() if name in names}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def as_binary(column: pa.Array, name: str) -> pa.Array:
    """A string or binary column as binary (large_binary for the large types); raises ColumnError for another type."""
    kind = column.type
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return column
    if pt.is_large_string(kind):
        return column.cast(pa.large_binary())
    if _is_bytes(kind) or pt.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    raise _wrong_type(name, kind, "string or binary")


def _is_bytes(kind: pa.DataType) -> bool:
    small = pt.is_string(kind) or pt.is_binary(kind) or pt.is_null(kind)
    return bool(small or pt.is_string_view(kind) or pt.is_binary_view(kind))


def _headers(column: pa.Array, name: str) -> pa.Array:
    if column.type == HEADERS_TYPE:
        return column
    if not (pt.is_null(column.type) or _is_headers(column.type)):
        raise _wrong_type(name, column.type, "array<struct<key: string, value: binary>>")
    return column.cast(HEADERS_TYPE)


def _is_headers(kind: pa.DataType) -> bool:
    """Checked by name: Arrow's cast matches struct fields by name and silently gives null for one it does not find."""
    if not (pt.is_list(kind) or pt.is_large_list(kind)) or not pt.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    if list(fields) != ["key", "value"]:
        return False
    key, value = fields["key"], fields["value"]
    text = pt.is_string(key) or pt.is_large_string(key) or pt.is_string_view(key)
    return bool(text and (_is_bytes(value) or pt.is_large_binary(value) or pt.is_large_string(value)))


def _timestamp(column: pa.Array, name: str) -> pa.Array:
    if not (pt.is_timestamp(column.type) or pt.is_null(column.type)):
        raise _wrong_type(name, column.type, "timestamp")
    try:
        return column.cast(options=pc.CastOptions(TIMESTAMP_TYPE, allow_time_truncate=True))
    except pa.ArrowInvalid as failure:
        raise InputError(f"the column {name} holds a timestamp out of range: {failure}", column=name) from failure


def _wrong_type(name: str, kind: pa.DataType, wanted: str) -> ColumnError:
    return ColumnError(
        f"the column {name} is {kind}; Kafka records need {wanted}",
        action=f"cast {name} to {wanted} before writing",
        column=name,
        type=str(kind),
    )
