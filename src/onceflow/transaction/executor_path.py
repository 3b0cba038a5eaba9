"""Steps 3 and 4 on executors: encode where the data is, shuffle the chunks, one writer task per target partition.

Only the first attempt of a writer task may write::

    writer task, attempt 0, writes batches with sequences 0..9 to partition 3 and its machine is lost
    attempt 1 writes partition 3 again from sequence 0, with other batch boundaries: the broker refuses it
    or, worse, with the same boundaries: the broker takes it for a resend, answers success and drops the data

so any later attempt, speculative copies included, writes nothing and reports; the driver aborts and runs the batch again
under a fresh epoch, which also shuts out attempt 0 should it still live. A stage that ran again is seen by the driver before
the commit (``refusing_stage_retries``).
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from onceflow.first_line import first_line_of
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.catalog import TopicCatalog
from onceflow.transaction.chunk import CHUNK_SCHEMA, Chunk, chunk_from_row, chunks_to_batch
from onceflow.transaction.failures import AttemptFailed
from onceflow.transaction.messages import Counts
from onceflow.transaction.producer import BatchProducer, Target
from onceflow.transaction.router import Encoding, TopicInfo, TopicRouter
from onceflow.transaction.streaming_query import refusing_stage_retries

ARROW_BYTES_PER_BATCH = 8 << 20  # what a Python worker holds at a time; a chunk is up to 1 MB
_ERROR_WRITER = 0

_CHUNK_TYPES = {pa.int8(): "tinyint", pa.int32(): "int", pa.int64(): "bigint", pa.binary(): "binary"}
_ENCODED_DDL = "topic string, writer int, error binary, " + ", ".join(
    f"{field.name} {_CHUNK_TYPES[field.type]}" for field in CHUNK_SCHEMA
)
_WRITTEN = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("count", LongType()),
        StructField("error", BinaryType()),
    ]
)
_ENCODED_SCHEMA = pa.schema(
    [pa.field("topic", pa.string()), pa.field("writer", pa.int32()), pa.field("error", pa.binary())]
    + [field.with_nullable(True) for field in CHUNK_SCHEMA]
)
_WRITTEN_SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("count", pa.int64()), ("error", pa.binary())]
)


def write_on_executors(
    frame: DataFrame,
    encoding: Encoding,
    topics: Mapping[str, TopicInfo],
    target: Target,
    options: Mapping[str, Any],
    patience_s: float,
) -> Counts:
    """Writes ``frame`` from executors and returns the acknowledged records per target partition.

    ``topics``: what is known already; tasks ask for the rest, with clients of these ``options`` and this patience. Raises
    AttemptFailed, or what a task found wrong.
    """
    placed = _placed(frame, encoding, topics, options, patience_s)
    try:
        with refusing_stage_retries(frame):
            rows = placed.mapInArrow(_Write(target, dict(options), patience_s), _WRITTEN).collect()
    except AttemptFailed:
        raise
    except Exception as error:  # a lost executor or worker, or the user's own query: another attempt tells
        raise AttemptFailed(f"the Spark job of the write failed: {first_line_of(error)[:500]}") from error
    for row in rows:
        if row.error is not None:
            raise _unpacked(bytes(row.error))
    return {(row.topic, row.partition): row["count"] for row in rows}


def rehearse_on_executors(frame: DataFrame, encoding: Encoding, options: Mapping[str, Any], patience_s: float) -> None:
    """All of it but the writing: Python workers start, import, ask for the topics and encode; the chunks are shuffled, and lost.

    What a task finds wrong with a row is left to the real batch to tell.
    """
    placed = _placed(frame, encoding, {}, options, patience_s)
    placed.mapInArrow(_drop, _WRITTEN).collect()


def _placed(
    frame: DataFrame, encoding: Encoding, topics: Mapping[str, TopicInfo], options: Mapping[str, Any], patience_s: float
) -> DataFrame:
    """The encoded chunks, each at the task that writes its partition, in order."""
    session = frame.sparkSession
    writers = max(1, session.sparkContext.defaultParallelism)
    session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(ARROW_BYTES_PER_BATCH))
    encoded = frame.mapInArrow(_Encode(encoding, dict(topics), dict(options), patience_s, writers), _ENCODED_DDL)
    return encoded.repartitionById(writers, "writer").sortWithinPartitions("topic", "partition", "task", "chunk")


def _drop(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield _counts_batch({})


@dataclass(frozen=True, slots=True)
class _Encode:
    """Step 3 in a Python worker: rows in, chunks out."""

    encoding: Encoding
    topics: dict[str, TopicInfo]
    options: dict[str, Any]
    patience_s: float
    writers: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = _context().partitionId()
        first_chunk = 0
        with ExitStack() as stack:
            router = TopicRouter(replace(self.encoding, seed=self.encoding.seed + task), _Finder(self, stack).find)
            try:
                for topic, chunk in _encode_all(router, batches):
                    yield self._row(topic, chunk, task, first_chunk)
                    first_chunk += 1
            except Exception as error:  # noqa: BLE001  bad input is reported, not raised: a task that runs again finds the same
                yield _error_row(error)

    def _row(self, topic: str, chunk: Chunk, task: int, number: int) -> pa.RecordBatch:
        row = chunks_to_batch([chunk], task, number)
        writer = zlib.crc32(topic.encode()) + chunk.partition
        front = [pa.array([topic]), pa.array([writer % self.writers], pa.int32()), pa.array([None], pa.binary())]
        return pa.RecordBatch.from_arrays([*front, *row.columns], schema=_ENCODED_SCHEMA)


def _encode_all(router: TopicRouter, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, Chunk]]:
    for batch in batches:
        yield from router.add(batch)
    yield from router.flush()


class _Finder:
    """What a topic accepts: told by the driver, else asked for by the task."""

    def __init__(self, task: _Encode, stack: ExitStack) -> None:
        self._task = task
        self._stack = stack
        self._catalog: TopicCatalog | None = None

    def find(self, topic: str) -> TopicInfo:
        if topic in self._task.topics:
            return self._task.topics[topic]
        if self._catalog is None:
            client = KafkaClient(self._task.options, patience_s=self._task.patience_s)
            self._catalog = TopicCatalog(self._stack.enter_context(client))
        return self._catalog.find(topic)


@dataclass(frozen=True, slots=True)
class _Write:
    """Step 4 in a Python worker: chunks of its partitions in, in order; acknowledged counts out."""

    target: Target
    options: dict[str, Any]
    patience_s: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            _refuse_second_attempt()
            yield _counts_batch(self._write(batches))
        except Exception as error:  # noqa: BLE001  reported, not raised: Spark would only run the task again
            yield _written_batch([(None, None, None, pickle.dumps(error))])

    def _write(self, batches: Iterable[pa.RecordBatch]) -> Counts:
        chunks = _chunks(batches)
        first = next(chunks, None)
        if first is None:
            return {}  # most writers of a batch for few partitions: not worth a connection
        with KafkaClient(self.options, patience_s=self.patience_s) as client:
            producer = BatchProducer(client, self.target)
            for topic, chunk in chain([first], chunks):
                producer.submit(topic, chunk)
            return producer.finish()


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, Chunk]]:
    for batch in batches:
        for row in range(batch.num_rows):
            _raise_reported(batch, row)
            yield batch.column("topic")[row].as_py(), chunk_from_row(batch, row)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "runs in a Spark task only"
    return context


def _refuse_second_attempt() -> None:
    context = _context()
    if context.attemptNumber():
        raise AttemptFailed(
            f"a writer task ran again (task {context.partitionId()}, attempt {context.attemptNumber()}): "
            "only the first attempt may write"
        )


def _raise_reported(batch: pa.RecordBatch, row: int) -> None:
    error = batch.column("error")[row].as_py()
    if error is not None:
        raise _unpacked(error)


def _unpacked(error: bytes) -> Exception:
    unpacked: Exception = pickle.loads(error)  # noqa: S301  made by our own tasks, and travels as Spark's own pickles do
    return unpacked


def _error_row(error: Exception) -> pa.RecordBatch:
    empty: dict[str, Any] = dict.fromkeys(_ENCODED_SCHEMA.names)
    row = {**empty, "topic": "", "writer": _ERROR_WRITER, "error": pickle.dumps(error)}
    return pa.RecordBatch.from_pylist([row], schema=_ENCODED_SCHEMA)


def _counts_batch(counts: Counts) -> pa.RecordBatch:
    return _written_batch([(topic, partition, count, None) for (topic, partition), count in counts.items()])


def _written_batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(_WRITTEN_SCHEMA.names, row, strict=True)) for row in rows], schema=_WRITTEN_SCHEMA
    )
