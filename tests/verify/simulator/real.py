"""A real broker that takes the simulator's requests: sent as production sends them, answered with error codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest, ProduceRequest

from onceflow.kafka import codes
from onceflow.kafka.client import GROUP as GROUP_KEY
from onceflow.kafka.client import TRANSACTION, Again, KafkaClient
from onceflow.transaction.chunk import Chunk, seal
from onceflow.transaction.compression import Codec
from onceflow.transaction.messages import Audited, Described, Identity
from onceflow.transaction.record_batch import BodyEncoder
from onceflow.transaction.requests import Requests
from onceflow.verify.simulator.requests import (
    GROUP,
    AddPartitions,
    Answer,
    CommitOffsets,
    Committed,
    DescribeProducer,
    DescribeTransaction,
    EndTransaction,
    FetchOffsets,
    InitProducerId,
    Produce,
    Request,
)

TIMEOUT_MS = 600_000


class RealBroker:
    """One transactional id on a real cluster. ``source``: the topic whose offset is committed."""

    def __init__(self, client: KafkaClient, name: str, version: int, topic: str) -> None:
        self.requests = Requests(client, name, version, TIMEOUT_MS)
        self._client = client
        self._topic = topic
        self._name = name

    def ask(self, request: Request) -> Answer:
        """The first answer that does not only say: later."""
        answer: Answer = self._client.repeat(lambda: self._once(request), type(request).__name__)
        if isinstance(request, EndTransaction):
            # EndTxn is answered before the markers are written, and until then a leader takes writes of the ended transaction.
            self.requests.describe(settle=True)
        return answer

    def _once(self, request: Request) -> Answer:
        match request:
            case InitProducerId(expected):
                return self._initialise(expected or Identity(-1, -1))
            case AddPartitions(identity, partition):
                return self._add(identity, partition)
            case Produce():
                return self._produce(request)
            case CommitOffsets(identity, progress, source):
                offsets = {} if source is None else {(self._topic, 0): source}
                message = self.requests._offset_commit(identity, progress, offsets)
                answer = self._coordinator(GROUP_KEY, message)
                return checked(max(p.error_code for t in answer.topics for p in t.partitions))
            case EndTransaction(identity, commit):
                return self._end(identity, commit)
        return self._described(request)

    def _described(self, request: Request) -> Answer:
        match request:
            case DescribeTransaction():
                described = self.requests.describe(settle=True)
                assert isinstance(described, Described)
                return Answer(snapshot=described.snapshot)
            case FetchOffsets():
                progress, offsets = self.requests.read_offsets()
                return Answer(committed=Committed(progress, offsets.get((self._topic, 0), 0)))
            case DescribeProducer(identity, partition):
                audited = self.requests.audit(identity, {(self._topic, partition): 0})
                assert isinstance(audited, Audited)
                return Answer(held=audited.held[self._topic, partition])
        raise AssertionError(request)

    def _coordinator(self, kind: int, message: Any) -> Any:
        return self._client.ask_coordinator(kind, self.requests.id, message)

    def _initialise(self, asked: Identity) -> Answer:
        message = InitProducerIdRequest(
            transactional_id=self.requests.id,
            transaction_timeout_ms=TIMEOUT_MS,
            producer_id=asked.producer_id,
            producer_epoch=asked.epoch,
            max_version=5,
            min_version=3,
        )
        answer = self._coordinator(TRANSACTION, message)
        return checked(answer.error_code, lambda: Identity(answer.producer_id, answer.producer_epoch))

    def _end(self, identity: Identity, commit: bool) -> Answer:
        version = 5 if self.requests.version >= 2 else 4
        message = EndTxnRequest(
            transactional_id=self.requests.id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
            max_version=version,
            min_version=version,
        )
        answer = self._coordinator(TRANSACTION, message)
        if version == 4:
            return checked(answer.error_code)
        return checked(answer.error_code, lambda: Identity(answer.producer_id, answer.producer_epoch))

    def _add(self, identity: Identity, partition: int) -> Answer:
        if partition == GROUP:
            return checked(self._coordinator(TRANSACTION, self.requests._add_offsets(identity)).error_code)
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=self._topic, partitions=[partition])
        message = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.requests.id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[topic],
            max_version=3,
        )
        answer = self._coordinator(TRANSACTION, message)
        return checked(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def _produce(self, request: Produce) -> Answer:
        identity = request.identity
        texts = [f"{self._name}:{value}" for value in request.values]
        data = seal(chunk_of(texts, request.partition), identity.producer_id, identity.epoch, request.sequence)
        topic_type = ProduceRequest.TopicProduceData
        part = topic_type.PartitionProduceData(index=request.partition, records=data)
        message = ProduceRequest(
            transactional_id=self.requests.id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[topic_type(name=self._topic, partition_data=[part])],
            max_version=12 if self.requests.version >= 2 else 11,
            min_version=12 if self.requests.version >= 2 else 11,
        )
        leader = self._client.topics([self._topic])[self._topic].leaders[request.partition]
        return checked(self._client.ask(leader, message).responses[0].partition_responses[0].error_code)


def checked(code: int, identity: Callable[[], Identity] = lambda: Identity(-1, -1)) -> Answer:
    """The answer. Raises Again for what only says: later."""
    if code in codes.RETRIABLE:
        raise Again(codes.name_of(code))
    found = identity() if code == codes.NONE else Identity(-1, -1)
    return Answer(code, identity=None if found.producer_id < 0 else found)


def chunk_of(texts: list[str], partition: int) -> Chunk:
    encoder = BodyEncoder(1_000_000, Codec.NONE, 1_600_000_000_000)
    batch = pa.record_batch({"key": pa.nulls(len(texts), pa.string()), "value": pa.array(texts)})
    list(encoder.add(batch, np.full(len(texts), partition, np.int32)))
    return next(iter(encoder.flush()))
