"""The tables in which a run is recorded, and how they grow. Times are seconds of the run's clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Clock = Callable[[], float]
"""Seconds since the run's beginning."""

Place = tuple[str, int]
"""A topic and a partition."""

NAME = pa.dictionary(pa.int32(), pa.string())

READ = pa.schema(
    [
        pa.field("at_s", pa.float64()),
        pa.field("op", pa.int64()),  # records that came with one call have one number
        pa.field("topic", NAME),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("id", pa.string()),  # "<ce_source> <ce_id>"; null where the record carries none
        pa.field("key", pa.int64()),  # digest.key_digest; null: no key
        pa.field("content", pa.int64()),  # digest.content_digest
    ]
)
"""Records as a reader got them, in the order in which it got them."""

SENT = pa.schema(
    [
        pa.field("process", NAME),
        pa.field("txn", pa.int64()),  # counts from 0 for each process
        pa.field("status", NAME),  # ok, fail, info: as in a history
        pa.field("topic", NAME),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),  # null: never acknowledged
        pa.field("id", pa.string()),
        pa.field("began_s", pa.float64()),
        pa.field("ended_s", pa.float64()),
    ]
)
"""Records as a writer sent them, transaction by transaction."""

EFFECTS = pa.schema(
    [
        pa.field("topic", NAME),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("content", pa.int64()),  # digest.content_digest
    ]
)
"""Effects, one row each time that one happened, in the order in which they did: of the record at this place."""

ENDS = pa.schema(
    [
        pa.field("topic", NAME),
        pa.field("partition", pa.int32()),
        pa.field("start", pa.int64()),  # the first offset that is still there
        pa.field("stable", pa.int64()),  # the last stable offset
        pa.field("end", pa.int64()),  # the high watermark
    ]
)
"""Where the logs begin and end."""

STABLE = pa.schema([pa.field("at_s", pa.float64()), *ENDS, pa.field("answered_s", pa.float64())])
"""The same, sampled over time: asked from ``at_s`` on; the stable offsets were answered by ``answered_s``, which may be seconds
later, and the others behind that."""

PROGRESS = pa.schema(
    [
        pa.field("at_s", pa.float64()),  # when it was asked for
        pa.field("look", pa.int64()),  # what was seen together has one number, from 1 on
        pa.field(
            "query", NAME
        ),  # Spark's query id, of the progress; of the last one that was seen, where there is none
        pa.field(
            "topic", NAME
        ),  # of the anchor: the offset is the next batch; 0 where no progress is committed any more
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
    ]
)
"""What the pipeline's group had committed, look by look in their order: the progress, and the offsets of the input."""

BATCHES = pa.schema(
    [
        pa.field("topic", NAME),
        pa.field("partition", pa.int32()),
        pa.field("first", pa.int64()),  # its first offset
        pa.field("until", pa.int64()),  # the offset behind its last one
        pa.field("producer", pa.int64()),  # the producer id
        pa.field("epoch", pa.int32()),
        pa.field("kind", NAME),  # "records" of a transaction, "plain" ones, or a marker: "commit", "abort"
    ]
)
"""The record batches of logs, partition by partition in their order, whether or not readers are given them."""

GIVEN = pa.schema(
    [
        pa.field("first", pa.int64()),  # of the batch that gives it, in the partition that keeps the group
        pa.field("topic", NAME),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),  # null: the position is removed
        pa.field("metadata", pa.string()),
    ]
)
"""The positions that a group was given in its own log, in and outside of transactions, aborted ones included."""


class Chunks:
    """A table in the making: what was added becomes Arrow by the thousands, so that few rows are Python objects at a time.

    Rows may be added by one thread and the table asked for by another.
    """

    def __init__(self, schema: pa.Schema, rows: int = 8192) -> None:
        self._schema = schema
        self._most = rows
        self._open: list[tuple[Any, ...]] = []
        self._full: list[pa.RecordBatch] = []
        self._lock = threading.Lock()

    def extend(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Adds rows, each with a value for every column."""
        with self._lock:
            self._open.extend(rows)
            if len(self._open) >= self._most:
                self._close()

    def table(self) -> pa.Table:
        """All rows so far."""
        with self._lock:
            self._close()
            return pa.Table.from_batches(self._full, self._schema).unify_dictionaries()

    def _close(self) -> None:
        if self._open:
            columns = zip(*self._open, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
            self._full.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
            self._open = []


def of_topics(table: pa.Table, topics: Collection[str]) -> pa.Table:
    """Its rows of these topics."""
    return table.filter(is_of_topics(table, topics))


def is_of_topics(table: pa.Table, topics: Collection[str]) -> pa.ChunkedArray:
    """For each of its rows whether it is of one of these topics."""
    return pc.is_in(table["topic"].cast(pa.string()), pa.array(topics, pa.string()))


def last_offsets(reads: pa.Table) -> dict[Place, int]:
    """Of each partition the last offset that was read (``READ``)."""
    plain = reads.set_column(reads.schema.get_field_index("topic"), "topic", reads["topic"].cast(pa.string()))
    last = plain.group_by(["topic", "partition"]).aggregate([("offset", "max")])
    return {(row["topic"], row["partition"]): row["offset_max"] for row in last.to_pylist()}
