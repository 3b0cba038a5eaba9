"""Kafka's messages and the words of the model: what production's questions ask the model, and its answers as Kafka gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onceflow.kafka import codes
from onceflow.kafka_python import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from onceflow.transaction.messages import Coordinated, Identity
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import ANCHOR_PARTITION, ANCHOR_TOPIC, NO_IDENTITY, At
from onceflow.verify.simulator.requests import (
    GROUP,
    SOURCES,
    AddPartitions,
    Answer,
    CommitOffsets,
    Committed,
    DescribeProducer,
    DescribeTransaction,
    EndTransaction,
    FetchOffsets,
    InitProducerId,
    Misdirected,
    Produce,
    Records,
    Request,
    Sources,
    Together,
    sources_at,
)

SOURCE_TOPIC = "in"
TOPIC = "out"
_SHOWN = {
    Coordinated.EMPTY: "Empty",
    Coordinated.ONGOING: "Ongoing",
    Coordinated.COMPLETING: "PrepareCommit",
    Coordinated.COMMITTED: "CompleteCommit",
    Coordinated.ABORTED: "CompleteAbort",
}


def offsets_of(sources: Sources) -> dict[At, int]:
    """Those that are there."""
    return {(SOURCE_TOPIC, number): offset for number, offset in enumerate(sources) if offset is not None}


def offsets_at(end: int) -> dict[At, int]:
    """Of the source, so many of whose records are read."""
    return offsets_of(sources_at(end))


def modelled(message: Any, by: int) -> Request:
    """What a message asks of the model. ``by``: the driver that sends it."""
    match message:
        case InitProducerIdRequest():
            expected = _identity(message)
            return InitProducerId(None if expected == NO_IDENTITY else expected, by)
        case EndTxnRequest():
            return EndTransaction(_identity(message), message.committed)
        case AddOffsetsToTxnRequest():
            return AddPartitions(_identity(message), GROUP)
        case TxnOffsetCommitRequest():
            return _commit(message)
        case OffsetFetchRequest():
            return FetchOffsets(by_name=message.groups[0].topics is not None, stable=message.require_stable)
        case DescribeTransactionsRequest():
            return DescribeTransaction()
    return together(message)


def together(message: Any) -> Together:
    """What a message asks of several partitions."""
    match message:
        case AddPartitionsToTxnRequest():
            identity = Identity(message.v3_and_below_producer_id, message.v3_and_below_producer_epoch)
            return Together(
                tuple(AddPartitions(identity, p) for t in message.v3_and_below_topics for p in t.partitions)
            )
        case ProduceRequest():
            return Together(tuple(_produced(p) for t in message.topic_data for p in t.partition_data))
        case DescribeProducersRequest():
            return Together(tuple(DescribeProducer(p) for t in message.topics for p in t.partition_indexes))
    raise AssertionError(message)


def _produced(part: Any) -> Produce:
    records: Records = part.records
    return Produce(records.identity, part.index, records.sequence, records.values)


def _identity(message: Any) -> Identity:
    return Identity(message.producer_id, message.producer_epoch)


def _commit(message: Any) -> CommitOffsets:
    parts = {(topic.name, part.partition_index): part for topic in message.topics for part in topic.partitions}
    anchor = parts.pop((ANCHOR_TOPIC, ANCHOR_PARTITION))
    progress = Progress.decode(anchor.committed_offset, anchor.committed_metadata)
    if not parts:
        return CommitOffsets(_identity(message), progress)
    one, other = (parts.get((SOURCE_TOPIC, number)) for number in range(SOURCES))
    note = next(iter(parts.values())).committed_metadata
    sources = one and one.committed_offset, other and other.committed_offset
    return CommitOffsets(_identity(message), progress, sources, note)


def worded(message: Any, answer: Answer) -> Any:
    """The model's answer to a message, as Kafka words it."""
    match message:
        case InitProducerIdRequest():
            return InitProducerIdResponse(error_code=answer.code, **_fields(answer.identity))
        case EndTxnRequest():
            return EndTxnResponse(error_code=answer.code, **_fields(answer.identity))
        case AddOffsetsToTxnRequest():
            return AddOffsetsToTxnResponse(error_code=answer.code)
        case TxnOffsetCommitRequest():
            return _stored(message, answer)
        case OffsetFetchRequest():
            return _fetched(message, answer)
        case DescribeTransactionsRequest():
            return _described(answer)
    return _worded_together(message, answer)


def _worded_together(message: Any, answer: Answer) -> Any:
    """An answer without parts is that of every partition."""
    numbers = [each.partition for each in together(message).requests if not isinstance(each, Misdirected)]
    parts = dict(zip(numbers, answer.parts or [answer] * len(numbers), strict=True))
    match message:
        case AddPartitionsToTxnRequest():
            return _added(parts)
        case ProduceRequest():
            return _appended(parts)
        case DescribeProducersRequest():
            return _producers(parts)
    raise AssertionError(message)


def _fields(identity: Identity | None) -> dict[str, int]:
    shown = identity or NO_IDENTITY
    return {"producer_id": shown.producer_id, "producer_epoch": shown.epoch}


def _stored(message: Any, answer: Answer) -> Any:
    """An answer without parts is that of every partition. A real broker names first what it has refused by itself."""
    kind = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    asked = [(topic.name, part.partition_index) for topic in message.topics for part in topic.partitions]
    told = zip(asked, answer.parts or [answer] * len(asked), strict=True)
    by_topic: dict[str, list[Any]] = {}
    for (name, number), of_it in sorted(told, key=lambda each: each[1].code == codes.NONE):
        part = kind.TxnOffsetCommitResponsePartition(partition_index=number, error_code=of_it.code)
        by_topic.setdefault(name, []).append(part)
    return TxnOffsetCommitResponse(topics=[kind(name=name, partitions=parts) for name, parts in by_topic.items()])


def _fetched(message: Any, answer: Answer) -> Any:
    """What is committed of all topics; or of the record's alone, if that is named, and -1 where it is not there."""
    kind = OffsetFetchResponse.OffsetFetchResponseGroup
    named = message.groups[0].topics is not None
    committed = answer.committed or Committed()
    entries = (
        {} if named else {SOURCE_TOPIC: list(zip(range(SOURCES), committed.sources, committed.notes, strict=True))}
    )
    if committed.progress is not None:
        offset, metadata = committed.progress.encode()
        entries[ANCHOR_TOPIC] = [(0, offset, metadata if committed.foreign is None else committed.foreign)]
    elif named:
        entries[ANCHOR_TOPIC] = [(0, -1, "")]
    topics = [_fetched_topic(kind.OffsetFetchResponseTopics, *entry) for entry in entries.items()]
    return OffsetFetchResponse(groups=[kind(group_id="", error_code=answer.code, topics=topics)])


def _fetched_topic(kind: Any, name: str, entries: Iterable[tuple[int, int | None, str]]) -> Any:
    parts = [
        kind.OffsetFetchResponsePartitions(
            partition_index=number, committed_offset=offset, metadata=metadata, error_code=codes.NONE
        )
        for number, offset, metadata in entries
        if offset is not None
    ]
    return kind(name=name, partitions=parts)


def _described(answer: Answer) -> Any:
    kind = DescribeTransactionsResponse.TransactionState
    shown = answer.snapshot
    if shown is None:
        state = kind(error_code=answer.code)
    elif shown.state is Coordinated.ABSENT:
        state = kind(error_code=codes.TRANSACTIONAL_ID_NOT_FOUND)
    else:
        state = kind(error_code=answer.code, transaction_state=_SHOWN[shown.state], **_fields(shown.identity))
    return DescribeTransactionsResponse(transaction_states=[state])


def _added(parts: Mapping[int, Answer]) -> Any:
    kind = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    part = kind.AddPartitionsToTxnPartitionResult
    results = [part(partition_index=n, partition_error_code=answer.code) for n, answer in parts.items()]
    topic = kind(name=TOPIC, results_by_partition=results)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])


def _appended(parts: Mapping[int, Answer]) -> Any:
    kind = ProduceResponse.TopicProduceResponse
    results = [
        kind.PartitionProduceResponse(
            index=n, error_code=answer.code, error_message=answer.message or None, record_errors=_refused(answer)
        )
        for n, answer in parts.items()
    ]
    return ProduceResponse(responses=[kind(name=TOPIC, partition_responses=results)])


def _refused(answer: Answer) -> list[Any]:
    """What is said of single records (KIP-467): as the model has it, of the first one."""
    kind = ProduceResponse.TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage
    return [kind(batch_index=0, batch_index_error_message=answer.refused)] if answer.refused else []


def _producers(parts: Mapping[int, Answer]) -> Any:
    kind = DescribeProducersResponse.TopicResponse
    results = [
        kind.PartitionResponse(partition_index=n, error_code=answer.code, active_producers=_active(answer))
        for n, answer in parts.items()
    ]
    return DescribeProducersResponse(topics=[kind(name=TOPIC, partitions=results)])


def _active(answer: Answer) -> list[Any]:
    kind = DescribeProducersResponse.TopicResponse.PartitionResponse.ProducerState
    return [kind(last_sequence=last, **_fields(identity)) for identity, last in answer.producers]
