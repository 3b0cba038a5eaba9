"""The columns that a sink takes from a DataFrame: those of Spark's Kafka sink, and timestamp."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from onceflow.errors import ColumnError
from onceflow.transaction.router import SOURCE_COLUMNS

_TEXT = (StringType, BinaryType)
_ACCEPTED: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "value": (_TEXT, "string or binary"),
    "key": (_TEXT, "string or binary"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType, LongType, ShortType), "int"),
    "headers": ((ArrayType,), "array<struct<key: string, value: binary>>"),
    "timestamp": ((TimestampType, TimestampNTZType), "timestamp"),
}


def record_columns(frame: DataFrame, topic: str | None) -> list[str]:
    """The columns of ``frame`` that are written or named in errors. Raises ColumnError with every missing or mistyped one."""
    fields = {field.name: field.dataType for field in frame.schema.fields}
    mistakes = [_missing(name) for name in _required(topic) if name not in fields]
    mistakes += [
        _mistyped(name, kind) for name, kind in fields.items() if name in _ACCEPTED and not _accepts(name, kind)
    ]
    if mistakes:
        raise ColumnError(
            f"the DataFrame has the columns {', '.join(fields) or '(none)'}: " + "; ".join(mistakes),
            action="select what is to be written: value, and if needed key, topic, partition, headers, timestamp",
            mistakes=tuple(mistakes),
        )
    wanted = [name for name in _ACCEPTED if name in fields and not (name == "topic" and topic is not None)]
    origin = [name for name in SOURCE_COLUMNS if name in fields]
    return wanted + origin


def _required(topic: str | None) -> list[str]:
    return ["value"] if topic is not None else ["value", "topic"]


def _missing(name: str) -> str:
    if name == "topic":
        return "topic is missing, and the sink has no fixed topic"
    return f"{name} is missing"


def _accepts(name: str, kind: DataType) -> bool:
    kinds, _ = _ACCEPTED[name]
    if not isinstance(kind, kinds):
        return False
    return name != "headers" or _is_header(kind)


def _is_header(kind: DataType) -> bool:
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(element, StructType) or element.names != ["key", "value"]:
        return False
    return isinstance(element["key"].dataType, StringType) and isinstance(element["value"].dataType, BinaryType)


def _mistyped(name: str, kind: DataType) -> str:
    return f"{name} is {kind.simpleString()}, it must be {_ACCEPTED[name][1]}"
