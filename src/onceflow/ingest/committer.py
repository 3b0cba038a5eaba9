"""Rows of a source and its positions in one Kafka transaction, by the commit protocol of the Spark pipeline.

What a source has delivered is a fact of its own positions, so they are committed together with the rows (as KIP-618 does for
Connect's source connectors), and a start reads them only after it has fenced whoever held the name before::

    A commits rows 100 to 199 and the position 200; A is stopped before it knows of it
    B starts, reads the position 100 first, then fences A: B would send rows 100 to 199 again
    B fences first: either A's commit was decided before it, and B reads 200, or it never can be

Whoever would refuse them may look before the fence, so that a start which is refused leaves A alone (``look``).

The progress record of the protocol carries a digest of all positions of each commit. It proves at the start that the positions
that were read are those that were committed: a positions topic that was deleted, or restored from an old copy, is refused. The
cluster forgets that record when nothing was committed for ``offsets.retention.minutes``; then nothing vouches for the positions
but whoever says ``trust_positions``.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Self

import pyarrow as pa

from onceflow.errors import InputError, KafkaError, ProgressConflict, ProgressGone
from onceflow.ingest.positions import (
    as_records,
    check_name,
    ensure_positions_topic,
    positions_topic,
    read_positions,
)
from onceflow.ingest.refused_rows import AttemptTopics, refused_rows
from onceflow.ingest.terms import is_begun
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.transaction.catalog import TopicCatalog
from onceflow.transaction.compression import Codec
from onceflow.transaction.coordinator import OnStep, TransactionCoordinator
from onceflow.transaction.messages import Counts, Identity
from onceflow.transaction.producer import BatchProducer, Target
from onceflow.transaction.progress import Batch, Progress, digest_of
from onceflow.transaction.protocol import Protocol, Settings
from onceflow.transaction.renewing import longest_rest_s, retention_s
from onceflow.transaction.requests import Requests
from onceflow.transaction.router import Encoding, TopicRouter

log = logging.getLogger(__name__)
_MARKERS_S = 5.0
_LOOK_AGAIN_S = 0.1
ASK_PATIENCE_S = 2.0
ASK_AGAIN_S = 10.0
"""Of a source that rests; less than the longest rest where a broker keeps the least, a minute."""

Rows = Iterable[tuple[str, pa.RecordBatch]]
"""(topic, columns as for Spark's Kafka sink: value, and optionally key, headers, timestamp, partition). Read again by each
attempt, so it must give the same rows each time."""


class SourceCommitter:
    """One instance's hold on one source's name. ``start``, then ``commit`` again and again; for one thread at a time.

    ``kind`` keeps names apart: an ingest and an outbox relay may have the same ``name``. After an error ``start`` again: it
    finds out what is committed. ``trust_positions``: where the cluster has forgotten the progress record, go on from the
    positions that are there. Needs no Spark; as a context manager it closes its connections. Raises ConfigurationError for a
    name that no topic can have.
    """

    def __init__(
        self,
        name: str,
        settings: ClusterSettings,
        *,
        kind: str = "ingest",
        codec: Codec = Codec.LZ4,
        transaction_timeout_ms: int = 60_000,
        patience_s: float = 60.0,
        trust_positions: bool = False,
        on_step: OnStep | None = None,
    ) -> None:
        check_name(kind, name)
        self._name = name
        self._kind = kind
        self._settings = settings
        self._codec = codec
        self._timeout_ms = transaction_timeout_ms
        self._trust_positions = trust_positions
        self._on_step = on_step
        self._client = KafkaClient(settings.for_protocol(), patience_s=patience_s)
        self._coordinator: TransactionCoordinator | None = None
        self._positions: dict[str, str] | None = None  # None: not known, start first
        self._rest_s: float | None = (
            None  # the most that may pass between two commits; None: not asked, or not answered
        )
        self._committed_at = self._keep_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; commits nothing."""
        self._positions = None
        self._client.close()

    # ----------------------------------------------------------------------------------------------------------- start

    def look(self) -> dict[str, str]:
        """The positions that are committed now, without fencing anybody: good for a refusal, and for nothing else::

            A commits the position 200, and is told so; the markers that make it visible are still to be written
            B, which starts then, must not refuse what was true before that commit: it waits until it is complete

        Raises BrokerUnreachable, NotAuthorized, TopicMissing when the positions are deleted meanwhile.
        """
        self._connect()
        self._requests.describe(settle=True)
        return read_positions(self._settings, self._client, self._topic)

    def start(self) -> dict[str, str]:
        """Fences older instances, claims the name and gives the committed positions.

        Raises Fenced when a newer instance holds the name, ProgressConflict when the positions are not those that were
        committed, ProgressGone when the progress has gone since an earlier ``start``, TopicMissing when the positions are
        deleted meanwhile, BrokerUnreachable, NotAuthorized.
        """
        self._positions = None
        with self._advised():
            self._connect().start()  # also while it is ready: another instance may have committed since
        positions = self._read()
        self._check(positions)
        self._positions = positions
        return dict(positions)

    def _read(self) -> dict[str, str]:
        """The positions, read again for a while where they are not yet those of the progress::

        a commit is answered when it is decided; its marker in the positions topic, which makes them visible, comes after that
        """
        deadline = time.monotonic() + _MARKERS_S
        while True:
            found = read_positions(self._settings, self._client, self._topic)
            if digest_of(found) == self._committed or not self._progress.ends or time.monotonic() > deadline:
                return found
            time.sleep(_LOOK_AGAIN_S)

    @property
    def _committed(self) -> str:
        """The digest of the positions that were committed last."""
        return self._progress.ends[-1] if self._progress.ends else digest_of({})

    @contextmanager
    def _advised(self) -> Iterator[None]:
        """Progress that goes while a source runs: its positions tell what is committed, and whoever begins anew reads them.

        What a pipeline is advised would send rows again: it has no positions but those that go with its progress.
        """
        try:
            yield
        except ProgressGone as error:
            error.action = f"start it again: it goes on from its positions in topic {self._topic}"
            if not self._trust_positions:
                error.action += " with --trust-positions, if the topic was not restored from an old copy"
            raise

    def _connect(self) -> TransactionCoordinator:
        if self._coordinator is None:
            self._coordinator = self._connected()
        return self._coordinator

    def _connected(self) -> TransactionCoordinator:
        self._client.open()
        ensure_anchor_topic(self._client)
        ensure_positions_topic(self._client, self._topic)
        self._catalog = TopicCatalog(self._client)
        version = self._client.transaction_version()
        self._requests = Requests(self._client, f"{self._kind}-{self._name}", version, self._timeout_ms)
        self._protocol = Protocol(Settings(uuid.uuid4().hex[:12], version >= 2))
        return TransactionCoordinator(self._requests, self._protocol, self._on_step)

    @property
    def _topic(self) -> str:
        return positions_topic(self._kind, self._name)

    @property
    def _progress(self) -> Progress:
        progress = self._protocol.context.progress
        assert progress is not None, "the start has read it"
        return progress

    def _check(self, positions: Mapping[str, str]) -> None:
        forgotten = not self._progress.ends
        binding = is_begun(positions)  # notes of files that were found bind nobody
        if forgotten and (self._trust_positions or not binding):
            return
        if forgotten:
            raise ProgressConflict(
                f"{self._kind} {self._name!r} has {len(positions)} positions in topic {self._topic}, but the cluster has no "
                "progress of it: nothing was committed for longer than offsets.retention.minutes, or the offsets were deleted",
                action="if the topic was not restored from an old copy the positions are right: go on with --trust-positions",
                name=self._name,
            )
        if digest_of(positions) != self._committed:
            raise ProgressConflict(
                f"the positions in topic {self._topic} are not those that {self._kind} {self._name!r} committed last",
                action="restore the topic, or begin anew under another name (which sends everything again)",
                name=self._name,
            )

    # ---------------------------------------------------------------------------------------------------------- commit

    def commit(self, rows: Rows, positions: Mapping[str, str | None]) -> int:
        """One transaction: the rows, and the positions that they lead to (None forgets one). The number of rows written.

        Raises Fenced, ProgressGone, AttemptsExhausted, BrokerUnreachable, OutcomeUnknown or InputError. Then nothing of it is
        visible, except after OutcomeUnknown, where the next ``start`` finds out. Where a broker refuses single rows, the error's
        ``fields["rows"]`` say which of ``fields["topic"]``, and why.
        """
        assert self._coordinator is not None, "start first"
        assert self._positions is not None, "start first, also after an error"
        before, self._positions = self._positions, None
        after = {key: text for key, text in {**before, **positions}.items() if text is not None}
        progress = self._progress
        batch = Batch(
            progress.next_batch,
            self._kind,
            start=progress.ends[-1] if progress.ends else "",
            end=digest_of(after),
        )
        written: dict[int, Counts] = {}

        def write(identity: Identity, attempt: int) -> Counts:
            if attempt > 1:
                self._catalog.forget()
            written[0] = self._write(identity, batch.id, rows, positions)
            return written[0]

        with self._advised():
            self._coordinator.commit(batch, {}, write)
        self._positions = after
        self._committed_at = time.monotonic()
        self._keep_at = self._committed_at + min(self._rest_s or ASK_AGAIN_S, ASK_AGAIN_S)
        return sum(count for (topic, _), count in written[0].items() if topic != self._topic)

    def keep(self) -> None:
        """To be called while there is nothing to commit: the cluster would forget what was committed.

        Commits nothing new, as soon as the longest rest is over (transaction/renewing.py). Raises as ``commit``.
        """
        now = time.monotonic()
        if now < self._keep_at:
            return
        self._rest_s = self._rest_s or self._longest_rest_s()
        due_at = self._committed_at + (self._rest_s or longest_rest_s())
        if now >= due_at:
            self.commit([], {})
        else:
            self._keep_at = min(due_at, now + ASK_AGAIN_S)

    def _longest_rest_s(self) -> float | None:
        """None where no broker says; a source that has nothing to commit does not end for that."""
        try:
            return longest_rest_s(retention_s(self._settings, ASK_PATIENCE_S))
        except KafkaError as error:
            log.info("how long the cluster keeps what is committed is not known yet: %s", error)
            return None

    def _write(self, identity: Identity, batch_id: int, rows: Rows, positions: Mapping[str, str | None]) -> Counts:
        producer = BatchProducer(self._client, Target(identity, self._requests.id, self._requests.version))
        topics = AttemptTopics(self._catalog.find)
        try:
            return self._written(producer, topics, chain(rows, [(self._topic, as_records(positions))]), batch_id)
        except InputError as error:
            if named := refused_rows(error, rows, topics, batch_id):
                error.fields["rows"] = named
            raise

    def _written(self, producer: BatchProducer, topics: AttemptTopics, rows: Rows, seed: int) -> Counts:
        timestamp_ms = int(time.time() * 1000)
        routers: dict[str, TopicRouter] = {}
        for topic, batch in rows:
            if topic not in routers:
                routers[topic] = TopicRouter(Encoding(topic, self._codec, timestamp_ms, seed=seed), topics.find)
            for name, chunk in routers[topic].add(batch):
                producer.submit(name, chunk)
        for router in routers.values():
            for name, chunk in router.flush():
                producer.submit(name, chunk)
        return producer.finish()
