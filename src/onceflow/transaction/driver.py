"""What a driver holds open for one pipeline, and how each guarantee uses it."""

from __future__ import annotations

import contextlib
import logging
import math
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame

from onceflow.errors import AttemptsExhausted, BrokerUnreachable, OnceflowError, ProgressConflict
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.transaction.catalog import TopicCatalog
from onceflow.transaction.compression import Codec
from onceflow.transaction.coordinator import OnStep, TransactionCoordinator
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.guarantee import Guarantee
from onceflow.transaction.idempotent import IdempotentIdentity
from onceflow.transaction.input_columns import record_columns
from onceflow.transaction.messages import Counts, Identity
from onceflow.transaction.once_a_batch import check_first, note_done
from onceflow.transaction.producer import Target
from onceflow.transaction.progress import OnMismatch
from onceflow.transaction.protocol import Protocol, Settings
from onceflow.transaction.read_topics import ReadTopics
from onceflow.transaction.renewing import LEAST_RETENTION_S, retention_s
from onceflow.transaction.requests import Requests
from onceflow.transaction.resuming import starts_elsewhere
from onceflow.transaction.router import Encoding
from onceflow.transaction.session_check import check_session
from onceflow.transaction.source_mark import NOT_RESUMED, why_not_resumed
from onceflow.transaction.source_topics import SourceTopics, made_anew_error
from onceflow.transaction.streaming_query import (
    MicroBatch,
    driver_memory_bytes,
    initial_offsets,
    micro_batch,
    planned_at,
)
from onceflow.transaction.writing import HELD_BYTES, BatchWriter, SizeEstimate

log = logging.getLogger(__name__)

_FIRST_PATIENCE_S = 10.0
_RESUME_ONCE_MORE = (
    "resume once more: a new checkpoint that starts at the committed offsets (startingOffsets = "
    "onceflow.committed_offsets(…))"
)
_NOT_NEW = (
    "source offsets are committed under this name, and no progress (it ran at_least_once, or a resume did not get as far as its "
    "first batch). Begin a new checkpoint at them (startingOffsets = onceflow.committed_offsets(…)), or restart, which writes "
    "again what was written; a new pipeline needs a new name"
)


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
            self._planned = self._planned or self._needs_progress(frame, batch_id)
            self._client = self._open()
        if self.has_progress:
            check_first(self._cluster, self._options.name, offered.run_id, batch_id)
        if begins and self._goes_on_from_offsets(batch_id):
            self._check_resumed(frame, offered)
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
        written = self._guaranteed(offered, writer)
        if not written:
            writer.skip()
        if self.has_progress:
            note_done(self._cluster, self._options.name, offered.run_id, batch_id)
        return BatchReport(batch_id, written, sum(writer.counts.values()), time.monotonic() - started)

    def _needs_progress(self, frame: DataFrame, batch_id: int) -> bool:
        """Whether a name without progress is none that is new: there were batches, or one that may have been committed long ago.

        A first batch that is younger than the cluster keeps progress has failed before the name was claimed.
        """
        if batch_id > 0 or not self.has_progress:
            return self.has_progress
        age_s = time.time() - planned_at(frame)
        options = self._options
        return age_s > LEAST_RETENTION_S and age_s > retention_s(options.cluster, options.patience_s)

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
        self._idempotent = IdempotentIdentity(self._requests.idempotent_identity)
        self._planned = self._planned or self._has_committed()
        instance = uuid.uuid4().hex[:12]
        options = self._options
        settings = Settings(instance, version >= 2, options.on_mismatch, options.max_attempts, self._planned)
        self._protocol = Protocol(settings)
        self._coordinator = TransactionCoordinator(self._requests, self._protocol, self._on_step)
        self._cluster = client.cluster_id()
        self._committed_at = time.monotonic()  # the claim comes next
        log.info("pipeline %s: driver %s, transaction version %d", self._options.name, instance, version)

    def _has_committed(self) -> bool:
        """Whether source offsets prove that a batch was committed: a note beside them comes with progress alone (questions.py).

        Not where a new checkpoint is to begin at them::

            somebody deletes the topic of the progress, which holds no record, and the checkpoint is lost as well
            taken for a new name, all would be written a second time
        """
        if not self.has_progress or self._options.on_mismatch is not OnMismatch.REFUSE:
            return False
        found = self._requests.read_committed(stable=False)
        return bool(found.offsets.keys() - found.plain)

    def _reach(self, client: KafkaClient) -> None:
        """Connects; where that takes long, asks librdkafka, which can tell a wrong password from a broker that is down."""
        try:
            client.open(min(_FIRST_PATIENCE_S, self._options.patience_s))
        except BrokerUnreachable:
            with contextlib.suppress(BrokerUnreachable):
                ClusterAdmin(self._options.cluster).partitions()
            client.open()

    def _goes_on_from_offsets(self, batch_id: int) -> bool:
        """Whether a query that begins has to begin at the committed source offsets, if there are any.

        Also where nobody has asked to resume, and no progress tells of the checkpoint before::

            a name runs at_least_once, and commits source offsets alone; its guarantee and its checkpoint are changed at once
            by its progress the name is new, and all would be written a second time without a word
        """
        if not self.has_progress or self._options.on_mismatch is OnMismatch.RESTART:
            return False
        if self._options.on_mismatch is OnMismatch.RESUME:
            return True
        if batch_id > 0:  # it is refused without progress
            return False
        self._coordinator.ensure_started()
        progress = self._protocol.context.progress
        return progress is None or not progress.query_id

    def _check_resumed(self, frame: DataFrame, offered: MicroBatch) -> None:
        """A resumed pipeline begins exactly where the committed one ended."""
        # A driver that died in its commit left offsets pending, which would hold up the question until its transaction times out.
        self._coordinator.ensure_started()
        found = self._requests.read_committed()
        query_id = offered.batch.query_id
        goes_on = found.progress is not None and found.progress.query_id == query_id
        why_not = why_not_resumed(found.progress, found.offsets, found.newest, found.plain, found.notes)
        is_asked = self._options.on_mismatch is OnMismatch.RESUME
        said = "cannot resume" if is_asked else "has committed source offsets, and does not go on from them"
        if why_not and not goes_on:
            action = NOT_RESUMED if is_asked else _NOT_NEW
            raise ProgressConflict(f"pipeline {self._options.name!r} {said}: {why_not}", action=action)
        wrong = starts_elsewhere(found.progress, query_id, lambda: initial_offsets(frame), found.offsets, found.newest)
        if wrong:
            raise ProgressConflict(
                f"pipeline {self._options.name!r} {said}: the new checkpoint does not start at the committed "
                f"offsets: {'; '.join(wrong[:5])}",
                action=_RESUME_ONCE_MORE if is_asked else _NOT_NEW,
            )

    # ------------------------------------------------------------------------------------------------------ guarantees

    def _guaranteed(self, offered: MicroBatch, writer: BatchWriter) -> bool:
        match self._options.guarantee:
            case Guarantee.EXACTLY_ONCE:
                return self._exactly_once(offered, writer)
            case Guarantee.AT_MOST_ONCE:
                return self._at_most_once(offered, writer)
            case Guarantee.AT_LEAST_ONCE:
                return self._at_least_once(offered, writer)

    def _exactly_once(self, offered: MicroBatch, writer: BatchWriter) -> bool:
        """Records, progress and offsets in one transaction."""
        return self._commit(offered, lambda identity: writer.write(self._transactional(identity)))

    def _at_most_once(self, offered: MicroBatch, writer: BatchWriter) -> bool:
        """Progress first, records after it and once: a crash in between loses them, nothing repeats them."""
        committed = self._commit(offered, lambda identity: {})
        if committed:
            self._write_plain(writer, attempts=1)
        return committed

    def _at_least_once(self, offered: MicroBatch, writer: BatchWriter) -> bool:
        """Records at once visible, offsets after them: a crash in between repeats them, nothing loses them."""
        topics = self._source_topics(offered)
        self._write_plain(writer, self._options.max_attempts)
        topics.check_unchanged()
        self._requests.commit_offsets(offered.kafka_end())
        return True

    def _commit(self, offered: MicroBatch, write: Callable[[Identity], Counts]) -> bool:
        self._coordinator.ensure_started()
        topics = self._source_topics(offered)

        def write_unchanged(identity: Identity, attempt: int) -> Counts:
            counts = write(identity)
            topics.check_unchanged()
            return counts

        ready = self._coordinator.commit(topics.marked(offered).batch, offered.kafka_end(), write_unchanged)
        if ready.committed:
            self._committed_at = time.monotonic()
        if ready.note:
            log.warning(
                "pipeline %s took up batch %d, as on_mismatch allows: %s",
                self._options.name,
                offered.batch.id,
                ready.note,
            )
        return ready.committed

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

    def _write_plain(self, writer: BatchWriter, attempts: int) -> None:
        """Outside of any transaction; each attempt has an epoch of its own. Errors tell what comes of the batch."""
        outcome = self._options.guarantee.of_a_write_that_failed
        for attempt in range(1, attempts + 1):
            try:
                writer.write(self._plain())
                return
            except (AttemptFailed, IdentityRefused) as error:
                log.warning("attempt %d failed: %s", attempt, error)
                if isinstance(error, IdentityRefused):
                    self._idempotent.forget()
                cause = error
            except OnceflowError as error:
                error.action = "; ".join(filter(None, [error.action, outcome]))
                raise
        raise AttemptsExhausted(
            f"pipeline {self._options.name!r}: the write failed {attempts} times, last: {cause}",
            action=f"see the cause; {outcome}",
        ) from cause

    def _transactional(self, identity: Identity) -> Target:
        return Target(identity, self._requests.id, self._requests.version)

    def _plain(self) -> Target:
        return Target(self._idempotent.next(), None, self._requests.version)
