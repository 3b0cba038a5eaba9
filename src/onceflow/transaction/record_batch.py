"""The hot path: rows of Arrow batches to Kafka record batches (message format v2, KIP-98), cut, encoded and compressed.

``BodyEncoder`` keeps one open chunk for each partition. Each block of rows goes through the same steps:

1. order the rows by partition (stable: the order within a partition is the producer's promise),
2. cut the rows of each partition into chunks by the largest size that each record can take,
3. encode all records of the block at once, now that offset and timestamp deltas are known,
4. give each cut its bytes; a full chunk is compressed and handed out, what is left is copied to its open chunk.

A batch that is too large would fail only at the broker, after all of it was sent. So the raw size is kept below the
limit, and a body that compression makes larger goes out raw.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from onceflow.errors import RecordTooLarge
from onceflow.transaction.arrow import Integers, offsets
from onceflow.transaction.chunk import HEADER_BYTES, Chunk
from onceflow.transaction.columns import normalize
from onceflow.transaction.compression import Codec, compress
from onceflow.transaction.partitioner import Partitions
from onceflow.transaction.records import RecordEncoder, read_rows
from onceflow.transaction.varint import size_bytes

TARGET_CHUNK_BYTES = 512 << 10
_BLOCK_ROWS = 16_384  # the temporaries of a block stay in the cache
_BLOCK_BYTES = 2 << 20
_LARGEST_BLOCK_BYTES = 1 << 30  # Arrow's binary offsets are 32 bits; this leaves room for what encoding adds
_SMALLEST_RECORD_BYTES = 7


@dataclass(frozen=True, slots=True)
class _Cut:
    """Rows ``start`` to ``end`` of an ordered block, for the open chunk of ``partition``, which holds ``count`` yet."""

    partition: int
    start: int
    end: int
    count: int
    closes: bool


@dataclass(slots=True)
class _Open:
    """A chunk that still takes records. Pieces that stay are copies: a view would keep its whole block alive."""

    base_timestamp_ms: int
    max_timestamp_ms: int = -1
    count: int = 0
    raw_bytes: int = 0
    pieces: list[bytes | memoryview] = field(default_factory=list)


class BodyEncoder:
    """Encodes rows into chunks for one topic; for one thread at a time.

    ``limit_bytes`` is the topic's ``max.message.bytes``: no chunk with its header is larger. ``target_chunk_bytes``
    bounds a chunk before compression. ``open_bytes`` is what all open chunks hold; where partitions are many that is too much
    (partitions times target), and ``shrink`` closes some of them early.
    """

    def __init__(
        self,
        limit_bytes: int,
        codec: Codec,
        default_timestamp_ms: int,
        *,
        target_chunk_bytes: int = TARGET_CHUNK_BYTES,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._codec = codec
        self._default_timestamp_ms = default_timestamp_ms
        self._capacity_bytes = min(target_chunk_bytes, limit_bytes - HEADER_BYTES)
        self._offset_delta_bytes = size_bytes(max(self._capacity_bytes // _SMALLEST_RECORD_BYTES - 1, 0))
        self._open: dict[int, _Open] = {}
        self.open_bytes = 0

    def add(self, batch: pa.RecordBatch, partitions: Partitions) -> Iterator[Chunk]:
        """Encodes the rows as the iterator is read (to its end), and gives the chunks that became full.

        ``batch``: see ``normalize``; ``partitions``: one for each row. Raises ColumnError or InputError for rows that
        Kafka cannot hold, RecordTooLarge (fields row, partition, size_bytes, limit_bytes) for a record above the limit
        even when compressed alone. After an error the encoder is of no more use.
        """
        assert len(partitions) == batch.num_rows, "one partition for each row"
        for first, block in _blocks(normalize(batch)):
            yield from self._add_block(block, partitions[first : first + block.num_rows], first)

    def flush(self) -> Iterator[Chunk]:
        """The open chunks, by partition; afterwards the encoder is empty and can go on."""
        for partition in sorted(self._open):
            yield self._close(partition)

    def shrink(self, to_bytes: int) -> Iterator[Chunk]:
        """The largest of the open chunks, until the others hold no more than that. What comes later is of later chunks."""
        largest_first = sorted(self._open, key=lambda partition: self._open[partition].raw_bytes, reverse=True)
        for partition in largest_first:
            if self.open_bytes <= to_bytes:
                return
            yield self._close(partition)

    def _add_block(self, block: pa.RecordBatch, partitions: Partitions, first_row: int) -> Iterator[Chunk]:
        if block.nbytes > _LARGEST_BLOCK_BYTES:  # then it is a single row
            raise _too_large(int(partitions[0]), first_row, block.nbytes, min(self._limit_bytes, _LARGEST_BLOCK_BYTES))
        order = _order(partitions)
        rows = read_rows(block, self._default_timestamp_ms)
        rows, partitions = (rows, partitions) if order is None else (rows.take(pa.array(order)), partitions[order])
        encoder = RecordEncoder(rows)
        cuts = self._cut(partitions, encoder.sizes_bytes(self._deltas_bytes(rows.timestamps_ms)))
        records = self._encode(encoder, cuts, rows.timestamps_ms)
        data, bounds = memoryview(records.buffers()[2]), offsets(records)
        for cut in cuts:
            self._append(cut, data[bounds[cut.start] : bounds[cut.end]], rows.timestamps_ms)
            if cut.closes:
                row = cut.start if order is None else int(order[cut.start])
                yield self._close(cut.partition, first_row + row)

    def _deltas_bytes(self, timestamps_ms: Integers | None) -> int:
        """The most that the two deltas of a record can take, whichever chunk the record falls in."""
        if timestamps_ms is None:
            return self._offset_delta_bytes + 1
        seen = [chunk.base_timestamp_ms for chunk in self._open.values()]
        seen += [int(timestamps_ms.min()), int(timestamps_ms.max())]
        return self._offset_delta_bytes + size_bytes(max(seen) - min(seen))

    def _cut(self, partitions: Partitions, sizes_bytes: Integers) -> list[_Cut]:
        ends_bytes = np.zeros(len(sizes_bytes) + 1, np.int64)
        np.cumsum(sizes_bytes, out=ends_bytes[1:])
        starts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
        runs = zip(partitions[starts[:-1]].tolist(), starts[:-1], starts[1:], strict=True)
        return [cut for run in runs for cut in self._cut_run(*run, ends_bytes)]

    def _cut_run(self, partition: int, start: int, end: int, ends_bytes: Integers) -> Iterator[_Cut]:
        """As many rows as surely fit, again and again; a row larger than a chunk gets one of its own."""
        chunk = self._open.get(partition)
        count, used_bytes = (chunk.count, chunk.raw_bytes) if chunk else (0, 0)
        while start < end:
            full_bytes = int(ends_bytes[start]) + self._capacity_bytes - used_bytes
            stop = min(int(np.searchsorted(ends_bytes, full_bytes, "right")) - 1, end)
            if stop <= start:
                stop = start if count else start + 1
            yield _Cut(partition, start, stop, count, closes=stop < end or int(ends_bytes[stop]) >= full_bytes)
            start, count, used_bytes = stop, 0, 0

    def _encode(self, encoder: RecordEncoder, cuts: list[_Cut], timestamps_ms: Integers | None) -> pa.Array:
        lengths = [cut.end - cut.start for cut in cuts]
        shifts = np.repeat([cut.count - cut.start for cut in cuts], lengths)
        offset_deltas = np.arange(len(shifts)) + shifts
        if timestamps_ms is None:
            return encoder.encode(offset_deltas, None)
        bases = np.repeat([self._base_timestamp_ms(cut, timestamps_ms) for cut in cuts], lengths)
        return encoder.encode(offset_deltas, timestamps_ms - bases)

    def _base_timestamp_ms(self, cut: _Cut, timestamps_ms: Integers | None) -> int:
        if cut.count:
            return self._open[cut.partition].base_timestamp_ms
        return self._default_timestamp_ms if timestamps_ms is None else int(timestamps_ms[cut.start])

    def _append(self, cut: _Cut, data: memoryview, timestamps_ms: Integers | None) -> None:
        if cut.start == cut.end:
            return
        if not cut.count:
            self._open[cut.partition] = _Open(self._base_timestamp_ms(cut, timestamps_ms))
        chunk = self._open[cut.partition]
        newest = self._default_timestamp_ms if timestamps_ms is None else int(timestamps_ms[cut.start : cut.end].max())
        chunk.max_timestamp_ms = max(chunk.max_timestamp_ms, newest)
        chunk.count += cut.end - cut.start
        chunk.raw_bytes += len(data)
        self.open_bytes += len(data)
        chunk.pieces.append(data if cut.closes else bytes(data))

    def _close(self, partition: int, row: int | None = None) -> Chunk:
        chunk = self._open.pop(partition)
        self.open_bytes -= chunk.raw_bytes
        raw = chunk.pieces[0] if len(chunk.pieces) == 1 else b"".join(chunk.pieces)
        codec, body = self._codec, compress(self._codec, raw)
        if len(body) > len(raw):
            codec, body = Codec.NONE, bytes(raw)
        if HEADER_BYTES + len(body) > self._limit_bytes:
            raise _too_large(partition, row, HEADER_BYTES + len(body), self._limit_bytes)
        return Chunk(partition, chunk.count, codec, chunk.base_timestamp_ms, chunk.max_timestamp_ms, body)


def _blocks(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batch in pieces that fit the cache, each with the number of its first row."""
    rows = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES * batch.num_rows // max(batch.nbytes, 1)))
    for first in range(0, batch.num_rows, rows):
        yield from _halves(first, batch.slice(first, rows))


def _halves(first: int, block: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The block, cut in halves where its rows are far larger than the average."""
    if block.num_rows == 1 or block.nbytes <= _LARGEST_BLOCK_BYTES:
        yield first, block
        return
    middle = block.num_rows // 2
    yield from _halves(first, block.slice(0, middle))
    yield from _halves(first + middle, block.slice(middle))


def _order(partitions: Partitions) -> Integers | None:
    """The stable order by partition; None when the rows are in it already."""
    if bool((partitions[1:] >= partitions[:-1]).all()):
        return None
    narrow = partitions.astype(np.uint16) if partitions.max() < 1 << 16 else partitions  # 16 bits: a radix sort
    return np.argsort(narrow, kind="stable")


def _too_large(partition: int, row: int | None, size_bytes: int, limit_bytes: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"row {row}, for partition {partition}, takes {size_bytes} bytes as a batch of its own; "
        f"the topic takes {limit_bytes}",
        action="raise the topic's max.message.bytes, or keep large payloads elsewhere and send a reference",
        row=row,
        partition=partition,
        size_bytes=size_bytes,
        limit_bytes=limit_bytes,
    )
