"""What a simulated client asks a simulated broker: the fields of Kafka's requests that decide anything, and the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onceflow.kafka import codes
from onceflow.transaction.messages import Identity, Snapshot
from onceflow.transaction.progress import Progress

GROUP = -1
"""The group's own partition of the offsets topic, among the numbers of output partitions."""


SOURCES = 2
"""The partitions of the source. Its records lie on them in turn."""
Sources = tuple[int | None, int | None]
"""The next offset to read of each; None where none is committed."""
NO_SOURCES: Sources = (None, None)
TORN = -1
"""How much of the source is read by offsets at which no batch can have ended."""


def instance_of(driver: int) -> str:
    """What a driver calls itself."""
    return f"driver-{driver}"


def driver_of(instance: str) -> int:
    """The driver that calls itself so, also in a later life of its process (driver-8.2: 8); 0 where there is none."""
    return int(instance.removeprefix("driver-").partition(".")[0] or 0)


def sources_at(end: int) -> Sources:
    """Where the partitions stand when so many records of the source are read."""
    return (end + 1) // SOURCES, end // SOURCES


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
    """TxnOffsetCommit of the progress record and of source offsets.

    ``refused``: of each source partition what the broker that is asked answers by itself, before the coordinator hears of it: a
    partition that this broker has not heard of, a topic that the principal may not read. The others are committed all the same.
    """

    identity: Identity
    progress: Progress
    sources: Sources = NO_SOURCES
    note: str = ""  # beside each source offset
    refused: tuple[Answer | None, Answer | None] = (None, None)


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
    """OffsetFetch, ``stable`` with require_stable (KIP-447): of everything, or of the progress record by its name."""

    by_name: bool = False
    stable: bool = True


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
class Replaced:
    """What a driver asks of a coordinator of ``kind`` that others have replaced, and that has not heard of it."""

    kind: int
    request: Request


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
    | Replaced
    | Together
)


@dataclass(frozen=True, slots=True)
class Committed:
    """What OffsetFetch found: the progress record, and source offsets with what stands beside each.

    ``foreign``: metadata in the record's place.
    """

    progress: Progress | None = None
    sources: Sources = NO_SOURCES
    notes: tuple[str, str] = ("", "")
    foreign: str | None = None

    @property
    def source(self) -> int:
        """How many records of the source are read; 0 where no offset is committed, ``TORN`` where they do not fit together."""
        if self.sources == NO_SOURCES:
            return 0
        read = sum(offset or 0 for offset in self.sources)
        return read if self.sources == sources_at(read) else TORN

    @property
    def claim(self) -> str:
        """The instance that has claimed; empty if none has."""
        return self.progress.instance if self.progress else ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An error code, and what goes with success."""

    code: int = codes.NONE
    identity: Identity | None = None
    snapshot: Snapshot | None = None
    committed: Committed | None = None
    producers: tuple[tuple[Identity, int], ...] = ()  # identity and LastSequence
    offset: int | None = None
    parts: tuple[Answer, ...] = ()
    """To what was asked together; of offsets to the progress, then to each source partition."""
    message: str = ""
    refused: str = ""  # what is said of the first record of a batch
    misleads: bool = False  # it tells what is committed no more, for the judge
    tells_older_claim: bool = False  # ... of a claim behind which there is another one


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
