"""What a simulated client asks a simulated broker: the fields of Kafka's requests that decide anything, and the answers."""

from __future__ import annotations

from collections.abc import Callable
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
class Records:
    """What a batch's bytes are in the model; ``size`` stands for how many they are."""

    identity: Identity
    sequence: int
    values: tuple[int, ...]
    size: int

    def __len__(self) -> int:
        return self.size


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """TxnOffsetCommit of the progress record and one source offset."""

    identity: Identity
    progress: Progress
    source: int | None
    note: str = ""  # beside the source offset


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
    """OffsetFetch with require_stable (KIP-447): of everything, or of the progress record by its name."""

    by_name: bool = False


@dataclass(frozen=True, slots=True)
class DescribeProducer:
    """DescribeProducers of one partition."""

    partition: int


@dataclass(frozen=True, slots=True)
class ListOffset:
    """ListOffsets of the latest offset of one partition at the isolation level ``read_committed``: its last stable offset."""

    partition: int


@dataclass(frozen=True, slots=True)
class Misdirected:
    """Anything asked of a node that it is not for."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Together:
    """Several partitions in one request."""

    requests: tuple[AddPartitions | Produce | DescribeProducer | Misdirected, ...]

    def at(self, refusal: Callable[[int], Answer | None]) -> Together:
        """The same for a node that refuses some partitions."""
        refused = [(each, None if isinstance(each, Misdirected) else refusal(each.partition)) for each in self.requests]
        return Together(tuple(each if answer is None else Misdirected(answer) for each, answer in refused))


Request = (
    InitProducerId
    | AddPartitions
    | Produce
    | CommitOffsets
    | EndTransaction
    | DescribeTransaction
    | FetchOffsets
    | DescribeProducer
    | ListOffset
    | Misdirected
    | Together
)


@dataclass(frozen=True, slots=True)
class Committed:
    """What OffsetFetch found: the progress record, and the next source offset. ``foreign``: metadata in the record's place."""

    progress: Progress | None = None
    source: int = 0
    note: str = ""
    foreign: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An error code, and what goes with success."""

    code: int = codes.NONE
    identity: Identity | None = None
    snapshot: Snapshot | None = None
    committed: Committed | None = None
    producers: tuple[tuple[Identity, int], ...] = ()  # identity and LastSequence
    offset: int | None = None
    parts: tuple[Answer, ...] = ()  # to what was asked together
    message: str = ""
    refused: str = ""  # what is said of the first record of a batch


OK = Answer()
UNKNOWN_SERVER_ERROR = Answer(-1)
UNKNOWN_TOPIC_OR_PARTITION = Answer(codes.UNKNOWN_TOPIC_OR_PARTITION)
NOT_LEADER = Answer(6)
MESSAGE_TOO_LARGE = Answer(10)
NOT_COORDINATOR = Answer(16)
NOT_ENOUGH_REPLICAS = Answer(19)
TOPIC_AUTHORIZATION_FAILED = Answer(29)
OUT_OF_ORDER = Answer(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
INVALID_PRODUCER_EPOCH = Answer(47)
INVALID_TXN_STATE = Answer(48)
INVALID_PRODUCER_ID_MAPPING = Answer(49)
INVALID_TRANSACTION_TIMEOUT = Answer(codes.INVALID_TRANSACTION_TIMEOUT)
CONCURRENT_TRANSACTIONS = Answer(51)
INVALID_RECORD = Answer(
    87,
    message="One or more records have been rejected",
    refused="Compacted topic cannot accept message without key.",
)
UNSTABLE_OFFSET_COMMIT = Answer(88)
PRODUCER_FENCED = Answer(90)
TRANSACTION_ABORTABLE = Answer(120)
