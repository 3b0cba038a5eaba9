"""Error codes of Kafka's protocol, grouped by what a transactional client has to do about them (KIP-98, KIP-360, KIP-890)."""

from __future__ import annotations

from onceflow.kafka_python import errors as kafka_errors

NONE = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_TRANSACTION_TIMEOUT = 50
CONCURRENT_TRANSACTIONS = 51
TRANSACTIONAL_ID_NOT_FOUND = 105

COORDINATOR_MOVED = frozenset({15, 16})  # COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
"""Find the coordinator again, then repeat."""

LEADER_MOVED = frozenset({3, 5, 6, 9, 56, 74, 75, 100})
"""UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE, KAFKA_STORAGE_ERROR,
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID: refresh the metadata, then repeat."""

BUSY = frozenset({7, 13, 14, 19, 20, 51, 88})
"""REQUEST_TIMED_OUT, NETWORK_EXCEPTION, COORDINATOR_LOAD_IN_PROGRESS, NOT_ENOUGH_REPLICAS (also: the leader's question to
the coordinator was pushed out by another writer's), NOT_ENOUGH_REPLICAS_AFTER_APPEND, CONCURRENT_TRANSACTIONS,
UNSTABLE_OFFSET_COMMIT: repeat the same bytes after a few milliseconds."""

REFUSED = frozenset({47, 48, 49, 59, 90})
"""INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, UNKNOWN_PRODUCER_ID, PRODUCER_FENCED: the identity
or its transaction is gone; look what happened before anything else."""

ABORTABLE = frozenset({45, 120})
"""OUT_OF_ORDER_SEQUENCE_NUMBER, TRANSACTION_ABORTABLE: abort this attempt and run the batch again."""

TOPIC_UNAUTHORISED = 29
_LACKING = {
    30: "READ on the group",
    31: "IDEMPOTENT_WRITE on the cluster",
    53: "WRITE on the transactional id",
    65: "DESCRIBE on the delegation token",
}
UNAUTHORISED = frozenset({TOPIC_UNAUTHORISED, *_LACKING})
"""Topic, group, cluster, transactional id and delegation token ACLs."""

UNWRITABLE = frozenset({10, 17, 18, 32, 43, 44, 76, 87})
"""MESSAGE_TOO_LARGE, INVALID_TOPIC, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, UNSUPPORTED_FOR_MESSAGE_FORMAT,
POLICY_VIOLATION, UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD: the records themselves are at fault."""

TOO_LARGE = frozenset({10, 18})
"""MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE: for the topic's ``max.message.bytes``, or the broker's segments."""

RETRIABLE = COORDINATOR_MOVED | LEADER_MOVED | BUSY


def lacking(code: int, topic_operation: str) -> str:
    """What a principal lacks that got one of ``UNAUTHORISED``, in the words of ``kafka-acls.sh``.

    Of a group and of a transactional id it is what a pipeline needs in the end (DESCRIBE comes with it); which operation on
    a topic was refused, only the request tells.
    """
    return _LACKING.get(code, f"{topic_operation} on the topic")


def name_of(code: int) -> str:
    """The protocol's name of an error code, for messages: ``PRODUCER_FENCED``-like, with the number."""
    return f"{kafka_errors.for_code(code).__name__} ({code})"
