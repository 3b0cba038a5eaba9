"""The requests of the commit algorithm, one method for each effect that talks to a coordinator or a partition leader.

Each sends, repeats what may be repeated, and answers with an event of ``messages.py``. Transaction version 1 and 2 (KIP-890)
differ here and nowhere else: version 2 adds partitions and offsets implicitly, and EndTxn returns the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import DescribeProducersRequest, DescribeTransactionsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from onceflow.errors import ConfigurationError, ProgressConflict
from onceflow.kafka import codes
from onceflow.kafka.client import GROUP, TRANSACTION, Again, KafkaClient
from onceflow.transaction.messages import (
    Audited,
    Coordinated,
    Counts,
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

ANCHOR_TOPIC = "onceflow-progress"
ANCHOR_PARTITION = 0
SEQUENCE_SPACE = 2**31

_STATES = {
    "Empty": Coordinated.EMPTY,
    "Ongoing": Coordinated.ONGOING,
    "PrepareCommit": Coordinated.COMPLETING,
    "PrepareAbort": Coordinated.COMPLETING,
    "PrepareEpochFence": Coordinated.COMPLETING,
    "CompleteCommit": Coordinated.COMPLETE,
    "CompleteAbort": Coordinated.COMPLETE,
    "Dead": Coordinated.ABSENT,
}


def transactional_id(name: str) -> str:
    """The transactional id, and the group, of the pipeline ``name``: of the name alone, so that a resize fences too."""
    return f"onceflow-{name}"


class _Refusal(Exception):
    """The broker refused the identity or the state of its transaction."""


class _Abortable(Exception):
    """The broker asks to abort."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of one pipeline. ``version`` is the cluster's transaction version (1 or 2)."""

    client: KafkaClient
    name: str
    version: int
    timeout_ms: int

    @property
    def id(self) -> str:
        return transactional_id(self.name)

    # ------------------------------------------------------------------------------------------ transaction coordinator

    def describe(self, settle: bool) -> Event:
        """DescribeTransactions (KIP-664); with ``settle`` until the transaction is no longer completing."""
        read = self._settled if settle else self._described
        return self._ask(TRANSACTION, DescribeTransactionsRequest(transactional_ids=[self.id]), read)

    def _settled(self, answer: Any) -> Event:
        described = self._described(answer)
        if isinstance(described, Described) and described.snapshot.state is Coordinated.COMPLETING:
            raise Again("the transaction's markers are not written yet")
        return described

    def _described(self, answer: Any) -> Event:
        state = answer.transaction_states[0]
        if state.error_code == codes.TRANSACTIONAL_ID_NOT_FOUND:
            return Described(Snapshot(Coordinated.ABSENT, None))
        self._check(state.error_code, "DescribeTransactions")
        identity = Identity(state.producer_id, state.producer_epoch)
        return Described(Snapshot(_STATES[state.transaction_state], identity))

    def initialise(self, expected: Identity | None) -> Event:
        """InitProducerId (KIP-98, KIP-360): aborts what is open, then answers with a fresh epoch."""
        asked = expected or Identity(-1, -1)
        request = InitProducerIdRequest(
            transactional_id=self.id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=asked.producer_id,
            producer_epoch=asked.epoch,
            max_version=5,
            min_version=3,
        )
        return self._ask(TRANSACTION, request, self._initialised)

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

    def end(self, identity: Identity, commit: bool) -> Event:
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
        return self._ask(TRANSACTION, request, self._ended)

    def _ended(self, answer: Any) -> Event:
        code = answer.error_code
        if code != codes.NONE and code not in codes.REFUSED | codes.UNAUTHORISED:
            raise Again(codes.name_of(code), moved=code in codes.COORDINATOR_MOVED)
        self._check(code, "EndTxn")
        if self.version >= 2:
            return Ended(Identity(answer.producer_id, answer.producer_epoch))
        return Ended(None)

    # ------------------------------------------------------------------------------------------------ group coordinator

    def read_progress(self) -> Event:
        """OffsetFetch with require_stable (KIP-447): waits until no transaction on the group is open."""
        progress, _ = self.read_offsets()
        return ProgressRead(progress)

    def read_offsets(self, *, stable: bool = True) -> tuple[Progress | None, dict[tuple[str, int], int]]:
        """The progress record and the committed source offsets; ``stable`` waits for an open transaction on them to end."""
        group = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=self.id, member_id=None, member_epoch=-1, topics=None
        )
        request = OffsetFetchRequest(groups=[group], require_stable=stable, max_version=9, min_version=8)
        offsets: dict[tuple[str, int], tuple[int, str]] = self._repeat(GROUP, request, self._offsets)
        anchor = offsets.pop((ANCHOR_TOPIC, ANCHOR_PARTITION), None)
        return self._decode(anchor), {at: offset for at, (offset, _) in offsets.items()}

    def _offsets(self, answer: Any) -> dict[tuple[str, int], tuple[int, str]]:
        group = answer.groups[0]
        self._check(group.error_code, "OffsetFetch")
        found = {}
        for topic in group.topics:
            for part in topic.partitions:
                self._check(part.error_code, f"OffsetFetch of {topic.name}-{part.partition_index}")
                if part.committed_offset >= 0:
                    found[topic.name, part.partition_index] = (part.committed_offset, part.metadata or "")
        return found

    def _decode(self, anchor: tuple[int, str] | None) -> Progress | None:
        if anchor is None:
            return None
        try:
            return Progress.decode(*anchor)
        except ProgressUnreadable as error:
            raise ProgressConflict(
                f"the progress of pipeline {self.name!r} (group {self.id}, topic {ANCHOR_TOPIC}) cannot be read: {error}",
                action="use the onceflow version that wrote it, or another name",
            ) from error

    def store(self, identity: Identity, progress: Progress, source: Mapping[tuple[str, int], int]) -> Event:
        """TxnOffsetCommit of the progress record and of source offsets, without a consumer group's membership."""
        if self.version < 2:
            added = self._ask(TRANSACTION, self._add_offsets(identity), self._accepted)
            if not isinstance(added, Stored):
                return added
        return self._ask(GROUP, self._offset_commit(identity, progress, source), self._stored)

    def _add_offsets(self, identity: Identity) -> Any:
        return AddOffsetsToTxnRequest(
            transactional_id=self.id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            group_id=self.id,
            max_version=3,
        )

    def _accepted(self, answer: Any) -> Event:
        self._check(answer.error_code, "AddOffsetsToTxn")
        return Stored()

    def _offset_commit(self, identity: Identity, progress: Progress, source: Mapping[tuple[str, int], int]) -> Any:
        offset, metadata = progress.encode()
        entries = [(ANCHOR_TOPIC, ANCHOR_PARTITION, offset, metadata)]
        entries += [(topic, partition, end, "") for (topic, partition), end in sorted(source.items())]
        topics: dict[str, list[Any]] = {}
        topic_type = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        part_type = topic_type.TxnOffsetCommitRequestPartition
        for topic, partition, end, note in entries:
            part = part_type(
                partition_index=partition, committed_offset=end, committed_leader_epoch=-1, committed_metadata=note
            )
            topics.setdefault(topic, []).append(part)
        return TxnOffsetCommitRequest(
            transactional_id=self.id,
            group_id=self.id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[topic_type(name=topic, partitions=parts) for topic, parts in topics.items()],
            max_version=5 if self.version >= 2 else 4,
            min_version=5 if self.version >= 2 else 3,
        )

    def _stored(self, answer: Any) -> Event:
        for topic in answer.topics:
            for part in topic.partitions:
                self._check(part.error_code, f"the offset of {topic.name}-{part.partition_index}")
        return Stored()

    # ---------------------------------------------------------------------------------------------- without transaction

    def idempotent_identity(self) -> Identity:
        """InitProducerId without a transactional id: an identity for an idempotent producer."""
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=-1,
            producer_id=-1,
            producer_epoch=-1,
            max_version=5,
            min_version=3,
        )

        def once() -> Identity:
            answer = self.client.ask(None, request)
            self.client.check(answer.error_code, "InitProducerId")
            return Identity(answer.producer_id, answer.producer_epoch)

        identity: Identity = self.client.repeat(once, "InitProducerId")
        return identity

    def commit_offsets(self, source: Mapping[tuple[str, int], int]) -> None:
        """OffsetCommit of source offsets, outside of any transaction."""
        topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
        part_type = topic_type.OffsetCommitRequestPartition
        topics: dict[str, list[Any]] = {}
        for (topic, partition), end in sorted(source.items()):
            part = part_type(
                partition_index=partition, committed_offset=end, committed_leader_epoch=-1, committed_metadata=""
            )
            topics.setdefault(topic, []).append(part)
        request = OffsetCommitRequest(
            group_id=self.id,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[topic_type(name=name, partitions=parts) for name, parts in topics.items()],
            max_version=8,
            min_version=7,
        )
        if topics:
            self._ask(GROUP, request, self._stored)

    # ------------------------------------------------------------------------------------------------ partition leaders

    def audit(self, identity: Identity, counts: Counts) -> Event:
        """DescribeProducers (KIP-664): LastSequence + 1 of our identity is the number of records the leader holds."""
        held: dict[tuple[str, int], int] = {}
        self.client.repeat(lambda: self._audit_rest(identity, set(counts) - set(held), held), "DescribeProducers")
        return Audited(held)

    def _audit_rest(self, identity: Identity, rest: set[tuple[str, int]], held: dict[tuple[str, int], int]) -> None:
        topics = self.client.topics({topic for topic, _ in rest})
        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic, partition in sorted(rest):
            leader = topics[topic].leaders[partition]
            by_leader.setdefault(leader, {}).setdefault(topic, []).append(partition)
        try:
            for leader, wanted in by_leader.items():
                self._audit_leader(identity, leader, wanted, held)
        except Again as again:
            if again.moved:
                self.client.topics(topics, refresh=True)
            raise

    def _audit_leader(
        self, identity: Identity, leader: int, wanted: dict[str, list[int]], held: dict[tuple[str, int], int]
    ) -> None:
        topic_type = DescribeProducersRequest.TopicRequest
        topics = [topic_type(name=name, partition_indexes=parts) for name, parts in wanted.items()]
        answer = self.client.ask(leader, DescribeProducersRequest(topics=topics))
        for topic in answer.topics:
            for part in topic.partitions:
                self.client.check(part.error_code, f"DescribeProducers of {topic.name}-{part.partition_index}", "READ")
                held[topic.name, part.partition_index] = _held(part.active_producers, identity)

    # ---------------------------------------------------------------------------------------------------------- asking

    def _ask(self, kind: int, request: Any, read: Callable[[Any], Event]) -> Event:
        """Asks until there is an answer that can be read; a refusal becomes an event."""
        try:
            event: Event = self._repeat(kind, request, read)
            return event
        except _Refusal as refusal:
            return Refused(str(refusal))
        except _Abortable as abortable:
            return WriteFailed(terminal=False, reason=str(abortable))

    def _repeat(self, kind: int, request: Any, read: Callable[[Any], Any]) -> Any:
        return self.client.repeat(lambda: self._ask_once(kind, request, read), type(request).__name__)

    def _ask_once(self, kind: int, request: Any, read: Any) -> Any:
        answer = self.client.ask_coordinator(kind, self.id, request)
        try:
            return read(answer)
        except Again as again:
            if again.moved:
                self.client.forget_coordinator(kind, self.id)
            raise

    def _check(self, code: int, what: str) -> None:
        what = f"{self.id}: {what}"
        if code in codes.REFUSED:
            raise _Refusal(f"{what}: {codes.name_of(code)}")
        if code in codes.ABORTABLE:
            raise _Abortable(f"{what}: {codes.name_of(code)}")
        self.client.check(code, what, "READ")


def _held(producers: Any, identity: Identity) -> int:
    for producer in producers:
        if (producer.producer_id, producer.producer_epoch) == (identity.producer_id, identity.epoch):
            return (int(producer.last_sequence) + 1) % SEQUENCE_SPACE
    return 0
