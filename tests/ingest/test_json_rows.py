"""JSON made of columns is what Python's json reads back; headers are those of the events."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ingest.support import rows_of

from onceflow.errors import InputError
from onceflow.events import EventIdentity
from onceflow.ingest.event_rows import EVENT_TYPE, event_rows, numbers_as_text
from onceflow.ingest.json_rows import column_as_text, rows_as_json

texts = st.lists(st.one_of(st.none(), st.text(st.characters(codec="utf-8"))), min_size=1)


def read_back(**columns: pa.Array) -> list[dict[str, Any]]:
    return [json.loads(text) for text in rows_as_json(pa.RecordBatch.from_pydict(columns)).to_pylist()]


@given(texts, st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_text_under_any_name(column: list[str | None], name: str) -> None:
    assert read_back(**{name: pa.array(column, pa.string())}) == [{name: value} for value in column]


@given(texts, st.data())
def test_a_slice_gives_its_own_rows(column: list[str | None], draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, len(column)))
    assert read_back(a=pa.array(column, pa.string()).slice(start)) == [{"a": value} for value in column[start:]]


@given(st.lists(st.floats(), min_size=1))
def test_floats_keep_every_digit(column: list[float]) -> None:
    for row, value in zip(read_back(a=pa.array(column, pa.float64())), column, strict=True):
        assert float(row["a"]) == value or str(value) == "nan"
        assert isinstance(row["a"], str) == (str(value) in ("nan", "inf", "-inf"))


def test_every_other_type() -> None:
    moment = datetime(2010, 12, 1, 8, 26, 0, 5, tzinfo=UTC)
    [row] = read_back(
        whole=pa.array([2**63 - 1]),
        money=pa.array([Decimal("100.50")]),
        yes=pa.array([True]),
        nothing=pa.array([None], pa.int32()),
        null=pa.nulls(1),
        day=pa.array([date(2010, 12, 1)]),
        old_day=pa.array([date(2010, 12, 1)], pa.date64()),
        clock=pa.array([time(8, 26)], pa.time32("s")),
        local=pa.array([moment.replace(tzinfo=None)], pa.timestamp("us")),
        moment=pa.array([moment], pa.timestamp("us", "Europe/Berlin")),
        data=pa.array([b"\x00\xff"]),
        tags=pa.array([["a", None]]),
        nested=pa.array([{"x": 1, "y": b"z"}]),
        packed=pa.array(["x"]).dictionary_encode(),
        view=pa.array(["v"], pa.string_view()),
    )
    assert row == {
        "whole": 2**63 - 1, "money": 100.5, "yes": True, "nothing": None, "null": None, "day": "2010-12-01",
        "old_day": "2010-12-01", "clock": "08:26:00", "local": "2010-12-01T08:26:00.000005",
        "moment": "2010-12-01T08:26:00.000005Z", "data": base64.b64encode(b"\x00\xff").decode(), "tags": ["a", None],
        "nested": {"x": 1, "y": "eg=="}, "packed": "x", "view": "v",
    }  # fmt: skip


def test_decimals_are_numbers_with_all_digits() -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array([Decimal("12345678901234567890.1230")])})
    assert rows_as_json(batch).to_pylist() == ['{"a":12345678901234567890.1230}']


@pytest.mark.parametrize(("number", "text"), [("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")])
def test_no_numbers_within_other_values_arrive_as_in_a_column_of_their_own(number: str, text: str) -> None:
    odd = float(number)
    [row] = read_back(
        alone=pa.array([odd]),
        half=pa.array([[odd, 1.5]], pa.list_(pa.float16())),
        listed=pa.array([[odd, None, 0.5]]),
        deep=pa.array([[{"x": [odd], "y": b"z", "of": 3}]]),
        by_name=pa.array([[("a", odd), ("b", 1.0)]], pa.map_(pa.string(), pa.float64())),
    )
    assert row == {
        "alone": text, "half": [text, 1.5], "listed": [text, None, 0.5], "deep": [{"x": [text], "y": "eg==", "of": 3}],
        "by_name": [["a", text], ["b", 1.0]],
    }  # fmt: skip


def test_what_cannot_be_written_is_refused_with_its_column() -> None:
    """A time that Python has not."""
    column = pa.array([[1 << 60]], pa.list_(pa.timestamp("s")))
    with pytest.raises(InputError, match="column seen holds a value that cannot be written as JSON"):
        read_back(id=pa.array([1]), seen=column)
    with pytest.raises(InputError, match="the column of the key holds a value"):
        column_as_text(column)


def test_keys_are_plain_text() -> None:
    assert column_as_text(pa.array(['a"b', None])).to_pylist() == ['a"b', None]
    assert column_as_text(pa.array([5, None])).to_pylist() == ["5", None]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([b"\x00\x01"]), "AAE="),
        (pa.array([b"\x00\x01"], pa.large_binary()), "AAE="),
        (pa.array([b"\x00\x01"], pa.binary(2)), "AAE="),
        (pa.array([b"\x00\x01"]).dictionary_encode(), "AAE="),
        (pa.array([UUID(int=5)], pa.uuid()), "00000000-0000-0000-0000-000000000005"),
        (pa.array([5], pa.duration("us")), "0:00:00.000005"),
        (pa.array([float("nan")]), "NaN"),
        (pa.array([float("-inf")]), "-Infinity"),
        (pa.array(['"a"']), '"a"'),
        (pa.array(['"a"']).dictionary_encode(), '"a"'),
        (pa.array([1291191960], pa.timestamp("s")), "2010-12-01T08:26:00"),
        (pa.array([["a"]]), '["a"]'),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_key_is_the_text_without_the_quotes_of_its_value(column: pa.Array, text: str) -> None:
    """Beside a row that has none, and alone."""
    assert column_as_text(column).to_pylist() == [text]
    assert column_as_text(column.take(pa.array([None, 0], pa.int8()))).to_pylist() == [None, text]
    [row] = read_back(a=column)
    assert row["a"] == (json.loads(text) if text.startswith("[") else text)


@pytest.mark.parametrize("rising", [True, False])
def test_headers_are_those_of_the_event(rising: bool) -> None:
    values = pa.array([f"v{number}" for number in range(12)])
    batch = event_rows(values, values, "file:///any", numbers_as_text(95, 12), rising=rising)
    expected = [
        EventIdentity("file:///any", str(number), EVENT_TYPE, number if rising else None) for number in range(95, 107)
    ]
    assert [row.identity for row in rows_of(batch)] == expected
    for identity, row in zip(expected, batch.to_pylist(), strict=True):
        assert sorted((header["key"], header["value"]) for header in row["headers"]) == sorted(identity.headers())


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([0, (1 << 63) - 1], pa.timestamp("us")), "9223372036854775807"),
        (pa.array([0, (1 << 63) - 1], pa.timestamp("ms", "UTC")), "9223372036854775807"),
        (pa.array([0, (1 << 31) - 1], pa.date32()), "2147483647"),
        (pa.array([0, -(1 << 31)], pa.date32()), "-2147483648"),
        (pa.array([0, 86_400_000_000], pa.time64("us")), "86400000000"),
        (pa.array([[0], [86_400]], pa.list_(pa.time32("s"))), "86400"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_time_that_arrow_cannot_write_is_no_text(column: pa.Array, said: str) -> None:
    """As a key too; 24:00:00, and what some write for infinity."""
    with pytest.raises(InputError, match=f"column seen holds a value that cannot be written as JSON: .*{said}"):
        read_back(seen=column)
    with pytest.raises(InputError, match=said):
        column_as_text(column)
    read_back(seen=column.slice(0, 1))


MOMENT = datetime(2010, 12, 1, 8, 26, 0, 5, tzinfo=UTC)
KINDS = {
    "text": pa.array(['a"b', "", None]),
    "whole": pa.array([1, -(2**63), None]),
    "float": pa.array([0.1, float("inf"), None], pa.float32()),
    "double": pa.array([1e300, float("nan"), None]),
    "money": pa.array([Decimal("1.10"), Decimal("-0.00"), None]),
    "yes": pa.array([True, False, None]),
    "null": pa.nulls(3),
    "day": pa.array([date(2010, 12, 1), date(1, 1, 1), None]),
    "clock": pa.array([time(8, 26), time(0), None]),
    "local": pa.array([MOMENT.replace(tzinfo=None), datetime(2010, 1, 1), None]),  # noqa: DTZ001
    "moment": pa.array([MOMENT, MOMENT, None], pa.timestamp("ns", "Europe/Berlin")),
    "data": pa.array([b"\x00\xff", b"", None]),
    "packed": pa.array(["x", "y", None]).dictionary_encode(),
    "took": pa.array([5, 86_400_000_000, None], pa.duration("us")),
    "pairs": pa.array([[("a", 1.5), ("a", None)], [], None], pa.map_(pa.string(), pa.float32())),
    "object": pa.array([{"a": Decimal("1.10")}, {"a": None}, None]),
    "nothing": pa.array([{}, {}, None], pa.struct([])),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_written_alike_wherever_it_stands(kind: str) -> None:
    """In every kind of list, in an object, in a map, and in lists of these; also in a slice, beside what is null."""
    column = KINDS[kind]
    batch = pa.RecordBatch.from_pydict({"a": column})
    texts = [text.removeprefix('{"a":').removesuffix("}") for text in rows_as_json(batch).to_pylist()]
    whole = "[" + ",".join(texts) + "]"
    ends, nested = pa.array([0, None, 0, 3], pa.int32()), f'[{{"x":{whole}}},null]'
    lists = pa.ListArray.from_arrays(ends, column)
    objects = pa.StructArray.from_arrays([lists], names=["x"], mask=pa.array([True, True, False]))
    numbered = [f"[{name},{text}]" for name, text in zip((1, 2, 2), texts, strict=True)]
    for values, expected in (
        (lists, ["[]", "null", whole]),
        (pa.LargeListArray.from_arrays(ends.cast(pa.int64()), column), ["[]", "null", whole]),
        (pa.ListViewArray.from_arrays([0, 0], [1, 3], column), [f"[{texts[0]}]", whole]),
        (pa.FixedSizeListArray.from_arrays(column, 1), [f"[{text}]" for text in texts]),
        (objects, ["null", "null", f'{{"x":{whole}}}']),
        (pa.ListArray.from_arrays([0, 0, 2], objects.take(pa.array([2, 0]))), ["[]", nested]),
        (pa.MapArray.from_arrays([0, 0, 3], pa.array([1, 2, 2]), column), ["[]", f"[{','.join(numbered)}]"]),
    ):
        for start in range(len(expected)):
            rows = rows_as_json(pa.RecordBatch.from_pydict({"a": values.slice(start)})).to_pylist()
            assert rows == [f'{{"a":{text}}}' for text in expected[start:]]
            assert [json.loads(row) for row in rows]


def test_two_members_of_one_name_are_refused() -> None:
    column = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(InputError, match=r"column seen holds a value .* two members of a, a have one name"):
        read_back(seen=column)
