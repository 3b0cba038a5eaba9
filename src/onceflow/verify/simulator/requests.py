"""What a simulated client asks a simulated broker: the fields of Kafka's requests that decide anything, and the answers."""

from __future__ import annotations

from dataclasses import dataclass

from onceflow.kafka import codes
from onceflow.transaction.messages import Identity, Snapshot
from onceflow.transaction.progress import Progress

GROUP = -1
"""The group's own partition of the offsets topic, among the numbers of output partitions."""


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """``by``: the driver that asks, for the judge."""

    expected: Identity | None
    by: int = 0


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """AddPartitionsToTxn, and for ``GROUP`` AddOffsetsToTxn (transaction version 1)."""

    identity: Identity
    partition: int


@dataclass(frozen=True, slots=True)
class Produce:
    """One record batch for one partition."""

    identity: Identity
    partition: int
    sequence: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """TxnOffsetCommit of the progress record and one source offset."""

    identity: Identity
    progress: Progress
    source: int | None


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """EndTxn."""

    identity: Identity
    commit: bool


@dataclass(frozen=True, slots=True)
class DescribeTransaction:
    """DescribeTransactions."""


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """OffsetFetch with require_stable (KIP-447)."""


@dataclass(frozen=True, slots=True)
class DescribeProducer:
    """DescribeProducers of one partition."""

    partition: int


Request = (
    InitProducerId
    | AddPartitions
    | Produce
    | CommitOffsets
    | EndTransaction
    | DescribeTransaction
    | FetchOffsets
    | DescribeProducer
)


@dataclass(frozen=True, slots=True)
class Committed:
    """What OffsetFetch found: the progress record, and the next source offset."""

    progress: Progress | None = None
    source: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """An error code, and what goes with success."""

    code: int = codes.NONE
    identity: Identity | None = None
    snapshot: Snapshot | None = None
    committed: Committed | None = None
    producers: tuple[tuple[Identity, int], ...] = ()  # identity and LastSequence


OK = Answer()
UNKNOWN_SERVER_ERROR = Answer(-1)
NOT_COORDINATOR = Answer(16)
TOPIC_AUTHORIZATION_FAILED = Answer(29)
OUT_OF_ORDER = Answer(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
INVALID_PRODUCER_EPOCH = Answer(47)
INVALID_TXN_STATE = Answer(48)
INVALID_PRODUCER_ID_MAPPING = Answer(49)
CONCURRENT_TRANSACTIONS = Answer(51)
UNSTABLE_OFFSET_COMMIT = Answer(88)
PRODUCER_FENCED = Answer(90)
TRANSACTION_ABORTABLE = Answer(120)
