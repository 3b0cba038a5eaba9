"""Steps 3 and 4 of a batch: on the driver while it is small enough, else on executors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from onceflow.kafka.client import KafkaClient
from onceflow.transaction.catalog import TopicCatalog
from onceflow.transaction.chunk import Chunk
from onceflow.transaction.executor_path import write_on_executors
from onceflow.transaction.failures import AttemptFailed
from onceflow.transaction.messages import Counts
from onceflow.transaction.producer import BatchProducer, Target
from onceflow.transaction.router import Encoding, TopicRouter
from onceflow.transaction.streaming_query import arrow_batches, is_stateful

log = logging.getLogger(__name__)

_FIRST_GUESS_BYTES_PER_ROW = 250.0
HELD_BYTES = 8 << 20
_TOO_LARGE = ("maxResultSize", "OutOfMemoryError")


class _Outgrown(AttemptFailed):
    """The batch is too large for the driver."""


def _late(chunks: Iterator[tuple[str, Chunk]], held_bytes: float) -> Iterator[tuple[str, Chunk]]:
    """The chunks, the first not before ``held_bytes`` are there or all: sending opens the transaction, and holds readers up."""
    held: list[tuple[str, Chunk]] = []
    size_bytes = 0
    for chunk in chunks:
        held.append(chunk)
        size_bytes += len(chunk[1].body)
        if size_bytes >= held_bytes:
            yield from held
            yield from chunks
            return
    yield from held


class SizeEstimate:
    """How large a batch will be: what a source row became in the batches before, times the rows of this one.

    Spark's driver holds the results of finished tasks, so what goes through it must fit its memory; ``limit_bytes`` is the
    most that it is given. A first guess that was too low costs time: Spark refuses results above
    ``spark.driver.maxResultSize``, and the batch runs again on the executors; in another attempt, if some of it was sent.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes_per_row = _FIRST_GUESS_BYTES_PER_ROW

    def fits_driver(self, source_rows: int | None) -> bool:
        """Whether a batch of ``source_rows`` (None: not known) should be written by the driver."""
        return source_rows is not None and source_rows * self._bytes_per_row <= self._limit_bytes

    def outgrown(self, source_rows: int) -> None:
        """Takes note that the driver could not hold a batch of so many: it may hold one of less than half of them."""
        self._bytes_per_row = max(self._bytes_per_row, 2 * self._limit_bytes / max(source_rows, 1))

    def learn(self, source_rows: int | None, size_bytes: int) -> None:
        """Takes note of what a batch really was, in Arrow bytes."""
        if source_rows:
            self._bytes_per_row = max(size_bytes / source_rows, 1.0)


class BatchWriter:
    """Writes one batch as often as the protocol asks; ``counts`` are those of the last attempt that succeeded.

    ``held_bytes``: nothing is sent before so much is encoded, or all of it. Where there is no second attempt that is all::

        under at_most_once the progress is committed; of a batch that seemed to fit the driver 100 MB are collected, 8 MB sent
        Spark refuses the rest: written again it would be there twice, and not written it is lost, although nothing has crashed
    """

    def __init__(
        self,
        frame: DataFrame,
        columns: list[str],
        encoding: Encoding,
        catalog: TopicCatalog,
        client: KafkaClient,
        estimate: SizeEstimate,
        source_rows: int | None,
        on_request: Callable[[], None] | None = None,
        *,
        held_bytes: float = HELD_BYTES,
    ) -> None:
        self._frame = frame
        self._columns = columns
        self._encoding = encoding
        self._catalog = catalog
        self._client = client
        self._estimate = estimate
        self._source_rows = source_rows
        self._on_request = on_request
        self._held_bytes = held_bytes
        self._has_begun = False
        self._has_sent = False  # in this attempt
        self.counts: Counts = {}

    def write(self, target: Target) -> Counts:
        """Writes every record under ``target`` and waits for the acknowledgements."""
        if self._has_begun:
            self._catalog.forget()
        self._has_begun = True
        self.counts = self._written(target)
        return self.counts

    def _written(self, target: Target) -> Counts:
        self._has_sent = False
        if self._estimate.fits_driver(self._source_rows):
            try:
                return self._on_driver(target)
            except _Outgrown as error:
                if self._has_sent:
                    raise
                log.info("%s", error)
        return self._on_executors(target)

    def _on_driver(self, target: Target) -> Counts:
        producer = BatchProducer(self._client, target, self._on_request)
        router = TopicRouter(self._encoding, self._catalog.find)
        for topic, chunk in _late(self._encoded(router), self._held_bytes):
            self._has_sent = True
            producer.submit(topic, chunk)
        return producer.finish()

    def _encoded(self, router: TopicRouter) -> Iterator[tuple[str, Chunk]]:
        size_bytes = 0
        for batch in self._collected():
            size_bytes += batch.nbytes
            yield from router.add(batch)
        self._estimate.learn(self._source_rows, size_bytes)
        yield from router.flush()

    def _collected(self) -> Iterator[pa.RecordBatch]:
        """The rows, at the driver. Raises _Outgrown when there are too many for it."""
        try:
            for _, batch in arrow_batches(self._frame, self._columns):
                yield batch
        except Exception as error:
            if not any(sign in str(error) for sign in _TOO_LARGE):
                raise
            self._estimate.outgrown(self._source_rows or 0)
            raise _Outgrown(f"the batch is too large for the driver: {error}") from error

    def skip(self) -> None:
        """Runs the batch without writing it: Spark's state for it has to be built again although its output is committed."""
        if is_stateful(self._frame):
            self._frame.write.format("noop").mode("overwrite").save()

    def _on_executors(self, target: Target) -> Counts:
        log.debug("batch of about %s source rows goes to the executors", self._source_rows)
        records = self._frame.selectExpr(*self._columns)
        client, topics = self._client, self._catalog.known()
        return write_on_executors(records, self._encoding, topics, target, client.options, client.patience_s)
