"""AddPartitionsToTxn as a talk: on transaction version 1 a partition joins the transaction before its first write (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onceflow.kafka import codes
from onceflow.kafka.client import TRANSACTION, Again, KafkaClient
from onceflow.kafka_python import AddPartitionsToTxnRequest
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.messages import Identity
from onceflow.transaction.questions import At
from onceflow.transaction.talk import Forget, Pace, Talk, ToCoordinator, repeated

_OPERATION_NOT_ATTEMPTED = 55


def enrol(transactional_id: str, identity: Identity, partitions: Iterable[At], pace: Pace) -> Talk[None]:
    """Adds partitions to the open transaction, or opens one.

    Raises IdentityRefused, AttemptFailed, NotAuthorized, BrokerUnreachable.
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
        (part.partition_error_code, f"{topic_result.name}-{part.partition_index}")
        for topic_result in answer.results_by_topic_v3_and_below
        for part in topic_result.results_by_partition
    ]
    try:
        # OPERATION_NOT_ATTEMPTED last: it only says that another partition of the request has the real error.
        for code, where in sorted(results, key=lambda result: result[0] == _OPERATION_NOT_ATTEMPTED):
            _check_enrolled(code, f"AddPartitionsToTxn of {where}")
    except Again as again:
        if again.moved:
            yield Forget(TRANSACTION)
        raise


def _check_enrolled(code: int, what: str) -> None:
    if code in codes.REFUSED:
        raise IdentityRefused(f"{what}: {codes.name_of(code)}")
    if code in codes.ABORTABLE or code == _OPERATION_NOT_ATTEMPTED:
        raise AttemptFailed(f"{what}: {codes.name_of(code)}")
    KafkaClient.check(code, what, "WRITE")
