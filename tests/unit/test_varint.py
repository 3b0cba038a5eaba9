"""Columns of varints, byte for byte as kafka-python writes them one at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import encode_varint

from onceflow.transaction.varint import encode, size_bytes, sizes_bytes, zigzag

EDGES = sorted({sign * ((1 << 7 * n - 1) + step) for n in range(1, 10) for step in (-1, 0, 1) for sign in (1, -1)})
numbers = st.one_of(
    st.sampled_from([*EDGES, 0, 2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1), st.integers(0, 9000)
)


def expected(value: int) -> bytes:
    written = bytearray()
    encode_varint(value, written.append)
    return bytes(written)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=60))
def test_fields_follow_each_other_in_every_row(rows: list[tuple[int, int]]) -> None:
    first, second = (zigzag(np.array(column, np.int64)) for column in zip(*rows, strict=True))
    assert encode(first, 0, second).to_pylist() == [expected(a) + b"\0" + expected(b) for a, b in rows]
    assert sizes_bytes(first).tolist() == [len(expected(a)) for a, _ in rows]
    assert [size_bytes(a) for a, _ in rows] == sizes_bytes(first).tolist()


def test_rows_of_one_size_need_no_gaps() -> None:
    values = [64, 100, 8191]
    assert encode(zigzag(np.array(values, np.int64)), 1).to_pylist() == [expected(value) + b"\1" for value in values]


def test_a_byte_that_is_the_same_in_every_row_may_come_first() -> None:
    assert encode(7, zigzag(np.array([1, -300], np.int64))).to_pylist() == [b"\7" + expected(1), b"\7" + expected(-300)]


def test_no_rows_take_no_sizes() -> None:
    assert sizes_bytes(zigzag(np.array([], np.int64))).tolist() == []
