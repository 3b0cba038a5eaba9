"""What the encoder writes is what kafka-python reads back, in order, below the limit, whatever came in."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import kafka.codec
import kafka.record.default_records
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from onceflow.errors import ColumnError, InputError, RecordTooLarge
from onceflow.transaction import record_batch
from onceflow.transaction.chunk import CHUNK_SCHEMA, HEADER_BYTES, Chunk, chunk_from_row, chunks_to_batch, seal
from onceflow.transaction.columns import HEADERS_TYPE
from onceflow.transaction.compression import Codec
from onceflow.transaction.record_batch import BodyEncoder

LIMIT = 1_048_588
NOW = 1_700_000_000_000
PARTITIONS = 3

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Row:
    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    timestamp_ms: int | None = None
    partition: int = 0


def to_batch(rows: list[Row], *, wide: bool = False, absent: Iterable[str] = ()) -> pa.RecordBatch:
    """The rows as a slice out of a larger batch, so that every offset is other than zero."""
    rows = [Row(b"before", b"x", [("y", b"z")], 1), *rows, Row(b"after", b"x", [("y", b"z")], 1)]
    binary = pa.large_binary() if wide else pa.binary()
    headers = [None if row.headers is None else [{"key": k, "value": v} for k, v in row.headers] for row in rows]
    columns = {
        "value": pa.array([row.value for row in rows], binary),
        "key": pa.array([row.key for row in rows], binary),
        "headers": pa.array(headers, HEADERS_TYPE),
        "timestamp": pa.array([row.timestamp_ms for row in rows], pa.timestamp("ms", "UTC")),
    }
    kept = {name: column for name, column in columns.items() if name not in set(absent)}
    return pa.RecordBatch.from_arrays(list(kept.values()), names=list(kept))[1 : len(rows) - 1]


def targets(rows: list[Row]) -> Any:
    return np.array([row.partition for row in rows], np.int32)


def encode(encoder: BodyEncoder, *batches: list[Row], **layout: Any) -> list[Chunk]:
    full = [chunk for rows in batches for chunk in encoder.add(to_batch(rows, **layout), targets(rows))]
    return [*full, *encoder.flush()]


def encoder(limit_bytes: int = LIMIT, codec: Codec = Codec.NONE, **options: Any) -> BodyEncoder:
    return BodyEncoder(limit_bytes, codec, NOW, **options)


def read(sealed: bytes) -> Iterator[DefaultRecordBatch]:
    for batch in MemoryRecords(sealed):
        assert batch.validate_crc()
        yield batch


def decode(chunks: Iterable[Chunk]) -> dict[int, list[Row]]:
    """The rows of each partition; checks every batch's header against its records."""
    rows: dict[int, list[Row]] = {}
    for chunk in chunks:
        (batch,) = read(seal(chunk, 1, 0, 0))
        records = list(batch)
        assert len(records) == chunk.count == batch.last_offset_delta + 1
        assert [record.offset for record in records] == list(range(chunk.count))
        assert batch.first_timestamp == records[0].timestamp
        assert batch.max_timestamp == max(record.timestamp for record in records)
        taken = [Row(r.value, r.key, r.headers, r.timestamp, chunk.partition) for r in records]
        rows.setdefault(chunk.partition, []).extend(taken)
    return rows


def written(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """What must be read back: no headers are an empty list, no timestamp is the encoder's."""
    by_partition: dict[int, list[Row]] = {}
    for row in rows:
        timestamp_ms = NOW if row.timestamp_ms is None else row.timestamp_ms
        complete = replace(row, headers=row.headers or [], timestamp_ms=timestamp_ms)
        by_partition.setdefault(row.partition, []).append(complete)
    return by_partition


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python reads snappy and zstd with packages of their own; pyarrow stands in for them."""

    def snappy_block(block: bytes) -> bytes:
        size = block[0] if block[0] < 0x80 else (block[0] & 0x7F) | (block[1] & 0x7F) << 7
        size |= 0 if block[0] < 0x80 or block[1] < 0x80 else block[2] << 14
        return pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)  # type: ignore[no-any-return]

    def zstd(data: bytes) -> bytes:
        return pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()  # type: ignore[no-any-return]

    monkeypatch.setattr(kafka.codec, "snappy", SimpleNamespace(decompress=lambda block: snappy_block(bytes(block))))
    monkeypatch.setattr(kafka.codec, "zstd", object())
    monkeypatch.setattr(kafka.record.default_records, "zstd_decode", zstd)


small_bytes = st.one_of(st.none(), st.binary(max_size=20), st.sampled_from([b"", b"x" * 63, b"y" * 64, b"z" * 9000]))
header = st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), small_bytes)
row = st.builds(
    Row,
    value=small_bytes,
    key=small_bytes,
    headers=st.one_of(st.none(), st.lists(header, max_size=3)),
    timestamp_ms=st.one_of(st.none(), st.integers(0, 2**41), st.integers(NOW - 9000, NOW + 9000)),
    partition=st.integers(0, PARTITIONS - 1),
)
batches = st.lists(st.lists(row, max_size=20), max_size=4)


@given(batches, st.booleans(), st.sampled_from([100, 300, 20_000, LIMIT]), st.sampled_from([1, 3, 16_384]))
@settings(max_examples=200)
def test_every_row_is_read_back_in_order(given: list[list[Row]], wide: bool, target_bytes: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_batch, "_BLOCK_ROWS", block)
        chunks = encode(encoder(target_chunk_bytes=target_bytes), *given, wide=wide)
    assert decode(chunks) == written(row for rows in given for row in rows)


@given(st.lists(row, min_size=1, max_size=20), st.sets(st.sampled_from(["key", "headers", "timestamp"])))
def test_a_column_that_is_absent_is_null_everywhere(rows: list[Row], absent: set[str]) -> None:
    chunks = encode(encoder(), rows, absent=absent)
    lost: dict[str, Any] = {{"timestamp": "timestamp_ms"}.get(name, name): None for name in absent}
    assert decode(chunks) == written(replace(item, **lost) for item in rows)


@given(st.lists(row.map(lambda row: replace(row, partition=0)), min_size=1, max_size=30))
def test_a_batch_is_byte_for_byte_what_kafka_python_builds(rows: list[Row]) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, True, 9, 2, 5, 1 << 30)
    for offset, item in enumerate(written(rows)[0]):
        builder.append(offset, item.timestamp_ms, item.key, item.value, item.headers)
    (chunk,) = encode(encoder(), rows)
    leader_epoch = slice(12, 16)  # ours is the -1 of the Java producer
    sealed, built = bytearray(seal(chunk, 9, 2, 5)), builder.build()
    assert sealed[leader_epoch] == b"\xff" * 4
    sealed[leader_epoch] = built[leader_epoch]
    assert sealed == built


@pytest.mark.usefixtures("decoders")
@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_is_read_back(codec: Codec) -> None:
    rows = [Row(b"value-%d" % n * 5, b"key", [("h", b"1")], NOW + n, n % PARTITIONS) for n in range(5000)]
    chunks = encode(encoder(codec=codec, target_chunk_bytes=50_000), rows[:100], rows[100:])
    assert {chunk.codec for chunk in chunks} == {codec}
    assert decode(chunks) == written(rows)


def test_noise_goes_out_as_it_is() -> None:
    rows = [Row(np.random.default_rng(1).bytes(1000))]
    (chunk,) = encode(encoder(codec=Codec.LZ4), rows)
    assert chunk.codec is Codec.NONE
    assert decode([chunk]) == written(rows)


def test_one_chunk_takes_rows_of_many_batches_until_it_is_full() -> None:
    encoding = encoder(target_chunk_bytes=10_000)
    rows = [Row(b"x" * 90, b"k" * 5, timestamp_ms=NOW - n) for n in range(1000)]
    chunks = encode(encoding, *([row] for row in rows))
    assert decode(chunks) == written(rows)
    assert all(9_700 < len(chunk.body) <= 10_000 for chunk in chunks[:-1])


def test_the_order_of_a_partition_is_kept_across_many_partitions_and_blocks() -> None:
    rng = np.random.default_rng(3)
    rows = [Row(b"%d" % n, b"k", timestamp_ms=NOW, partition=int(rng.integers(40))) for n in range(40_000)]
    assert decode(encode(encoder(target_chunk_bytes=5_000), rows)) == written(rows)


def test_partitions_that_need_more_than_16_bits_keep_apart() -> None:
    rows = [Row(b"%d" % n, partition=n % 2 * 65_536) for n in range(10)]
    assert decode(encode(encoder(), rows)) == written(rows)


def test_what_lies_under_a_null_is_not_written() -> None:
    """Arrow lets a null stand on bytes or list items that are still there, as after a filter that only clears bits."""
    valid = pa.py_buffer(b"\x05")  # rows 0 and 2
    places = pa.py_buffer(np.array([0, 2, 4, 6], np.int32))
    texts = pa.Array.from_buffers(pa.binary(), 3, [valid, places, pa.py_buffer(b"v0v1v2")])
    items = pa.array([{"key": "h", "value": b"%d" % n} for n in range(6)], HEADERS_TYPE.value_type)
    headers = pa.Array.from_buffers(HEADERS_TYPE, 3, [valid, places], children=[items])
    encoding = encoder()
    batch = pa.record_batch({"value": texts, "key": texts, "headers": headers})
    chunks = [*encoding.add(batch, np.zeros(3, np.int32)), *encoding.flush()]
    kept = [Row(b"v0", b"v0", [("h", b"0"), ("h", b"1")]), Row(None), Row(b"v2", b"v2", [("h", b"4"), ("h", b"5")])]
    assert decode(chunks) == written(kept)


def test_no_rows_give_no_chunks() -> None:
    assert encode(encoder(), [], []) == []


def test_a_row_without_a_partition_stops_the_batch_instead_of_being_lost() -> None:
    with pytest.raises(AssertionError, match="one partition for each row"):
        list(encoder().add(to_batch([Row(b"a"), Row(b"b")]), np.array([0], np.int32)))


def test_flush_leaves_an_encoder_that_goes_on() -> None:
    encoding = encoder()
    assert decode(encode(encoding, [Row(b"a")])) == written([Row(b"a")])
    assert decode(encode(encoding, [Row(b"b")])) == written([Row(b"b")])


def test_a_few_rows_do_not_keep_the_memory_of_their_batch() -> None:
    encoding = encoder()
    before = pa.total_allocated_bytes()
    for _ in range(20):
        list(encoding.add(to_batch([Row(b"few"), *[Row(b"x" * 1_000_000, partition=1)] * 2]), np.array([0, 1, 1])))
    assert pa.total_allocated_bytes() - before < 1_000_000


def record_bytes(row: Row) -> int:
    return int(DefaultRecordBatchBuilder.size_in_bytes(0, 0, row.key, row.value, row.headers or []))


@pytest.mark.parametrize("alone", [Row(b"v" * 500), Row(b"v" * 500, b"k" * 70, [("h", None), ("i", b"x")])])
@pytest.mark.parametrize("neighbours", [0, 3])
def test_a_record_fits_to_the_last_byte(alone: Row, neighbours: int) -> None:
    rows = [Row(b"before")] * neighbours + [alone] + [Row(b"after")] * neighbours
    limit = HEADER_BYTES + record_bytes(alone)
    chunks = encode(encoder(limit), rows)
    assert decode(chunks) == written(rows)
    assert max(len(seal(chunk, 1, 0, 0)) for chunk in chunks) == limit
    with pytest.raises(RecordTooLarge) as caught:
        encode(encoder(limit - 1), rows)
    assert caught.value.fields == {"row": neighbours, "partition": 0, "size_bytes": limit, "limit_bytes": limit - 1}


def test_the_smallest_records_fill_a_batch_to_the_last_byte() -> None:
    limit = HEADER_BYTES + 64 * 7
    chunks = encode(encoder(limit), [Row(None)] * 200, absent=["timestamp"])
    assert [(chunk.count, len(seal(chunk, 1, 0, 0))) for chunk in chunks[:-1]] == [(64, limit)] * 3


def test_offsets_that_take_more_bytes_are_counted() -> None:
    chunks = encode(encoder(HEADER_BYTES + 1000), [Row(None)] * 400, absent=["timestamp"])
    assert all(930 < len(chunk.body) <= 1000 for chunk in chunks[:-1])


def test_timestamps_far_from_the_first_of_an_open_chunk_are_counted() -> None:
    chunks = encode(encoder(HEADER_BYTES + 448), [Row(None, timestamp_ms=NOW)], [Row(None, timestamp_ms=5)] * 100)
    assert all(len(chunk.body) <= 448 for chunk in chunks)
    assert decode(chunks)[0][1].timestamp_ms == 5


def test_the_row_that_is_too_large_is_named_by_its_place_in_the_batch_added(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(b"x" * 10, partition=n % 2) for n in range(100)]
    rows[37] = Row(b"x" * 3000, partition=1)
    rows[38] = Row(b"x" * 900, partition=0)
    monkeypatch.setattr(record_batch, "_BLOCK_ROWS", 16)
    with pytest.raises(RecordTooLarge, match="row 37, for partition 1") as caught:
        encode(encoder(1000), rows[:30], rows)
    assert caught.value.fields["row"] == 37
    assert pickle.loads(pickle.dumps(caught.value)).fields == caught.value.fields


def test_a_record_above_the_limit_passes_alone_when_compression_makes_it_fit() -> None:
    rows = [Row(b"before"), Row(b"x" * 5000), Row(b"after")]
    chunks = encode(encoder(1000, Codec.LZ4), rows)
    assert [chunk.count for chunk in chunks] == [1, 1, 1]
    assert decode(chunks) == written(rows)
    assert max(len(seal(chunk, 1, 0, 0)) for chunk in chunks) < 1000


def test_a_record_above_the_limit_that_compression_does_not_help_is_refused() -> None:
    with pytest.raises(RecordTooLarge):
        encode(encoder(1000, Codec.LZ4), [Row(np.random.default_rng(1).bytes(5000))])


@given(batches, st.integers(100, 400), st.sampled_from([Codec.NONE, Codec.LZ4]))
def test_no_batch_is_ever_larger_than_the_limit(given: list[list[Row]], limit: int, codec: Codec) -> None:
    rows = [row for rows in given for row in rows]
    try:
        chunks = encode(encoder(limit, codec), *given)
    except RecordTooLarge:
        assert any(HEADER_BYTES + record_bytes(row) > limit for row in rows)
    else:
        assert all(len(seal(chunk, 1, 0, 0)) <= limit for chunk in chunks)
        assert decode(chunks) == written(rows)


def test_a_row_beyond_what_arrow_can_join_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batch, "_LARGEST_BLOCK_BYTES", 1000)
    fitting = [Row(b"x" * 300)] * 9
    assert decode(encode(encoder(), fitting)) == written(fitting)
    with pytest.raises(RecordTooLarge, match="row 9") as caught:
        encode(encoder(), [*fitting, Row(b"x" * 1001)])
    assert caught.value.fields["limit_bytes"] == 1000


def test_a_header_without_a_key_is_refused() -> None:
    headers = pa.array([[{"key": None, "value": b"1"}]], HEADERS_TYPE)
    with pytest.raises(InputError, match="1 headers have no key"):
        list(encoder().add(pa.record_batch({"value": pa.array(["v"]), "headers": headers}), np.array([0])))


def test_a_timestamp_before_1970_is_refused() -> None:
    with pytest.raises(InputError, match="-1 ms, a time before 1970"):
        encode(encoder(), [Row(b"v", timestamp_ms=-1)])


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(ColumnError, match="value is int64"):
        list(encoder().add(pa.record_batch({"value": pa.array([1])}), np.array([0])))


CHUNK = Chunk(2, 3, Codec.NONE, NOW, NOW + 5, b"\x0c\0\0\0\1\1\0" * 3)


def test_a_sealed_batch_names_its_producer_and_is_transactional() -> None:
    (batch,) = read(seal(CHUNK, 4001, 7, 30))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (4001, 7, 30, 32)
    assert (batch.is_transactional, batch.is_control_batch, batch.timestamp_type, batch.magic) == (True, False, 0, 2)
    assert (batch.base_offset, batch.leader_epoch, batch.records_count) == (0, -1, 3)


def test_a_batch_without_a_producer_has_no_sequence() -> None:
    (batch,) = read(seal(CHUNK, -1, -1, 30, transactional=False))
    assert (batch.producer_id, batch.base_sequence, batch.is_transactional) == (-1, -1, False)


@pytest.mark.parametrize(
    ("written_before", "first", "last"), [(2**31 - 3, 2**31 - 3, 2**31 - 1), (2**31 - 2, 2**31 - 2, 0), (2**31, 0, 2)]
)
def test_sequences_wrap_after_the_largest_int(written_before: int, first: int, last: int) -> None:
    (batch,) = read(seal(CHUNK, 1, 0, written_before))
    assert (batch.base_sequence, batch.last_sequence) == (first, last)


@pytest.mark.parametrize("large", [False, True])
def test_chunks_travel_as_arrow_rows(large: bool) -> None:
    chunks = [CHUNK, replace(CHUNK, partition=0, count=1, codec=Codec.ZSTD, body=b"z" * 1000)]
    batch = chunks_to_batch(chunks, task=11, first_chunk=5)
    assert batch.schema == CHUNK_SCHEMA
    assert batch.select(["task", "chunk"]).to_pylist() == [{"task": 11, "chunk": 5}, {"task": 11, "chunk": 6}]
    if large:
        wide = CHUNK_SCHEMA.set(7, pa.field("body", pa.large_binary()))
        batch = batch.cast(wide)
    back = [chunk_from_row(batch, row) for row in range(2)]
    assert [replace(chunk, body=bytes(chunk.body)) for chunk in back] == chunks
    assert [seal(chunk, 1, 2, 3) for chunk in back] == [seal(chunk, 1, 2, 3) for chunk in chunks]
    assert chunks_to_batch(back, task=11, first_chunk=5).equals(chunks_to_batch(chunks, task=11, first_chunk=5))


def test_no_chunks_are_no_rows() -> None:
    batch = chunks_to_batch([], task=1, first_chunk=0)
    assert (batch.schema, batch.num_rows) == (CHUNK_SCHEMA, 0)
