"""JSON made of columns is what Python's json reads back; headers are those of the events."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

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


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be written as JSON"):
        read_back(a=pa.array([[float("nan")]]))


def test_keys_are_plain_text() -> None:
    assert column_as_text(pa.array(['a"b', None])).to_pylist() == ['a"b', None]
    assert column_as_text(pa.array([5, None])).to_pylist() == ["5", None]


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
