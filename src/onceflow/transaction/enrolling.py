"""AddPartitionsToTxn as a talk: on transaction version 1 a partition joins the transaction before its first write (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onceflow.kafka import codes
from onceflow.kafka.client import TRANSACTION, Again, KafkaClient
from onceflow.kafka_python import AddPartitionsToTxnRequest
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.led import led
from onceflow.transaction.messages import Identity
from onceflow.transaction.questions import At, UnknownTopic
from onceflow.transaction.talk import Forget, Leaders, Pace, Talk, ToCoordinator, repeated

_OPERATION_NOT_ATTEMPTED = 55


class _Unknown(UnknownTopic):
    """The coordinator knows no such partition: not yet, or no more::

    the topic is deleted, or made anew with fewer partitions, while a pipeline writes it
    asked again and again, the transaction would stay open all the while, and its readers wait for nothing

    So metadata is asked what there is, and only a partition that it has is waited for.
    """

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(topic)
        self.partition = partition


def enrol(transactional_id: str, identity: Identity, partitions: Iterable[At], pace: Pace) -> Talk[None]:
    """Adds partitions to the open transaction, or opens one.

    Raises IdentityRefused, AttemptFailed, TopicMissing, NotAuthorized, BrokerUnreachable.
    """
    request = add_partitions(transactional_id, identity, partitions)
    return repeated(lambda: _enrolled(request), "AddPartitionsToTxn", pace)


def add_partitions(transactional_id: str, identity: Identity, partitions: Iterable[At]) -> Any:
    """The request, in the versions of clients."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    topic_type = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[topic_type(name=name, partitions=parts) for name, parts in topics.items()],
        max_version=3,
    )


def _enrolled(request: Any) -> Talk[None]:
    answer = yield ToCoordinator(TRANSACTION, request)
    results = [
        (part.partition_error_code, topic_result.name, part.partition_index)
        for topic_result in answer.results_by_topic_v3_and_below
        for part in topic_result.results_by_partition
    ]
    try:
        # OPERATION_NOT_ATTEMPTED last: it only says that another partition of the request has the real error.
        for code, topic, partition in sorted(results, key=lambda result: result[0] == _OPERATION_NOT_ATTEMPTED):
            _check_enrolled(code, topic, partition)
    except _Unknown as unknown:
        led((yield Leaders(frozenset({unknown.topic}), refresh=True)), unknown.topic, unknown.partition)
        raise
    except Again as again:
        if again.moved:
            yield Forget(TRANSACTION)
        raise


def _check_enrolled(code: int, topic: str, partition: int) -> None:
    what = f"AddPartitionsToTxn of {topic}-{partition}"
    if code == codes.UNKNOWN_TOPIC_OR_PARTITION:
        raise _Unknown(topic, partition)
    if code in codes.REFUSED:
        raise IdentityRefused(f"{what}: {codes.name_of(code)}")
    if code in codes.ABORTABLE or code == _OPERATION_NOT_ATTEMPTED:
        raise AttemptFailed(f"{what}: {codes.name_of(code)}")
    KafkaClient.check(code, what, "WRITE")
