"""Whatever Arrow types rows come in, the encoder sees one shape, and what Kafka cannot hold is refused by name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from onceflow.errors import ColumnError, InputError
from onceflow.transaction.columns import HEADERS_TYPE, normalize

TEXT_TYPES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view(), pa.binary_view()]
MOMENT = datetime(2024, 5, 1, 12, 30, 0, 250_000, tzinfo=UTC)


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


@pytest.mark.parametrize("kind", TEXT_TYPES)
def test_text_and_bytes_become_binary(kind: pa.DataType) -> None:
    given = pa.array(["é", None, ""]).cast(pa.binary()).cast(kind)
    wide = kind in (pa.large_string(), pa.large_binary())
    value = normalize(batch(value=given)).column("value")
    assert value.type == (pa.large_binary() if wide else pa.binary())
    assert value.to_pylist() == ["é".encode(), None, b""]


def test_fixed_size_bytes_and_nulls_become_binary() -> None:
    columns = normalize(batch(value=pa.array([b"ab", None], pa.binary(2)), key=pa.nulls(2)))
    assert columns.to_pydict() == {"value": [b"ab", None], "key": [None, None]}


def test_values_are_not_copied() -> None:
    value = pa.array(["some text"])
    assert normalize(batch(value=value)).column("value").buffers()[2].address == value.buffers()[2].address


def test_a_normalized_batch_stays_and_other_columns_go() -> None:
    given = batch(topic=pa.array(["t"]), partition=pa.array([1]), value=pa.array(["v"]), key=pa.array(["k"]))
    columns = normalize(given)
    assert columns.schema.names == ["value", "key"]
    assert normalize(columns).equals(columns)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_timestamps_of_any_unit_and_zone_become_milliseconds_since_1970(unit: str, zone: str | None) -> None:
    given = pa.array([MOMENT, None], pa.timestamp(unit, zone))
    milliseconds = normalize(batch(value=pa.array(["v", "w"]), timestamp=given)).column("timestamp").cast(pa.int64())
    assert milliseconds.to_pylist() == [int(MOMENT.timestamp() * 1000), None]


def test_a_timestamp_that_does_not_fit_is_refused() -> None:
    given = pa.array([2**62], pa.timestamp("s"))
    with pytest.raises(InputError, match="timestamp out of range"):
        normalize(batch(value=pa.array(["v"]), timestamp=given))


@pytest.mark.parametrize(
    "kind",
    [
        HEADERS_TYPE,
        pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_string())])),
    ],
)
def test_headers_of_any_list_type_become_sparks(kind: pa.DataType) -> None:
    given = pa.array([[{"key": "a", "value": b"1"}], None], HEADERS_TYPE).cast(kind)
    headers = normalize(batch(value=pa.array(["v", "w"]), headers=given)).column("headers")
    assert headers.type == HEADERS_TYPE
    assert headers.to_pylist() == [[{"key": "a", "value": b"1"}], None]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("value", pa.array([1])),
        ("key", pa.array([1.5])),
        ("timestamp", pa.array([1])),
        ("headers", pa.array(["a=b"])),
        ("headers", pa.array([[{"name": "a", "value": b"1"}]])),
        (
            "headers",
            pa.array([[{"value": b"1", "key": "a"}]], pa.list_(pa.struct([("value", "binary"), ("key", "string")]))),
        ),
        ("headers", pa.array([[{"key": "a", "value": 1}]])),
    ],
)
def test_another_type_is_refused_by_name(name: str, wrong: pa.Array) -> None:
    columns: dict[str, Any] = {"value": pa.array(["v"]), name: wrong}
    with pytest.raises(ColumnError, match=f"the column {name} is ") as caught:
        normalize(batch(**columns))
    assert caught.value.fields["column"] == name
    assert caught.value.action


def test_a_missing_value_is_refused() -> None:
    with pytest.raises(ColumnError, match="value is missing"):
        normalize(batch(key=pa.array(["k"])))
