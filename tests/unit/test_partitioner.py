"""The same partition as the Java producer, for every layout that Arrow can give a key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference_murmur2

from onceflow.errors import ColumnError, InputError
from onceflow.transaction.partitioner import RUN_ROWS, assign_partitions, murmur2, partition_for_keys

TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def hashes(keys: pa.Array) -> list[int]:
    return [int(value) for value in murmur2(keys)]


def expected(keys: list[bytes]) -> list[int]:
    return [reference_murmur2(key) for key in keys]


@pytest.mark.parametrize("kind", TYPES)
def test_hashes_as_java_does(kind: pa.DataType) -> None:
    keys = pa.array(list(JAVA_HASHES), kind)
    assert murmur2(keys).view(np.int32).tolist() == list(JAVA_HASHES.values())


@given(st.lists(st.binary(max_size=40), max_size=40), st.sampled_from(TYPES), st.data())
def test_hashes_as_kafka_python_does_whatever_the_layout(keys: list[bytes], kind: pa.DataType, data: Any) -> None:
    start = data.draw(st.integers(0, len(keys)))
    end = data.draw(st.integers(start, len(keys)))
    assert hashes(pa.array(keys, kind)[start:end]) == expected(keys[start:end])


@pytest.mark.parametrize("count", [1, 15, 16, 17, 100])
def test_hashes_few_and_many_long_keys_among_short_ones(count: int) -> None:
    keys = [b"short"] * 50 + [bytes([n % 256]) * (400 + 7 * n) for n in range(count)]
    assert hashes(pa.array(keys)) == expected(keys)


def test_hashes_more_keys_than_a_block() -> None:
    keys = [b"key-%d" % n for n in range(20_000)]
    assert hashes(pa.array(keys)) == expected(keys)


def test_hashes_text_by_its_utf8_bytes() -> None:
    assert hashes(pa.array(["größe", "日本"])) == expected(["größe".encode(), "日本".encode()])


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4])
def test_reads_nothing_beyond_a_buffer_that_ends_with_the_last_key(size: int) -> None:
    key = bytes(range(250, 250 + size))
    keys = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, size], np.int32)), pa.py_buffer(key)])
    assert hashes(keys) == expected([key])


def test_an_empty_key_is_a_key() -> None:
    assert partition_for_keys(pa.array([b""]), 1000).tolist() == [(reference_murmur2(b"") & 0x7FFFFFFF) % 1000]


def test_no_rows() -> None:
    assert assign_partitions(pa.array([], pa.binary()), None, 4, rows=0, seed=0, first_row=0).tolist() == []
    assert assign_partitions(None, None, 4, rows=0, seed=0, first_row=0).dtype == np.int32


def test_an_explicit_partition_wins_over_the_key_and_null_leaves_it_to_the_key() -> None:
    keys = pa.array([b"abc", b"abc", None])
    by_key = (JAVA_HASHES[b"abc"] & 0x7FFFFFFF) % 7
    explicit = pa.array([6, None, None], pa.int32())
    assert assign_partitions(keys, explicit, 7, rows=3, seed=5, first_row=0).tolist() == [6, by_key, 5]
    assert assign_partitions(None, explicit[1:], 7, rows=2, seed=5, first_row=0).tolist() == [5, 5]


@pytest.mark.parametrize("wrong", [-1, 7])
def test_an_explicit_partition_out_of_range_is_named(wrong: int) -> None:
    with pytest.raises(InputError, match=rf"holds {wrong}; the topic has 7 partitions") as caught:
        assign_partitions(None, pa.array([0, wrong, None], pa.int32()), 7, rows=3, seed=0, first_row=0)
    assert caught.value.fields == {"partition": wrong, "count": 7}


def test_a_key_of_another_type_is_refused() -> None:
    with pytest.raises(ColumnError, match="key is int64"):
        assign_partitions(pa.array([1]), None, 4, rows=1, seed=0, first_row=0)


def test_rows_without_key_go_in_runs_that_start_at_the_seed_and_reach_every_partition_evenly() -> None:
    targets = assign_partitions(None, None, 3, rows=6 * RUN_ROWS, seed=7, first_row=0).reshape(6, RUN_ROWS)
    assert targets[:, 0].tolist() == [1, 2, 0, 1, 2, 0]
    assert (targets == targets[:, :1]).all()


@given(st.integers(0, 2**40), st.integers(0, 5000), st.integers(1, 50))
def test_rows_without_key_do_not_depend_on_how_they_were_batched(seed: int, cut: int, count: int) -> None:
    whole = assign_partitions(None, None, count, rows=5000, seed=seed, first_row=0)
    head = assign_partitions(None, None, count, rows=cut, seed=seed, first_row=0)
    tail = assign_partitions(None, None, count, rows=5000 - cut, seed=seed, first_row=cut)
    assert np.concatenate([head, tail]).tolist() == whole.tolist()


def test_null_keys_do_not_move_the_others() -> None:
    keys: list[bytes | None] = [None if n % 3 else b"key-%d" % n for n in range(3000)]
    targets = assign_partitions(pa.array(keys, pa.binary())[1:], None, 5, rows=2999, seed=2, first_row=1)
    spread = assign_partitions(None, None, 5, rows=2999, seed=2, first_row=1)
    for key, target, fallback in zip(keys[1:], targets, spread, strict=True):
        assert target == (fallback if key is None else (reference_murmur2(key) & 0x7FFFFFFF) % 5)
