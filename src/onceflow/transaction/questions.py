"""What the commit algorithm asks a cluster, and what an answer means: messages out, events in, no I/O.

``requests.py`` puts these questions to a real cluster, ``verify/simulator`` to its model. Transaction version 1 and 2 (KIP-890)
differ here (and in ``protocol.py`` by the epochs that are left): version 2 adds partitions and offsets implicitly, and EndTxn
raises the epoch and returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from onceflow.errors import ConfigurationError, ProgressConflict
from onceflow.kafka import codes
from onceflow.kafka.client import GROUP, TRANSACTION, Again, KafkaClient
from onceflow.kafka.names import PROGRESS_TOPIC
from onceflow.kafka_python import (
    AddOffsetsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from onceflow.transaction.messages import (
    Coordinated,
    Described,
    Ended,
    Event,
    Identity,
    Initialised,
    ProgressRead,
    Refused,
    Snapshot,
    Stored,
    WriteFailed,
)
from onceflow.transaction.progress import Progress, ProgressUnreadable
from onceflow.transaction.source_mark import is_of_newest, note_of, why_not_resumed

ANCHOR_TOPIC = PROGRESS_TOPIC
ANCHOR_PARTITION = 0
SEQUENCE_SPACE = 2**31
OFFSETS_AT_ONCE = 500
"""The offsets that one request commits. The coordinator writes those of a request as one batch, which has to fit
``max.message.bytes`` of __consumer_offsets (1 MiB by default, and not compressed); the longest names make 600 bytes of one::

    a plan reads 8000 partitions; their offsets in one request are refused (UNKNOWN_SERVER_ERROR), and at each start again
"""
NO_IDENTITY = Identity(-1, -1)

_STATES = {
    "Empty": Coordinated.EMPTY,
    "Ongoing": Coordinated.ONGOING,
    "PrepareCommit": Coordinated.COMPLETING,
    "PrepareAbort": Coordinated.COMPLETING,
    "PrepareEpochFence": Coordinated.COMPLETING,
    "CompleteCommit": Coordinated.COMMITTED,
    "CompleteAbort": Coordinated.ABORTED,
    "Dead": Coordinated.ABSENT,
}

At = tuple[str, int]
"""A topic and a partition."""

Entry = tuple[str, int, int, str]
"""A topic, a partition, the offset to commit there, and what stands beside it."""

T = TypeVar("T")


class _Refusal(Exception):
    """The broker refused the identity or the state of its transaction."""


class _Abortable(Exception):
    """The broker asks to abort."""


class UnknownTopic(Again):
    """The broker knows no such topic: not yet, or no more."""

    def __init__(self, topic: str) -> None:
        super().__init__(codes.name_of(codes.UNKNOWN_TOPIC_OR_PARTITION), moved=True)
        self.topic = topic


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A message for the coordinator of ``kind``, and how to read what it answers."""

    kind: int
    request: Any
    _read: Callable[[Any], T]

    def read(self, answer: Any) -> T | Refused | WriteFailed:
        """What the answer means; a refusal and a wish to abort are events too.

        Raises Again where the same question is to be asked once more (``moved``: of another coordinator), NotAuthorized or
        RequestFailed where no repetition helps.
        """
        try:
            return self._read(answer)
        except _Refusal as refusal:
            return Refused(str(refusal))
        except _Abortable as abortable:
            return WriteFailed(terminal=False, reason=str(abortable))


@dataclass(frozen=True, slots=True)
class Committed:
    """What OffsetFetch found: the progress record (None: nothing was committed under the name) and the source offsets next to it.

    ``newest``: those that the newest batch committed. ``plain``: those that were committed without progress: by at least once,
    a tool of Kafka's, or an older onceflow; beside the others stand ``notes``.
    """

    progress: Progress | None
    offsets: Mapping[At, int]
    newest: frozenset[At] = frozenset()
    plain: frozenset[At] = frozenset()
    notes: Mapping[At, str] = field(default_factory=dict)

    @property
    def ends(self) -> Mapping[At, int]:
        """Those of the newest batch; all that there are where an older onceflow, or at least once, has committed it."""
        return {at: offset for at, offset in self.offsets.items() if at in self.newest or not self.newest}

    @property
    def why_not_resumed(self) -> str:
        """Why nobody can go on from these offsets; empty if one can."""
        return why_not_resumed(self.progress, self.offsets, self.newest, self.plain, self.notes)


def transactional_id(name: str) -> str:
    """The transactional id, and the group, of the pipeline ``name``: of the name alone, so that a resize fences too."""
    return f"onceflow-{name}"


@dataclass(frozen=True, slots=True)
class Questions:
    """The questions of one pipeline. ``version`` is the cluster's transaction version (1 or 2)."""

    name: str
    version: int
    timeout_ms: int

    @property
    def id(self) -> str:
        return transactional_id(self.name)

    # ------------------------------------------------------------------------------------------ transaction coordinator

    def describe(self, *, settle: bool) -> Question[Event]:
        """DescribeTransactions (KIP-664); with ``settle`` until the transaction is no longer completing."""
        read = self._settled if settle else self._described
        return Question(TRANSACTION, DescribeTransactionsRequest(transactional_ids=[self.id]), read)

    def _settled(self, answer: Any) -> Event:
        described = self._described(answer)
        if described.snapshot.state is Coordinated.COMPLETING:
            raise Again("the transaction's markers are not written yet")
        return described

    def _described(self, answer: Any) -> Described:
        state = answer.transaction_states[0]
        if state.error_code == codes.TRANSACTIONAL_ID_NOT_FOUND:
            return Described(Snapshot(Coordinated.ABSENT, None))
        self._check(state.error_code, "DescribeTransactions")
        identity = Identity(state.producer_id, state.producer_epoch)
        return Described(Snapshot(_STATES[state.transaction_state], identity))

    def initialise(self, expected: Identity | None) -> Question[Event]:
        """InitProducerId (KIP-98, KIP-360): aborts what is open, then answers with a fresh epoch."""
        return Question(TRANSACTION, _init_producer_id(expected, self.id, self.timeout_ms), self._initialised)

    def _initialised(self, answer: Any) -> Event:
        if answer.error_code == codes.INVALID_TRANSACTION_TIMEOUT:
            raise ConfigurationError.of(
                f"pipeline {self.name!r}",
                [
                    f"transaction_timeout_ms = {self.timeout_ms} is above the broker's transaction.max.timeout.ms: "
                    "lower it, or raise the broker's"
                ],
            )
        self._check(answer.error_code, "InitProducerId")
        return Initialised(Identity(answer.producer_id, answer.producer_epoch))

    def end(self, identity: Identity, *, commit: bool) -> Question[Event]:
        """The end of the transaction, under the next epoch where it is aborted (``protocol.py`` says why)."""
        if commit or self.version >= 2:
            return self.end_txn(identity, commit=commit)
        return Question(TRANSACTION, _init_producer_id(identity, self.id, self.timeout_ms), self._abort_begun)

    def _abort_begun(self, answer: Any) -> Event:
        """Of InitProducerId. What is open is aborted, and that is answered as anything is while markers are written.

        What says neither yes nor no is asked again, as of EndTxn.
        """
        code = answer.error_code
        if code == codes.CONCURRENT_TRANSACTIONS:
            return Ended(None)
        if code != codes.INVALID_TRANSACTION_TIMEOUT:
            _ask_again_unless_decided(code)
        return self._initialised(answer)

    def end_txn(self, identity: Identity, *, commit: bool) -> Question[Event]:
        """EndTxn, the same request until it is answered.

        An answer that says neither yes nor no (a lost connection, UNKNOWN_SERVER_ERROR) is asked again: the same epoch and
        direction is answered with success once it is decided. The version stays with the epoch: a commit made with version 5
        and repeated with version 4 would be refused although it is durable.
        """
        request = EndTxnRequest(
            transactional_id=self.id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
            max_version=5 if self.version >= 2 else 4,
            min_version=5 if self.version >= 2 else 0,
        )
        return Question(TRANSACTION, request, self._ended)

    def _ended(self, answer: Any) -> Event:
        code = answer.error_code
        _ask_again_unless_decided(code)
        self._check(code, "EndTxn")
        if self.version >= 2:
            return Ended(Identity(answer.producer_id, answer.producer_epoch))
        return Ended(None)

    # ------------------------------------------------------------------------------------------------ group coordinator

    def progress(self, *, stable: bool = True) -> Question[Event]:
        """OffsetFetch of the record; ``stable``: with require_stable (KIP-447), which waits until no transaction on it is open.

        By its name, for asked for everything the broker goes over what is committed already::

            a name is new, or its offsets have expired; its first claim is committed, the marker is not written yet
            the record is neither there nor unstable: the driver reads nothing, and believes that another one took over
        """
        kind = OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics
        record = [kind(name=ANCHOR_TOPIC, partition_indexes=[ANCHOR_PARTITION])]
        return Question(
            GROUP,
            self._offset_fetch(stable=stable, topics=record),
            lambda answer: ProgressRead(self._committed(answer).progress),
        )

    def committed(self, *, stable: bool) -> Question[Committed]:
        """The progress record and the committed source offsets; ``stable`` waits for an open transaction on them to end.

        Not for the first claim of a name (``progress``): until its marker is written there is no record.
        """
        return Question(GROUP, self._offset_fetch(stable=stable), self._committed)

    def _offset_fetch(self, *, stable: bool, topics: list[Any] | None = None) -> Any:
        """Of all topics, if none are named."""
        group = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=self.id, member_id=None, member_epoch=-1, topics=topics
        )
        return OffsetFetchRequest(groups=[group], require_stable=stable, max_version=9, min_version=8)

    def _committed(self, answer: Any) -> Committed:
        group = answer.groups[0]
        self._check(group.error_code, "OffsetFetch")
        found: dict[At, int] = {}
        notes: dict[At, str] = {}
        progress = None
        for topic in group.topics:
            for part in topic.partitions:
                self._check(part.error_code, f"OffsetFetch of {topic.name}-{part.partition_index}")
                if part.committed_offset < 0:
                    continue
                if (topic.name, part.partition_index) == (ANCHOR_TOPIC, ANCHOR_PARTITION):
                    progress = self._decoded(part.committed_offset, part.metadata or "")
                else:
                    found[topic.name, part.partition_index] = part.committed_offset
                    if part.metadata:
                        notes[topic.name, part.partition_index] = part.metadata
        newest = frozenset(at for at, note in notes.items() if progress and is_of_newest(note, progress))
        return Committed(progress, found, newest, frozenset(found.keys() - notes.keys()), notes)

    def _decoded(self, offset: int, metadata: str) -> Progress:
        try:
            return Progress.decode(offset, metadata)
        except ProgressUnreadable as error:
            raise ProgressConflict(
                f"the progress of pipeline {self.name!r} (group {self.id}, topic {ANCHOR_TOPIC}) cannot be read: {error}",
                action="use the onceflow version that wrote it, or another name",
            ) from error

    def store(self, identity: Identity, progress: Progress, source: Mapping[At, int]) -> tuple[Question[Event], ...]:
        """The progress record and source offsets join the transaction, without a consumer group's membership.

        One question after the other, each once the one before is answered with Stored. None of them is visible before the end.
        """
        entries = [(ANCHOR_TOPIC, ANCHOR_PARTITION, *progress.encode()), *_entries(source, note_of(progress))]
        requests = (self._offset_commit(identity, some) for some in _parts(entries))
        commits: tuple[Question[Event], ...] = tuple(Question(GROUP, each, self._stored) for each in requests)
        if self.version >= 2:
            return commits
        return (Question(TRANSACTION, self._add_offsets(identity), self._added), *commits)

    def _add_offsets(self, identity: Identity) -> Any:
        return AddOffsetsToTxnRequest(
            transactional_id=self.id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            group_id=self.id,
            max_version=3,
        )

    def _added(self, answer: Any) -> Event:
        self._check(answer.error_code, "AddOffsetsToTxn")
        return Stored()

    def _offset_commit(self, identity: Identity, entries: Sequence[Entry]) -> Any:
        kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        return TxnOffsetCommitRequest(
            transactional_id=self.id,
            group_id=self.id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=_by_topic(kind, kind.TxnOffsetCommitRequestPartition, entries),
            max_version=5 if self.version >= 2 else 4,
            min_version=5 if self.version >= 2 else 3,
        )

    def _stored(self, answer: Any) -> Event:
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code == codes.UNKNOWN_TOPIC_OR_PARTITION:
                    raise UnknownTopic(topic.name)
                self._check(part.error_code, f"the offset of {topic.name}-{part.partition_index}")
        return Stored()

    def plain_offsets(self, source: Mapping[At, int]) -> tuple[Question[Event], ...]:
        """OffsetCommit of source offsets, outside of any transaction."""
        return tuple(Question(GROUP, self._plain_commit(some), self._stored) for some in _parts(_entries(source)))

    def _plain_commit(self, entries: Sequence[Entry]) -> Any:
        kind = OffsetCommitRequest.OffsetCommitRequestTopic
        return OffsetCommitRequest(
            group_id=self.id,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=_by_topic(kind, kind.OffsetCommitRequestPartition, entries),
            max_version=8,
            min_version=7,
        )

    def _check(self, code: int, what: str) -> None:
        what = f"{self.id}: {what}"
        if code in codes.REFUSED:
            raise _Refusal(f"{what}: {codes.name_of(code)}")
        if code in codes.ABORTABLE:
            raise _Abortable(f"{what}: {codes.name_of(code)}")
        KafkaClient.check(code, what, "READ")


# ---------------------------------------------------------------------------------------------------- partition leaders


def describe_producers(wanted: Mapping[str, Iterable[int]]) -> Any:
    """DescribeProducers (KIP-664) of one leader's partitions, topic to partitions."""
    kind = DescribeProducersRequest.TopicRequest
    topics = [kind(name=name, partition_indexes=list(parts)) for name, parts in wanted.items()]
    return DescribeProducersRequest(topics=topics)


def read_held(answer: Any, identity: Identity, held: dict[At, int]) -> None:
    """Adds what a leader holds of an identity: its LastSequence + 1. Raises as ``Question.read``, and keeps what it has read."""
    for topic in answer.topics:
        for part in topic.partitions:
            KafkaClient.check(part.error_code, f"DescribeProducers of {topic.name}-{part.partition_index}", "READ")
            held[topic.name, part.partition_index] = _held(part.active_producers, identity)


def _held(producers: Any, identity: Identity) -> int:
    for producer in producers:
        if (producer.producer_id, producer.producer_epoch) == (identity.producer_id, identity.epoch):
            return (int(producer.last_sequence) + 1) % SEQUENCE_SPACE
    return 0


# ----------------------------------------------------------------------------------------------------------- idempotent


def idempotent_init() -> Any:
    """InitProducerId without a transactional id: an identity for an idempotent producer."""
    return _init_producer_id(None, None, -1)


def _ask_again_unless_decided(code: int) -> None:
    """Of the end of a transaction: it may have been ended whatever else is answered."""
    if code != codes.NONE and code not in codes.REFUSED | codes.UNAUTHORISED:
        raise Again(codes.name_of(code), moved=code in codes.COORDINATOR_MOVED)


def _init_producer_id(expected: Identity | None, transactional_id: str | None, timeout_ms: int) -> Any:
    asked = expected or NO_IDENTITY
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=asked.producer_id,
        producer_epoch=asked.epoch,
        max_version=5,
        min_version=3,
    )


def _entries(source: Mapping[At, int], note: str = "") -> list[Entry]:
    return [(topic, partition, end, note) for (topic, partition), end in sorted(source.items())]


def _parts(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """What is committed by one request each."""
    return (entries[start : start + OFFSETS_AT_ONCE] for start in range(0, len(entries), OFFSETS_AT_ONCE))


def _by_topic(topic_type: Any, part_type: Any, entries: Iterable[Entry]) -> list[Any]:
    topics: dict[str, list[Any]] = {}
    for topic, partition, end, note in entries:
        part = part_type(
            partition_index=partition, committed_offset=end, committed_leader_epoch=-1, committed_metadata=note
        )
        topics.setdefault(topic, []).append(part)
    return [topic_type(name=name, partitions=parts) for name, parts in topics.items()]
