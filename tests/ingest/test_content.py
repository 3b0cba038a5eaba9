"""Blocks end where records end, whatever stands in them and wherever they are cut."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv

from onceflow.errors import InputError
from onceflow.ingest.content import Records, end_of_csv_records, end_of_first_csv_record, end_of_lines

PATH = Path("any.csv")


def parsed(data: bytes) -> list[list[str]]:
    """Arrow's own reading of two columns."""
    if not data.strip(b"\r\n"):
        return []
    convert = csv.ConvertOptions(column_types={"a": pa.string(), "b": pa.string()}, strings_can_be_null=False)
    read = csv.ReadOptions(column_names=["a", "b"], use_threads=False)
    table = csv.read_csv(io.BytesIO(data), read, csv.ParseOptions(newlines_in_values=True), convert_options=convert)
    return [list(row.values()) for row in table.to_pylist()]


plain = st.text("ab 5'", max_size=4)
stray = st.text('a"b', max_size=3).filter(lambda text: not text.startswith('"'))
quoted = st.text('a",\n\r"x', max_size=6).map(lambda text: '"' + text.replace('"', '""') + '"')
fields = st.one_of(plain, quoted, stray)
records = st.lists(st.tuples(fields, fields, st.sampled_from(["\n", "\r\n"])), min_size=1, max_size=6)


@given(records, st.data())
def test_any_prefix_of_a_csv_file_is_cut_between_records(rows: list[tuple[str, str, str]], draw: st.DataObject) -> None:
    """What is taken of a file that ends anywhere is the beginning of what the whole file holds; none is split, none left."""
    lines = [f"{a},{b}{end}".encode() for a, b, end in rows]
    whole = b"".join(lines)
    cut = draw.draw(st.integers(0, len(whole)))
    end = end_of_csv_records(whole[:cut], ",")
    assert parsed(whole[:end]) + parsed(whole[end:]) == parsed(whole)
    assert end == max(size for size in accumulate(map(len, lines), initial=0) if size <= cut)
    assert end_of_csv_records(whole, ",") == len(whole), "a whole file is taken to its end"


@given(records, st.binary(max_size=20))
def test_the_first_record_ends_where_arrow_ends_it(rows: list[tuple[str, str, str]], rest: bytes) -> None:
    """Whatever follows, quotes too."""
    (a, b, ending), *others = rows
    first = f"{a},{b}{ending}".encode()
    after = "".join(f"{x},{y}{end}" for x, y, end in others).encode()
    assert end_of_first_csv_record(first + after + rest, ",") == len(first)
    assert end_of_first_csv_record(first[: first.rindex(b"\n")], ",") == 0


class Looks(bytes):
    """Bytes that count how often somebody searches them."""

    times = 0

    def find(self, *given: Any) -> int:
        Looks.times += 1
        return super().find(*given)

    def rfind(self, *given: Any) -> int:
        Looks.times += 1
        return super().rfind(*given)


@pytest.mark.parametrize("find_end", [end_of_first_csv_record, end_of_csv_records])
def test_the_lines_of_an_open_field_are_not_searched_one_by_one(find_end: Callable[[bytes, str], int]) -> None:
    Looks.times = 0
    assert find_end(Looks(b'a,"open\n' + b"1,2\n" * 10_000), ",") == 0
    assert Looks.times <= 2


def test_a_line_end_in_a_quoted_field_is_no_end() -> None:
    assert end_of_csv_records(b'1,"a\nb', ",") == 0
    assert end_of_csv_records(b'1,x\n2,"a\nb', ",") == 4
    assert end_of_csv_records(b'1,"a\nb"\n3,', ",") == 8


def test_a_quote_inside_of_an_unquoted_field_is_text() -> None:
    assert end_of_csv_records(b'1,5" pipe\n2,x\n3', ",") == 14


def test_records_longer_than_a_block() -> None:
    data = b"a" * 1000 + b"\n" + b"b" * 10 + b"\nhalf"
    blocks = list(Records(io.BytesIO(data), PATH, end_of_lines, last_is_whole=False, block_bytes=16))
    assert b"".join(blocks) == data[:-4]


def test_a_last_record_without_a_line_end_counts_only_if_it_is_whole() -> None:
    def blocks(*, last_is_whole: bool) -> bytes:
        content = io.BytesIO(b"one\ntwo")
        return b"".join(Records(content, PATH, end_of_lines, last_is_whole=last_is_whole, block_bytes=3))

    assert blocks(last_is_whole=False) == b"one\n"
    assert blocks(last_is_whole=True) == b"one\ntwo"


@pytest.mark.parametrize(
    ("data", "is_open"),
    [
        (b'1,"a', True),
        (b'1,"a\n2,b', True),
        (b'1,"a""', True),
        (b'1,"a"', False),
        (b'1,5" pipe', False),
        (b"1,a\r", False),
    ],
)
def test_what_is_left_tells_whether_a_quote_is_open(data: bytes, *, is_open: bool) -> None:
    """An open one is never taken for whole."""
    for last_is_whole in (False, True):
        records = Records(
            io.BytesIO(b"0,x\n" + data),
            PATH,
            lambda d: end_of_csv_records(d, ","),
            last_is_whole=last_is_whole,
            block_bytes=3,
        )
        taken = b"".join(records)
        whole = last_is_whole and not is_open
        assert (taken, records.left.data) == (b"0,x\n" + (data if whole else b""), b"" if whole else data)
        assert records.left.is_open == is_open


def test_a_quote_that_is_never_closed_is_named() -> None:
    data = b'1,"open\n' + b"2,x\n" * 1000
    records = Records(
        io.BytesIO(data),
        PATH,
        lambda d: end_of_csv_records(d, ","),
        last_is_whole=True,
        block_bytes=64,
        longest_bytes=1000,
    )
    with pytest.raises(InputError, match="a record of more than 1,000 bytes") as caught:
        list(records)
    assert '1,"open' in caught.value.message
    assert "never closed" in caught.value.action
