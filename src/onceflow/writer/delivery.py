"""What became of one event: written where, or not written, or unknown, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, Message

from onceflow.events import EventIdentity

if TYPE_CHECKING:
    from onceflow.writer.sender import Sender


@dataclass(frozen=True, slots=True)
class Delivered:
    """An event that all in-sync replicas have. In a transaction it becomes visible with the commit and not before."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    identity: EventIdentity


class Fate(Enum):
    """Whether an event that was not acknowledged is in the topic."""

    NOT_WRITTEN = "not written"
    UNKNOWN = "unknown"  # it was on its way; send it again under the same id, and a reader sees it once
    ABORTED = "aborted"  # its transaction is not committed: what may be written of it is visible to nobody


@dataclass(frozen=True, slots=True)
class FailedDelivery:
    """An event that was not acknowledged, and why. ``refused``: the same event would be refused again."""

    topic: str
    identity: EventIdentity
    reason: str
    fate: Fate
    refused: bool

    def __str__(self) -> str:
        return f"{self.identity.source} {self.identity.id} to {self.topic}: {self.reason} ({self.fate.value})"


REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001  this is how confluent-kafka names librdkafka's own errors
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)


class Delivery:
    """The promise of one event's delivery. ``result()`` waits for it.

    There are as many as events on their way, so each is one object and holds no other: the garbage collector looks at
    every one of them again and again. ``id`` is an identity, or the id alone of an event that has nothing but a source.
    """

    __slots__ = ("_failure", "_id", "_message", "_sender", "_source", "sent_at", "topic")

    def __init__(self, sender: Sender, topic: str, source: str, id: str | EventIdentity) -> None:  # noqa: A002
        self._sender = sender
        self.topic = topic
        self._source = source
        self._id = id
        self.sent_at = 0.0  # until it is handed over; on the monotonic clock
        self._message: Message | None = None
        self._failure: FailedDelivery | None = None

    @property
    def identity(self) -> EventIdentity:
        known = self._id
        return known if isinstance(known, EventIdentity) else EventIdentity(self._source, known)

    @property
    def name(self) -> str:
        """Source and id, for people; also of an event that was given none that is a text."""
        known = self._id
        return f"{known.source} {known.id}" if isinstance(known, EventIdentity) else f"{self._source} {known}"

    @property
    def done(self) -> bool:
        """Whether it is decided. Looks at what has come in, and waits for nothing."""
        return self._message is not None or self._failure is not None

    @property
    def failure(self) -> FailedDelivery | None:
        return self._failure

    def result(self, timeout_s: float | None = None) -> Delivered:
        """Waits until the event is acknowledged, up to the writer's delivery timeout. Raises DeliveryFailed.

        With ``timeout_s`` no longer than that; then TimeoutError: the event is on its way still, and may be asked for again.
        """
        self._sender.wait_for(self, timeout_s)
        if not self.done:
            raise TimeoutError(
                f"event {self.name} for {self.topic} was not acknowledged within {timeout_s:g} s; it goes on"
            )
        return self.delivered()

    def delivered(self) -> Delivered:
        """What the broker answered. Raises DeliveryFailed."""
        if self._failure is not None:
            raise self._sender.error_of((self._failure,))
        message = self._message
        assert message is not None, "not decided yet: call result()"
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        return Delivered(self.topic, partition, offset, message.timestamp()[1], self.identity)

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """librdkafka's delivery report. Most are of events that are written, and of which nobody else wants to know."""
        sender = self._sender
        if error is None:
            self._message = message
            if not sender.settles_more:
                sender.pending.pop(self, None)
                return
        else:
            self._failure = sender.failure_of(self, error)
        sender.settled(self)

    def abandon(self, reason: str) -> None:
        """Nothing more will be heard of it."""
        self._failure = FailedDelivery(self.topic, self.identity, reason, self._sender.fate_of_lost, refused=False)
        self._sender.settled(self)
