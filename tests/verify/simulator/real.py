"""A real broker that takes the simulator's requests: sent as production sends them, answered with error codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from kafka.protocol.consumer import ListOffsetsRequest

from onceflow.kafka import codes
from onceflow.kafka.client import GROUP as GROUP_KIND
from onceflow.kafka.client import KAFKA_4_3, TRANSACTION, Again, KafkaClient
from onceflow.transaction.chunk import Chunk, seal
from onceflow.transaction.compression import Codec
from onceflow.transaction.enrolling import add_partitions
from onceflow.transaction.lane import Lane, Sealed
from onceflow.transaction.messages import Described, Identity, ProgressRead
from onceflow.transaction.producing import Target, produce_request
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import (
    ANCHOR_PARTITION,
    ANCHOR_TOPIC,
    NO_IDENTITY,
    Question,
    Questions,
    describe_producers,
)
from onceflow.transaction.questions import Committed as Everything
from onceflow.transaction.record_batch import BodyEncoder
from onceflow.transaction.requests import Requests
from onceflow.transaction.talk import Pace
from onceflow.verify.simulator.requests import (
    GROUP,
    SOURCES,
    UNSTABLE_OFFSET_COMMIT,
    AddPartitions,
    Answer,
    CommitOffsets,
    Committed,
    DescribeProducer,
    DescribeTransaction,
    EndTransaction,
    FetchOffsets,
    InitProducerId,
    ListOffset,
    Produce,
    Request,
)

TIMEOUT_MS = 600_000
ACK_TIMEOUT_MS = (
    1_000  # how long a leader waits for its followers; production's own is longer than a request may take here
)
NO_PROGRESS = Progress.empty("")
_LATEST, _READ_COMMITTED = -1, 1
_SAYS_LATER = 4  # the last version of ListOffsets in which a leader that has just begun says LEADER_NOT_AVAILABLE


class RealBroker:
    """One transactional id on a real cluster, asked production's questions. ``source``: the topic whose offset is committed."""

    def __init__(self, client: KafkaClient, name: str, version: int, topic: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self.name = name
        self.version = version
        self.requests = Requests(client, name, version, timeout_ms)
        self.questions = Questions(name, version, timeout_ms)
        self.told: frozenset[int] = frozenset()  # codes that are the answer, although they say: later
        self.settles = True  # False: markers wait, and what is asked meanwhile does not wait for them
        self._client = client
        self._topic = topic

    @property
    def follows_next(self) -> bool:
        """Whether it is of Kafka 4.3 or later (``Transactions``)."""
        return self._client.newest_metadata_version() >= KAFKA_4_3

    def reconnect(self, client: KafkaClient) -> None:
        """Goes on over another client."""
        self._client = client
        self.requests = Requests(client, self.name, self.version, self.requests.timeout_ms)

    def ask(self, request: Request) -> Answer:
        """The first answer that does not only say: later."""
        answer: Answer = self._client.repeat(lambda: self._found(request), type(request).__name__)
        if isinstance(request, EndTransaction) and self.settles:
            # EndTxn is answered before the markers are written, and until then a leader takes writes of the ended transaction.
            self.requests.describe(settle=True)
        return answer

    def _found(self, request: Request) -> Answer:
        """Asks whoever coordinates and leads now."""
        try:
            return self._once(request)
        except Again:
            for kind in (GROUP_KIND, TRANSACTION):
                self._client.forget_coordinator(kind, self.requests.id)
            self._client.topics([self._topic], refresh=True)
            raise

    def _once(self, request: Request) -> Answer:
        match request:
            case InitProducerId(expected):
                return self._identified(self.questions.initialise(expected))
            case EndTransaction(identity, commit):
                return self._identified(self.questions.end_txn(identity, commit=commit))
            case AddPartitions(identity, partition):
                return self._add(identity, partition)
            case Produce():
                return self._produce(request)
            case CommitOffsets():
                return self._commit(request)
        return self._described(request)

    def _described(self, request: Request) -> Answer:
        match request:
            case DescribeTransaction():
                described = self.requests.describe(settle=self.settles)
                assert isinstance(described, Described)
                return Answer(snapshot=described.snapshot)
            case FetchOffsets(by_name):
                return self._fetched(by_name=by_name)
            case DescribeProducer(partition):
                return self._producers(partition)
            case ListOffset(partition):
                return self._last_stable_offset(partition)
        raise AssertionError(request)

    def _commit(self, request: CommitOffsets) -> Answer:
        """A partition that is to be unknown is one that the topic does not have."""
        wanted = {
            (self._topic, number if refused is None else number + SOURCES): offset
            for number, (offset, refused) in enumerate(zip(request.sources, request.refused, strict=True))
            if offset is not None
        }
        answer = self._put(self.questions.store(request.identity, request.progress, wanted)[-1])
        told = {(t.name, p.partition_index): Answer(p.error_code) for t in answer.topics for p in t.partitions}
        parts = tuple(told[at] for at in ((ANCHOR_TOPIC, ANCHOR_PARTITION), *wanted))
        code = max(part.code for part in parts)
        if code not in expected(request):
            self._checked(code)
        return Answer(code, parts=parts if len(set(parts)) > 1 else ())

    def _fetched(self, *, by_name: bool) -> Answer:
        """The first answer, also that a transaction holds them."""
        question: Question[Any] = self.questions.progress() if by_name else self.questions.committed(stable=True)
        answer = self._put(question)
        found = {part.error_code for topic in answer.groups[0].topics for part in topic.partitions}
        if UNSTABLE_OFFSET_COMMIT.code in found:
            return UNSTABLE_OFFSET_COMMIT
        told = question.read(answer)
        assert isinstance(told, ProgressRead | Everything), told
        offsets = told.offsets if isinstance(told, Everything) else {}
        return Answer(
            committed=Committed(told.progress, (offsets.get((self._topic, 0)), offsets.get((self._topic, 1))))
        )

    def _put(self, question: Question[Any]) -> Any:
        return self._client.ask_coordinator(question.kind, self.requests.id, question.request)

    def _identified(self, question: Question[Any]) -> Answer:
        """An answer that names an identity, where its version has one."""
        answer = self._put(question)
        return self._checked(answer.error_code, lambda: Identity(answer.producer_id, answer.producer_epoch))

    def _producers(self, partition: int) -> Answer:
        answer = self._client.ask(self._leader(partition), describe_producers({self._topic: [partition]}))
        part = answer.topics[0].partitions[0]
        active = ((Identity(p.producer_id, p.producer_epoch), int(p.last_sequence)) for p in part.active_producers)
        return replace(self._checked(part.error_code), producers=tuple(active))

    def _last_stable_offset(self, partition: int) -> Answer:
        topic = ListOffsetsRequest.ListOffsetsTopic
        wanted = [topic.ListOffsetsPartition(partition_index=partition, timestamp=_LATEST)]
        topics = [topic(name=self._topic, partitions=wanted)]
        message = ListOffsetsRequest(isolation_level=_READ_COMMITTED, topics=topics, max_version=_SAYS_LATER)
        part = self._client.ask(self._leader(partition), message).topics[0].partitions[0]
        return replace(self._checked(part.error_code), offset=int(part.offset))

    def _leader(self, partition: int) -> int:
        return self._client.topics([self._topic])[self._topic].leaders[partition]

    def _add(self, identity: Identity, partition: int) -> Answer:
        if partition == GROUP:
            return self._checked(self._put(self.questions.store(identity, NO_PROGRESS, {})[0]).error_code)
        message = add_partitions(self.requests.id, identity, [(self._topic, partition)])
        answer = self._client.ask_coordinator(TRANSACTION, self.requests.id, message)
        return self._checked(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def _produce(self, request: Produce) -> Answer:
        identity = request.identity
        texts = [f"{self.name}:{value}" for value in request.values]
        data = seal(chunk_of(texts, request.partition), identity.producer_id, identity.epoch, request.sequence)
        leader = self._leader(request.partition)
        lane = Lane(self._topic, request.partition, leader, Pace.real(self._client.patience_s))
        target = Target(identity, self.requests.id, self.version)
        message = produce_request(target, [(lane, Sealed(request.sequence, len(texts), data))])
        message.timeout_ms = ACK_TIMEOUT_MS
        return self._checked(self._client.ask(leader, message).responses[0].partition_responses[0].error_code)

    def _checked(self, code: int, identity: Callable[[], Identity] = lambda: NO_IDENTITY) -> Answer:
        """The answer. Raises Again for what only says: later."""
        if code in codes.RETRIABLE - self.told:
            raise Again(codes.name_of(code))
        found = identity() if code == codes.NONE else NO_IDENTITY
        return Answer(code, identity=None if found.producer_id < 0 else found)


def expected(request: Request) -> frozenset[int]:
    """What of a request is refused by intention: such an answer does not mean that it is to be asked again."""
    refused = request.refused if isinstance(request, CommitOffsets) else ()
    return frozenset(each.code for each in refused if each is not None)


def chunk_of(texts: list[str], partition: int) -> Chunk:
    encoder = BodyEncoder(1_000_000, Codec.NONE, 1_600_000_000_000)
    batch = pa.record_batch({"key": pa.nulls(len(texts), pa.string()), "value": pa.array(texts)})
    list(encoder.add(batch, np.full(len(texts), partition, np.int32)))
    return next(iter(encoder.flush()))
