"""What a reader was asked to do, checked before any I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

from confluent_kafka import Message

from onceflow.errors import ConfigurationError
from onceflow.kafka.names import is_topic
from onceflow.kafka.settings import ClusterSettings
from onceflow.reader.event import headers_of
from onceflow.reader.retries import Backoff
from onceflow.reader.stores.interface import Retention

GROUP_HEADER = "onceflow_group"
"""Which group wrote a dead letter."""
_Choice = TypeVar("_Choice", bound=Enum)


class LostStore(Enum):
    """What to do where Kafka knows that the group handled more than the store remembers."""

    REFUSE = "refuse"
    REBUILD = "rebuild"  # read the ids again from the topic, up to Kafka's committed offset, and handle nothing of it
    ACCEPT = "accept"  # go on at Kafka's committed offset, without the ids before it
    REPLAY = "replay"  # go on where the store is: for a database restored from a backup, the effects with it


class Start(Enum):
    """Where a group begins that never handled anything."""

    EARLIEST = "earliest"
    LATEST = "latest"


class GroupProtocol(Enum):
    """Kafka's consumer groups: ``classic`` (cooperative rebalances), or ``consumer`` (KIP-848, brokers from 4.0)."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """A reader's options; ``onceflow.Reader`` explains them."""

    topics: tuple[str, ...]
    group: str
    cluster: ClusterSettings
    group_protocol: GroupProtocol
    group_instance_id: str | None
    session_timeout_s: float | None
    max_poll_interval_s: float
    start: Start
    lost_store: LostStore
    batch_size: int
    retention: Retention
    lease_s: float
    retries: int
    backoff: Backoff
    dead_letters: str | None
    patience_s: float
    letters_of: str | None = None  # a group: of dead letters, only those that it wrote are read

    def of_dead_letters(self) -> ReaderSettings:
        """For the letters that a reader with these settings writes: a group of its own, and a next topic for what fails again."""
        return replace(
            self,
            topics=tuple(dict.fromkeys(map(self.dead_letter_topic, self.topics))),
            group=f"{self.group}.dead-letter",
            dead_letters="{topic}.again",
            start=Start.EARLIEST,
            letters_of=self.group,
        )

    def reads(self, message: Message) -> bool:
        """Whether a record is for this reader.

        A letter of another group is left out before it has an identity: it may be of the same event as one of ours, which
        would then be its duplicate.
        """
        return self.letters_of is None or dict(headers_of(message)).get(GROUP_HEADER) == self.letters_of.encode()

    def dead_letter_topic(self, topic: str) -> str:
        """Where poison of ``topic`` goes."""
        assert self.dead_letters is not None
        return self.dead_letters.replace("{topic}", topic)

    def consumer_options(self) -> dict[str, Any]:
        """Configuration of the group's confluent-kafka consumer. Holds secrets."""
        options: dict[str, Any] = {
            **self.base_options(),
            "group.protocol": self.group_protocol.value,
            "max.poll.interval.ms": int(self.max_poll_interval_s * 1000),
        }
        if self.group_instance_id is not None:
            options["group.instance.id"] = self.group_instance_id
        if self.group_protocol is GroupProtocol.CLASSIC:
            options["partition.assignment.strategy"] = "cooperative-sticky"
            if self.session_timeout_s is not None:
                options["session.timeout.ms"] = int(self.session_timeout_s * 1000)
                options["heartbeat.interval.ms"] = int(self.session_timeout_s * 1000 / 3)
        return options

    def base_options(self) -> dict[str, Any]:
        """What every consumer of this reader has: committed records alone, no offset stored or reset behind our back."""
        return {
            **self.cluster.for_librdkafka(),
            "group.id": self.group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 10,  # the default of a second would stop a fast reader again and again
            "log_level": 3,
        }


@dataclass(slots=True)
class Checker:
    """Collects every mistake, to raise them at once."""

    mistakes: list[str] = field(default_factory=list)

    def choice(self, kind: type[_Choice], name: str, value: str) -> _Choice:
        """The member of ``kind`` with that value."""
        for member in kind:
            if member.value == value:
                return member
        self.mistakes.append(f"{name} must be one of {', '.join(m.value for m in kind)}, not {value!r}")
        return next(iter(kind))

    def at_least(self, least: float, **values: float | None) -> None:
        """Each value given must be that large."""
        self.mistakes += [
            f"{name} must be at least {least:g}, not {value!r}"
            for name, value in values.items()
            if value is not None and not value >= least
        ]

    def topics(self, given: str | Sequence[str]) -> tuple[str, ...]:
        """Names of topics: at least one, no pattern."""
        names = (given,) if isinstance(given, str) else tuple(given)
        if not names:
            self.mistakes.append("no topic is given")
        self.mistakes += [f"{name!r} is no name of a topic" for name in names if not is_topic(name)]
        return names

    def dead_letters(self, name: str | None, topics: Sequence[str]) -> None:
        """A name of a topic, ``{topic}`` in it stands for the event's own."""
        if name is None:
            return
        targets = [name.replace("{topic}", topic) for topic in topics]
        if not all(is_topic(target) for target in targets):
            self.mistakes.append(f"dead_letters: {name!r} is no name of a topic")
        self.mistakes += [
            f"dead_letters: {target} is read by this very reader" for target in targets if target in topics
        ]

    def cluster(self, bootstrap_servers: str, options: Mapping[str, object] | None) -> ClusterSettings:
        """The Kafka settings, with their own mistakes."""
        try:
            return ClusterSettings.of(bootstrap_servers, options)
        except ConfigurationError as error:
            self.mistakes += error.fields["mistakes"]
            return ClusterSettings("")
