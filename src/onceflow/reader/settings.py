"""What a reader was asked to do, checked before any I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from numbers import Integral, Real
from typing import Any, TypeVar, cast

from onceflow.errors import ConfigurationError
from onceflow.kafka.names import is_topic, no_nul
from onceflow.kafka.settings import ClusterSettings
from onceflow.reader.event import Event
from onceflow.reader.refused import REFUSED
from onceflow.reader.retries import Backoff
from onceflow.reader.stores.interface import Retention

GROUP_HEADER = "onceflow_group"
"""Which group wrote a dead letter."""
SHORTEST_ANSWER_S = 10.0
_Choice = TypeVar("_Choice", bound=Enum)
_WHOLE = {"batch_size", "keep_ids", "retries"}
_DAY_S = 24 * 3600
_MOST = {  # no more than what all of it can be told to
    "batch_size": (1_000_000, "librdkafka gives no more at once"),
    "keep_ids": (10**15, "leave it and keep_ids_s None to keep all of them"),
    "keep_ids_s": (100 * 365 * _DAY_S, "100 years; leave it and keep_ids None to keep them for ever"),
    "session_timeout_s": (3600, "an hour, as librdkafka"),
    "max_poll_interval_s": (_DAY_S, "a day, as librdkafka"),
    "lease_s": (24 * _DAY_S, "24 days"),
    "patience_s": (24 * _DAY_S, "24 days, as librdkafka"),
    "backoff_s": (24 * _DAY_S, "24 days"),
    "backoff_max_s": (24 * _DAY_S, "24 days"),
}
_MAY_BE_NONE = {"keep_ids_s", "keep_ids", "session_timeout_s", "group_instance_id"}


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

    @property
    def answer_s(self) -> float:
        """How long a single answer of the brokers is waited for: one takes a moment, however short the patience is."""
        return max(self.patience_s, SHORTEST_ANSWER_S)

    def reads(self, event: Event) -> bool:
        """Whether a record is for this reader.

        A letter of another group is left out before anything is booked: it may be of the same event as one of ours, which
        would then be its duplicate.
        """
        return self.letters_of is None or dict(event.headers).get(GROUP_HEADER) == self.letters_of.encode()

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
        """What every consumer of this reader has: committed records alone, as they were written, no offset stored or reset behind
        our back.
        """
        return {
            **self.cluster.for_librdkafka(),
            "group.id": self.group,
            "isolation.level": "read_committed",
            "check.crcs": True,  # as Java's consumer does; what fails is passed over by librdkafka, and told by trouble.py
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

    def session_timeout(self, given: object, protocol: GroupProtocol) -> None:
        """A reader says how long its session is with one of the two protocols; with the other one the brokers do."""
        if given is not None and protocol is GroupProtocol.CONSUMER:
            self.mistakes.append(
                "session_timeout_s has no effect with group_protocol='consumer': set group.consumer.session.timeout.ms of the "
                "brokers, or take 'classic'"
            )

    def at_least(self, least: float, **values: object) -> None:
        """Each value given must be a number, that large, and no larger than what stores and brokers can be told."""
        for name, value in values.items():
            if value is None and name in _MAY_BE_NONE:
                continue
            needed = Integral if name in _WHOLE else Real
            if isinstance(value, bool) or not isinstance(value, needed):
                self.mistakes.append(f"{name} must be a {'whole ' * (needed is Integral)}number, not {value!r}")
            elif not cast("float", value) >= least:
                self.mistakes.append(f"{name} must be at least {least:g}, not {value!r}")
            elif name in _MOST and cast("float", value) > _MOST[name][0]:
                most, why = _MOST[name]
                self.mistakes.append(f"{name} must be at most {most} ({why}), not {value!r}")

    def text(self, **values: object) -> None:
        """Each must be a text that is not empty; None where that has a meaning."""
        for name, value in values.items():
            if value == "":
                self.mistakes.append(f"{name} is empty")
            elif not isinstance(value, str) and not (value is None and name in _MAY_BE_NONE):
                self.mistakes.append(f"{name} must be a text, not {value!r}")
            elif isinstance(value, str) and (mistake := no_nul(name, value)):
                self.mistakes.append(mistake)

    def topics(self, given: object) -> tuple[str, ...]:
        """Names of topics: at least one, no pattern."""
        if not isinstance(given, Iterable):
            self.mistakes.append(f"topics must be a name or several, not {given!r}")
            return ()
        names = (given,) if isinstance(given, str) else tuple(given)
        if not names:
            self.mistakes.append("no topic is given")
        self.mistakes += [f"{name!r} is no name of a topic" for name in names if not _is_topic(name)]
        known = [name for name in names if _is_topic(name)]
        self.mistakes += [
            f"topic {name} is given more than once" for name in dict.fromkeys(known) if known.count(name) > 1
        ]
        return names

    def dead_letters(self, name: object, topics: Sequence[str]) -> None:
        """A name of a topic, ``{topic}`` in it stands for the event's own."""
        if name is None:
            return
        if not isinstance(name, str):
            self.mistakes.append(f"dead_letters must be a name of a topic or None, not {name!r}")
            return
        known = [topic for topic in topics if _is_topic(topic)]  # of the others it is said already
        targets = [name.replace("{topic}", topic) for topic in known or ("topic",)]
        if not all(is_topic(target) for target in targets):
            self.mistakes.append(f"dead_letters: {name!r} is no name of a topic")
        self.mistakes += [
            f"dead_letters: {target} is read by this very reader" for target in targets if target in known
        ]

    def cluster(self, bootstrap_servers: object, options: object) -> ClusterSettings:
        """The Kafka settings, with their own mistakes."""
        self.text(bootstrap_servers=bootstrap_servers)
        if options is not None and not isinstance(options, Mapping):
            self.mistakes.append(f"kafka must be a mapping of option names to values, not {type(options).__name__}")
        given = options if isinstance(options, Mapping) else {}
        self.mistakes += [f"{name}: cannot be set: {REFUSED[name]}" for name in given if name in REFUSED]
        taken = {name: value for name, value in given.items() if name not in REFUSED}
        try:
            return ClusterSettings.of(_servers(bootstrap_servers), taken)
        except ConfigurationError as error:
            self.mistakes += error.fields["mistakes"]
            return ClusterSettings("")


def _is_topic(name: object) -> bool:
    return isinstance(name, str) and is_topic(name)


def _servers(given: object) -> str:
    """What can be checked further; of anything else is said already that it must be a text."""
    return given if given and isinstance(given, str) else "localhost:9092"
