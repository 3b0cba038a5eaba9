"""Step 3: turns Arrow batches into chunks, per topic and partition. The driver path and the executor path share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.errors import InputError, RecordTooLarge
from onceflow.transaction.chunk import Chunk
from onceflow.transaction.compression import Codec
from onceflow.transaction.partitioner import assign_partitions
from onceflow.transaction.record_batch import BodyEncoder

OPEN_BYTES = 64 << 20
"""The most that the open chunks of a task hold, before compression: up to 128 partitions have one of the full size each."""
_SLICE_BYTES = 8 << 20  # of rows that are encoded between two looks at that
SOURCE_COLUMNS = ("_topic", "_partition", "_offset")
"""Where a row came from; optional, not written, only named in errors."""
_UNTOLD_LIMIT_BYTES = (100 << 20) - 1024
"""Where the topic's limit is not told: as much as a broker reads by default (``socket.request.max.bytes``), or it hangs up."""
_TOLD_LIMIT = "the topic accepts (max.message.bytes = {:,})"
_UNTOLD_LIMIT = "brokers read by default (assumed: {:,}; the principal is not told the topic's max.message.bytes)"


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What the encoder must know of a target topic; ``limit_bytes`` is its max.message.bytes, None where nobody tells."""

    partitions: int
    limit_bytes: int | None


FindTopic = Callable[[str], TopicInfo]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a batch is encoded; the same for all its tasks, and for every attempt of it. Pickles."""

    topic: str | None  # None: the column topic decides
    codec: Codec
    timestamp_ms: int  # of records whose row has none
    seed: int  # where rows without a key begin (the batch id)


class TopicRouter:
    """Encodes the rows of one task. ``add`` Arrow batches in order, then ``flush``; both give (topic, chunk) as they fill.

    Or before they are full, the largest first, where all that are open hold more than ``open_bytes``::

        a task writes to 2,000 partitions; none of its chunks gets full for long, and together they hold up to a gigabyte
        as many tasks run in an executor as it has cores, and what Python holds is no part of the executor's heap
    """

    def __init__(self, encoding: Encoding, find_topic: FindTopic, *, open_bytes: int = OPEN_BYTES) -> None:
        self._encoding = encoding
        self._find_topic = find_topic
        self._most_bytes = open_bytes
        self._topics: dict[str, _TopicEncoder] = {}

    @property
    def open_bytes(self) -> int:
        """What all open chunks hold."""
        return sum(encoder.open_bytes for encoder in self._topics.values())

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Chunk]]:
        """Encodes the rows of ``batch`` (the columns of Spark's Kafka sink). Raises InputError, ColumnError, RecordTooLarge."""
        for topic, rows in self._by_topic(batch):
            encoder = self._encoder(topic)
            for first, some in _slices(rows):
                for chunk in encoder.add(some, first):
                    yield topic, chunk
                yield from self._shrink()

    def _shrink(self) -> Iterator[tuple[str, Chunk]]:
        """To the half, so that it is seldom. Of each topic in turn, that with most first."""
        if self.open_bytes <= self._most_bytes:
            return
        for topic, encoder in sorted(self._topics.items(), key=lambda item: item[1].open_bytes, reverse=True):
            others = self.open_bytes - encoder.open_bytes
            for chunk in encoder.shrink(max(self._most_bytes // 2 - others, 0)):
                yield topic, chunk

    def flush(self) -> Iterator[tuple[str, Chunk]]:
        """What is left in chunks that are not full."""
        for topic, encoder in self._topics.items():
            for chunk in encoder.flush():
                yield topic, chunk

    def _encoder(self, topic: str) -> _TopicEncoder:
        if topic not in self._topics:
            self._topics[topic] = _TopicEncoder(topic, self._find_topic(topic), self._encoding)
        return self._topics[topic]

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._encoding.topic is not None:
            yield self._encoding.topic, batch
            return
        column = batch.column("topic")
        if column.null_count:
            raise InputError(
                f"the column topic is null in {column.null_count} rows{_origin(batch, column.is_null())}",
                action="give every row a topic, or the sink a fixed one",
            )
        for topic in pc.unique(column).to_pylist():
            yield topic, batch.filter(pc.equal(column, topic))


class _TopicEncoder:
    def __init__(self, topic: str, info: TopicInfo, encoding: Encoding) -> None:
        self._topic = topic
        self._info = info
        self._seed = encoding.seed
        self._rows = 0
        self._encoder = BodyEncoder(info.limit_bytes or _UNTOLD_LIMIT_BYTES, encoding.codec, encoding.timestamp_ms)

    def add(self, batch: pa.RecordBatch, first_row: int) -> Iterator[Chunk]:
        """``first_row``: which row of a larger batch it begins with."""
        partitions = assign_partitions(
            _column(batch, "key"),
            _column(batch, "partition"),
            self._info.partitions,
            rows=batch.num_rows,
            seed=self._seed,
            first_row=self._rows,
        )
        self._rows += batch.num_rows
        try:
            yield from self._encoder.add(batch, partitions)
        except RecordTooLarge as error:
            raise self._named(error, batch, first_row) from None

    @property
    def open_bytes(self) -> int:
        return self._encoder.open_bytes

    def shrink(self, to_bytes: int) -> Iterator[Chunk]:
        return self._encoder.shrink(to_bytes)

    def flush(self) -> Iterator[Chunk]:
        return self._encoder.flush()

    def _named(self, error: RecordTooLarge, batch: pa.RecordBatch, first_row: int) -> RecordTooLarge:
        """The same error with the topic, and where the record came from."""
        row = error.fields["row"]
        mask = pa.array(np.arange(batch.num_rows) == row)
        is_told = self._info.limit_bytes is not None
        fields = {**error.fields, "row": first_row + row, "topic": self._topic, "is_told": is_told}
        limit = _TOLD_LIMIT if is_told else _UNTOLD_LIMIT
        mend = (
            "raise the topic's max.message.bytes"
            if is_told
            else "grant DESCRIBE_CONFIGS on the topic, if it takes more"
        )
        return RecordTooLarge(
            f"a record of {fields['size_bytes']:,} bytes for {self._topic}-{fields['partition']} is larger than "
            f"{limit.format(fields['limit_bytes'])}{_origin(batch, mask)}{_key(batch, row)}",
            action=f"{mend}, or drop or split the record",
            **fields,
        )


def _slices(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batch in pieces of about ``_SLICE_BYTES``, each with the number of its first row; as it is where it is no larger."""
    rows = max(1, _SLICE_BYTES * batch.num_rows // max(batch.nbytes, 1))
    for first in range(0, batch.num_rows, rows):
        yield first, batch.slice(first, rows)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name) if name in batch.schema.names else None


def _origin(batch: pa.RecordBatch, mask: pa.Array) -> str:
    """Where the first marked row came from, as far as the batch knows."""
    if not set(SOURCE_COLUMNS) <= set(batch.schema.names):
        return ""
    row = batch.filter(mask).slice(0, 1)
    topic, partition, offset = (row.column(name)[0].as_py() for name in SOURCE_COLUMNS)
    if offset is None:
        return ""
    return f", from source {topic}-{partition} at offset {offset}"


def _key(batch: pa.RecordBatch, row: int) -> str:
    key = _column(batch, "key")
    return "" if key is None else f", key {key[row].as_py()!r}"[:120]
