"""The columns that a sink takes from a DataFrame: those of Spark's Kafka sink, and timestamp.

What it survives::

    df.select(col("id").alias("Key"), "value"): to Spark Key and key are one name
    a column that is looked for by its letters is not found, and all records are written without a key, in no order

    a timestamp without a time zone, 09:00 in a session in Berlin
    Arrow hands it over as it is; taken for UTC, the record would be dated an hour or two late
"""

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
    StructField,
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
    """SQL for the columns of ``frame`` that are written or named in errors, whatever the case of their names, in one type each.

    A timestamp without a time zone is one of the session's time zone, as in Spark's own cast. Raises ColumnError with every
    column that is missing, mistyped or there twice.
    """
    return columns_of(frame.schema, topic)


def columns_of(schema: StructType, topic: str | None) -> list[str]:
    """As ``record_columns``, of a schema."""
    found = _found(schema, topic)
    mistakes = [_missing(name) for name in _required(topic) if not found[name]]
    for name, fields in found.items():
        mistakes += _mistakes(name, fields)
    if mistakes:
        raise ColumnError(
            f"the DataFrame has the columns {', '.join(schema.names) or '(none)'}: " + "; ".join(mistakes),
            action="select what is to be written: value, and if needed key, topic, partition, headers, timestamp",
            mistakes=tuple(mistakes),
        )
    wanted = [fields[0] for fields in found.values() if fields]
    return [*map(_taken, wanted), *(name for name in SOURCE_COLUMNS if name in schema.names)]


def _found(schema: StructType, topic: str | None) -> dict[str, list[StructField]]:
    """The columns that a sink writes, by the name that it knows them by."""
    names = [name for name in _ACCEPTED if not (name == "topic" and topic is not None)]
    return {name: [field for field in schema.fields if field.name.lower() == name] for name in names}


def _taken(field: StructField) -> str:
    column = f"`{field.name}`"
    if isinstance(field.dataType, TimestampNTZType):
        column = f"CAST({column} AS TIMESTAMP_LTZ)"
    return f"{column} AS `{field.name.lower()}`"


def _mistakes(name: str, fields: list[StructField]) -> list[str]:
    if len(fields) > 1:
        names = ", ".join(field.name for field in fields)
        return [f"{name} is there {len(fields)} times ({names}), keep one of them"]
    return [_mistyped(field.name, name, field.dataType) for field in fields if not _accepts(name, field.dataType)]


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


def _mistyped(written: str, name: str, kind: DataType) -> str:
    return f"{written} is {kind.simpleString()}, it must be {_ACCEPTED[name][1]}"
