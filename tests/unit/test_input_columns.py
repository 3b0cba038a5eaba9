"""Which columns of a frame a sink takes: whatever the case of their names, each once, in one type."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from onceflow.errors import ColumnError
from onceflow.transaction.input_columns import columns_of

TEXT = StringType()
HEADERS = ArrayType(StructType([StructField("key", TEXT), StructField("value", BinaryType())]))


def schema(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(*column) for column in columns])


def test_columns_are_taken_by_their_names_in_one_order() -> None:
    every = schema(
        ("timestamp", TimestampType()), ("_offset", IntegerType()), ("headers", HEADERS), ("other", TEXT), ("topic", TEXT),
        ("partition", IntegerType()), ("key", TEXT), ("value", TEXT), ("_topic", TEXT),
    )  # fmt: skip
    names = ["value", "key", "topic", "partition", "headers", "timestamp"]
    origin = ["_topic", "_offset"]
    assert columns_of(every, None) == [*(f"`{name}` AS `{name}`" for name in names), *origin]
    names.remove("topic")
    assert columns_of(every, "fixed") == [*(f"`{name}` AS `{name}`" for name in names), *origin]


def test_a_column_in_another_case_is_taken() -> None:
    """It was passed over: all records were written without a key."""
    assert columns_of(schema(("VALUE", TEXT), ("Key", TEXT)), "t") == ["`VALUE` AS `value`", "`Key` AS `key`"]


def test_columns_that_differ_in_case_alone_are_refused() -> None:
    with pytest.raises(
        ColumnError, match=r"value is there 2 times \(value, value\), .*; key is there 2 times \(key, Key\)"
    ):
        columns_of(schema(("key", TEXT), ("value", TEXT), ("Key", TEXT), ("value", TEXT)), "t")


def test_a_topic_column_that_is_not_taken_may_be_there_twice() -> None:
    """As behind a join of two sources."""
    assert columns_of(schema(("topic", TEXT), ("value", TEXT), ("topic", TEXT)), "t") == ["`value` AS `value`"]
    with pytest.raises(ColumnError, match="topic is there 2 times"):
        columns_of(schema(("topic", TEXT), ("value", TEXT), ("topic", TEXT)), None)


def test_a_timestamp_without_a_time_zone_is_one_of_the_sessions() -> None:
    """It was one of UTC, whatever the session's."""
    found = columns_of(schema(("value", TEXT), ("Timestamp", TimestampNTZType())), "t")
    assert found == ["`value` AS `value`", "CAST(`Timestamp` AS TIMESTAMP_LTZ) AS `timestamp`"]


def test_a_mistyped_column_is_named_as_it_is_written() -> None:
    with pytest.raises(ColumnError, match="Partition is string, it must be int"):
        columns_of(schema(("value", TEXT), ("Partition", TEXT)), "t")
