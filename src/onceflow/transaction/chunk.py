"""Chunks: encoded records of one partition, and the batch header that makes them ready to produce.

The body is encoded and compressed where the data is; the header names a producer, an epoch and a sequence, and only the
one writer of the partition knows those. So a chunk travels without its header, and ``seal`` puts it in front.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c
import pyarrow as pa

from onceflow.transaction.compression import Codec

HEADER_BYTES = 61
_HEAD = struct.Struct(">qiib")  # base offset, length, partition leader epoch, magic
_CRC = struct.Struct(">I")
_TAIL = struct.Struct(">hiqqqhii")  # attributes to record count: with the records, what the checksum covers
_AFTER_LENGTH_BYTES = HEADER_BYTES - 12  # the length counts what follows the base offset and itself
_MAGIC = 2
_TRANSACTIONAL = 0x10
_SEQUENCE_BITS = 0x7FFFFFFF

CHUNK_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("task", pa.int32(), nullable=False),
        pa.field("chunk", pa.int32(), nullable=False),
        pa.field("count", pa.int32(), nullable=False),
        pa.field("codec", pa.int8(), nullable=False),
        pa.field("base_timestamp", pa.int64(), nullable=False),
        pa.field("max_timestamp", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""One row a chunk; ``task`` and ``chunk`` order the chunks of a partition. Times in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """``count`` records of one partition; ``body`` is their records section, compressed with ``codec``."""

    partition: int
    count: int
    codec: Codec
    base_timestamp_ms: int
    max_timestamp_ms: int
    body: bytes | pa.Buffer


def seal(
    chunk: Chunk, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool = True
) -> bytes:
    """The complete RecordBatch (magic 2): a header of 61 bytes, then the body.

    ``base_sequence`` counts from 0 and wraps as Kafka's sequences do; without a producer (id -1) it is ignored.
    """
    sequence = wrap_sequence(base_sequence) if producer_id >= 0 else -1
    tail = _TAIL.pack(
        chunk.codec | (_TRANSACTIONAL if transactional else 0),
        chunk.count - 1,
        chunk.base_timestamp_ms,
        chunk.max_timestamp_ms,
        producer_id,
        producer_epoch,
        sequence,
        chunk.count,
    )
    body = chunk.body
    head = _HEAD.pack(0, _AFTER_LENGTH_BYTES + len(body), -1, _MAGIC)
    crc = google_crc32c.extend(google_crc32c.value(tail), body)
    return b"".join((head, _CRC.pack(crc), tail, body))


def wrap_sequence(records: int) -> int:
    """The sequence number after so many records: 2,147,483,647 is followed by 0 (``DefaultRecordBatch.java``)."""
    return records & _SEQUENCE_BITS


def chunks_to_batch(chunks: Sequence[Chunk], task: int, first_chunk: int) -> pa.RecordBatch:
    """The chunks of one task as rows of ``CHUNK_SCHEMA``, numbered from ``first_chunk``."""
    rows = [
        (c.partition, task, number, c.count, int(c.codec), c.base_timestamp_ms, c.max_timestamp_ms, bytes(c.body))
        for number, c in enumerate(chunks, first_chunk)
    ]
    columns = zip(*rows, strict=True) if rows else [()] * len(CHUNK_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, CHUNK_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=CHUNK_SCHEMA)


def chunk_from_row(batch: pa.RecordBatch, row: int) -> Chunk:
    """The chunk in one row of ``CHUNK_SCHEMA`` (by name; large_binary bodies too). Its body is a view of ``batch``."""
    names = ("partition", "count", "codec", "base_timestamp", "max_timestamp")
    partition, count, codec, base, maximum = (batch.column(name)[row].as_py() for name in names)
    return Chunk(partition, count, Codec(codec), base, maximum, batch.column("body")[row].as_buffer())
