"""What a driver holds open for one pipeline, and what it looks at before a batch is delivered."""

from __future__ import annotations

import contextlib
import logging
import math
import time
import uuid
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame

from onceflow.errors import BrokerUnreachable
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.transaction.catalog import TopicCatalog
from onceflow.transaction.compression import Codec
from onceflow.transaction.coordinator import OnStep, TransactionCoordinator
from onceflow.transaction.delivery import Delivery
from onceflow.transaction.going_on import (
    check_beginning,
    may_be_committed,
    must_begin_at_offsets,
    offsets_tell_of_a_commit,
    planned_again_error,
)
from onceflow.transaction.guarantee import Guarantee
from onceflow.transaction.input_columns import record_columns
from onceflow.transaction.once_a_batch import check_first, note_done
from onceflow.transaction.progress import OnMismatch, Progress
from onceflow.transaction.protocol import Protocol, Settings
from onceflow.transaction.read_topics import ReadTopics
from onceflow.transaction.renewing import LEAST_RETENTION_S, retention_s
from onceflow.transaction.requests import Requests
from onceflow.transaction.router import Encoding
from onceflow.transaction.session_check import check_session
from onceflow.transaction.source_topics import SourceTopics, made_anew_error
from onceflow.transaction.streaming_query import (
    MicroBatch,
    driver_memory_bytes,
    initial_offsets,
    micro_batch,
    planned_at,
    state_tells_time,
)
from onceflow.transaction.writing import HELD_BYTES, BatchWriter, SizeEstimate

log = logging.getLogger(__name__)

_FIRST_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options of a KafkaSink."""

    name: str
    topic: str | None
    guarantee: Guarantee
    on_mismatch: OnMismatch
    codec: Codec
    transaction_timeout_ms: int
    driver_bytes: int | None  # None: what Spark's driver can hold
    max_attempts: int
    patience_s: float
    cluster: ClusterSettings


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What became of a batch; ``written`` is False when an earlier run had committed it already."""

    batch_id: int
    written: bool
    records: int
    seconds: float


class Driver:
    """Opens on the first batch, or by ``open``. Not thread-safe; after an error the next batch finds out what happened first."""

    def __init__(self, options: Options, on_step: OnStep | None) -> None:
        self._options = options
        self._on_step = on_step
        self._planned = False  # a batch, before the name was claimed
        self._client: KafkaClient | None = None
        self._committed_at = 0.0
        self._run_id = ""  # of the run of a query that was checked
        self._read_topics: ReadTopics | None = None  # of that query, where no progress tells what it has read

    def run(self, frame: DataFrame, batch_id: int) -> BatchReport:
        """Writes one micro-batch under the chosen guarantee."""
        started = time.monotonic()
        offered = micro_batch(frame, batch_id)
        columns = record_columns(frame, self._options.topic)
        begins = offered.run_id != self._run_id
        if begins:
            check_session(frame)
            limit = self._options.driver_bytes
            self._estimate = SizeEstimate(driver_memory_bytes(frame) if limit is None else limit)
        if self._client is None:
            self._planned = self._planned or self._may_be_committed(frame, batch_id)
            self._client = self._open()
        if self.has_progress:
            check_first(self._cluster, self._options.name, offered.run_id, batch_id)
        if begins and self._must_begin_at_offsets(batch_id):
            self._check_beginning(frame, offered)
        if begins:
            self._read_topics = ReadTopics(frame) if batch_id == 0 or not self.has_progress else None
        self._run_id = offered.run_id
        writer = BatchWriter(
            frame,
            columns,
            self._encoding(batch_id),
            self._catalog,
            self._client,
            self._estimate,
            offered.source_rows(),
            partial(self._on_step, "PRODUCE", batch_id) if self._on_step else None,
            held_bytes=math.inf if self._options.guarantee is Guarantee.AT_MOST_ONCE else HELD_BYTES,
        )
        written = self._delivery.deliver(offered, writer.write)
        if not written:
            self._check_state(frame, offered)
            writer.skip()
        if self.has_progress:
            note_done(self._cluster, self._options.name, offered.run_id, batch_id)
        return BatchReport(batch_id, written, sum(writer.counts.values()), time.monotonic() - started)

    def _may_be_committed(self, frame: DataFrame, batch_id: int) -> bool:
        options = self._options
        return self.has_progress and may_be_committed(
            batch_id,
            lambda: time.time() - planned_at(frame),
            LEAST_RETENTION_S,
            lambda: retention_s(options.cluster, options.patience_s),
        )

    def open(self, *, planned: bool) -> None:
        """Connects, and claims the name where a guarantee has progress. ``planned``: see ``KafkaSink.open``."""
        if self._client is None:
            self._planned = self._planned or planned
            self._client = self._open()
        if self.has_progress:
            self._coordinator.ensure_started()

    def renew(self, older_than_s: float) -> None:
        """Commits once more what is committed, if nothing was for so long. Raises as a batch does."""
        rests = self._client is not None and time.monotonic() - self._committed_at >= older_than_s
        if rests and self._coordinator.renew():
            log.info("pipeline %s rests: its progress is renewed", self._options.name)
            self._note_commit()

    def _note_commit(self) -> None:
        self._committed_at = time.monotonic()

    @property
    def has_progress(self) -> bool:
        """Whether a batch that was committed is recognised; at least once writes whatever comes."""
        return self._options.guarantee is not Guarantee.AT_LEAST_ONCE

    def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _encoding(self, batch_id: int) -> Encoding:
        return Encoding(self._options.topic, self._options.codec, int(time.time() * 1000), seed=batch_id)

    # --------------------------------------------------------------------------------------------------------- opening

    def _open(self) -> KafkaClient:
        client = KafkaClient(self._options.cluster.for_protocol(), patience_s=self._options.patience_s)
        try:
            self._connect(client)
        except BaseException:
            client.close()
            raise
        return client

    def _connect(self, client: KafkaClient) -> None:
        self._reach(client)
        ensure_anchor_topic(client)
        self._catalog = TopicCatalog(client)
        if self._options.topic is not None:
            self._catalog.find(self._options.topic)
        version = client.transaction_version()
        self._requests = Requests(client, self._options.name, version, self._options.transaction_timeout_ms)
        self._planned = self._planned or self._has_committed()
        instance = uuid.uuid4().hex[:12]
        options = self._options
        settings = Settings(instance, version >= 2, options.on_mismatch, options.max_attempts, self._planned)
        self._protocol = Protocol(settings)
        self._coordinator = TransactionCoordinator(self._requests, self._protocol, self._on_step)
        self._delivery = Delivery(
            options.name,
            options.guarantee,
            options.max_attempts,
            self._requests,
            self._coordinator,
            self._source_topics,
            self._note_commit,
        )
        self._cluster = client.cluster_id()
        self._note_commit()  # the claim comes next
        log.info("pipeline %s: driver %s, transaction version %d", self._options.name, instance, version)

    def _has_committed(self) -> bool:
        committed = partial(self._requests.read_committed, stable=False)
        return self.has_progress and offsets_tell_of_a_commit(self._options.on_mismatch, committed)

    def _reach(self, client: KafkaClient) -> None:
        """Connects; where that takes long, asks librdkafka, which can tell a wrong password from a broker that is down."""
        try:
            client.open(min(_FIRST_PATIENCE_S, self._options.patience_s))
        except BrokerUnreachable:
            with contextlib.suppress(BrokerUnreachable):
                ClusterAdmin(self._options.cluster).partitions()
            client.open()

    def _must_begin_at_offsets(self, batch_id: int) -> bool:
        return self.has_progress and must_begin_at_offsets(self._options.on_mismatch, batch_id, self._progress)

    def _progress(self) -> Progress | None:
        self._coordinator.ensure_started()
        return self._protocol.context.progress

    def _check_beginning(self, frame: DataFrame, offered: MicroBatch) -> None:
        """By what is committed with the progress that was claimed. Where that is another's by now, a start finds it out.

        Started before: a driver that died in its commit left offsets pending, which would hold up the question until its
        transaction times out. And the start asks anew who coordinates the group::

            the one that has told of other progress was replaced, and has not heard of it; it knows nothing of our claim
            the start, told the same by it, would take another driver for the newest, or the progress for gone
        """
        claimed, found = self._progress(), self._requests.read_committed()
        if found.progress != claimed:
            self._requests.forget_group()
            self._coordinator.start()
            found = self._requests.read_claimed(self._progress())
        options, query_id = self._options, offered.batch.query_id
        check_beginning(options.name, options.on_mismatch, query_id, found, lambda: initial_offsets(frame))

    def _check_state(self, frame: DataFrame, offered: MicroBatch) -> None:
        """Raises ProgressConflict where a batch that is skipped would leave another state than when it was committed."""
        progress, batch = self._protocol.context.progress, offered.batch
        if progress is None or not progress.is_planned_again(batch) or not state_tells_time(frame):
            return
        error = planned_again_error(self._options.name, batch.id)
        if self._options.on_mismatch is not OnMismatch.RESTART:
            raise error
        log.warning("%s; taken up all the same, as on_mismatch allows", error.message)

    # ---------------------------------------------------------------------------------------------------- source topics

    def _source_topics(self, offered: MicroBatch) -> SourceTopics:
        """The topics of the batch. Raises InputError where one is not that which it was planned for, or goes on in.

        Until a query has committed no progress tells, so its first batch notes them in the checkpoint::

            batch 0 is planned over 5000 to 9000, and fails: a record is too large
            meanwhile the topic is deleted and made anew, and gets 10000 records
            batch 0 comes again, and would pass over the first 5000 of them
        """
        assert self._client is not None
        topics = SourceTopics.of(self._client, offered)
        made_anew = self.has_progress and topics.were_made_anew(offered, self._protocol.context.progress)
        if self._read_topics is not None:
            goes_on = {topic for topic, _ in offered.kafka_start() or offered.kafka_end()}
            made_anew = made_anew or bool(self._read_topics.made_anew(goes_on, topics.ids))
        if made_anew:
            self._refuse_made_anew(offered)
        if self._read_topics is not None:
            self._read_topics.note(topics.ids)
        return topics

    def _refuse_made_anew(self, offered: MicroBatch) -> None:
        read = ", ".join(sorted({topic for topic, _ in offered.kafka_end()}))
        error = made_anew_error(
            f"pipeline {self._options.name!r}, batch {offered.batch.id}: of the source topics ({read}) one or more were deleted "
            "and made anew since the batch before, or since this batch was planned"
        )
        if self._options.on_mismatch is not OnMismatch.RESTART:
            raise error
        log.warning("%s; taken up all the same, as on_mismatch allows", error.message)
