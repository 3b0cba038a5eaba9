"""Rows to chunks over many partitions and topics: what is held open meanwhile, and that nothing of it is lost or moved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pytest
from kafka.record.memory_records import MemoryRecords

from onceflow.errors import RecordTooLarge
from onceflow.transaction import router
from onceflow.transaction.chunk import Chunk, seal
from onceflow.transaction.compression import Codec
from onceflow.transaction.router import OPEN_BYTES, Encoding, TopicInfo, TopicRouter

LIMIT = 1_048_588
PARTITIONS = 2_000
VALUE_BYTES = 2_000
BATCHES = 10
ROWS = 5_000  # of each batch
ONE_SLICE_BYTES = 9 << 20  # with what encoding adds
OF_TOPIC = Encoding("out", Codec.LZ4, 1_700_000_000_000, seed=0)
BY_COLUMN = Encoding(None, Codec.LZ4, 1_700_000_000_000, seed=0)

Numbers = dict[tuple[str, int], list[int]]


def batches(topics: int = 1) -> Iterator[pa.RecordBatch]:
    """Records that are numbered throughout, each with its partition, in no order, and of bytes that no codec makes smaller."""
    noise = np.random.default_rng(7)
    for number in range(BATCHES):
        content = noise.bytes(ROWS * VALUE_BYTES)
        values = [
            f"{number * ROWS + row:08d}".encode() + content[row * VALUE_BYTES : (row + 1) * VALUE_BYTES - 8]
            for row in range(ROWS)
        ]
        partitions = pa.array(noise.integers(0, PARTITIONS // topics, ROWS), pa.int32())
        names = pa.array([f"out-{topic}" for topic in noise.integers(0, topics, ROWS)])
        yield pa.RecordBatch.from_arrays([pa.array(values), partitions, names], names=["value", "partition", "topic"])


def given(topics: int) -> Numbers:
    found: Numbers = {}
    for batch in batches(topics):
        columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "value"))
        for topic, partition, value in zip(*columns, strict=True):
            found.setdefault((topic if topics > 1 else "out", partition), []).append(int(value[:8]))
    return found


def encoded(chunks: Iterable[tuple[str, Chunk]]) -> Numbers:
    """What a reader gets, in the order of the chunks."""
    found: Numbers = {}
    for topic, chunk in chunks:
        numbers = found.setdefault((topic, chunk.partition), [])
        for batch in MemoryRecords(seal(chunk, 1, 0, 0)):
            numbers.extend(int(record.value[:8]) for record in batch)
    return found


@pytest.mark.parametrize("topics", [1, 20])
def test_what_is_open_over_many_partitions_is_bounded_and_every_record_is_there_in_order(topics: int) -> None:
    """Unbounded it would be all that there is: no chunk gets full. To one topic it comes as a single batch."""
    routed = TopicRouter(OF_TOPIC if topics == 1 else BY_COLUMN, lambda _: TopicInfo(PARTITIONS, LIMIT))
    chunks: list[tuple[str, Chunk]] = []
    peak = 0
    for batch in batches(topics) if topics > 1 else [pa.concat_batches(batches())]:
        for found in routed.add(batch):
            chunks.append(found)
            peak = max(peak, routed.open_bytes)
        peak = max(peak, routed.open_bytes)
        assert routed.open_bytes <= OPEN_BYTES, "between two batches"
    assert OPEN_BYTES / 2 < peak <= OPEN_BYTES + ONE_SLICE_BYTES
    assert OPEN_BYTES + ONE_SLICE_BYTES < BATCHES * ROWS * VALUE_BYTES
    chunks.extend(routed.flush())
    assert routed.open_bytes == 0
    assert encoded(chunks) == given(topics)


def test_the_largest_chunks_are_closed_first_and_no_more_of_them_than_needed() -> None:
    """The small ones go on to fill."""
    routed = TopicRouter(OF_TOPIC, lambda _: TopicInfo(4, LIMIT), open_bytes=10_000)
    partitions = [0] * 6 + [1] * 3 + [2]
    values = [b"x" * 1_000] * len(partitions)
    columns = [pa.array(values), pa.array(partitions, pa.int32())]
    [(_, chunk)] = routed.add(pa.RecordBatch.from_arrays(columns, names=["value", "partition"]))
    assert (chunk.partition, chunk.count) == (0, 6)
    assert [(chunk.partition, chunk.count) for _, chunk in routed.flush()] == [(1, 3), (2, 1)]


def test_few_partitions_get_chunks_of_the_full_size() -> None:
    routed = TopicRouter(OF_TOPIC, lambda _: TopicInfo(100, LIMIT))
    value = b"x" * 100_000
    for _ in range(5):
        columns = [pa.array([value] * 100), pa.array(range(100), pa.int32())]
        assert list(routed.add(pa.RecordBatch.from_arrays(columns, names=["value", "partition"]))) == []
    assert {chunk.count for _, chunk in routed.flush()} == {5}


def test_a_record_that_is_too_large_is_named_by_its_row_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gave the batch knows nothing of the pieces in which it is encoded."""
    monkeypatch.setattr(router, "_SLICE_BYTES", 1_000)
    values = [b"x" * 100] * 70 + [np.random.default_rng(7).bytes(3_000)] + [b"x" * 100] * 10
    routed = TopicRouter(OF_TOPIC, lambda _: TopicInfo(1, 2_000))
    with pytest.raises(RecordTooLarge) as caught:
        list(routed.add(pa.RecordBatch.from_arrays([pa.array(values)], names=["value"])))
    assert caught.value.fields["row"] == 70
