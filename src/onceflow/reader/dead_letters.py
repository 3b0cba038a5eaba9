"""Dead letters: events that failed too often, with the reason, in the order of their partition."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

from confluent_kafka import KafkaError as Problem
from confluent_kafka import KafkaException, Producer

from onceflow.errors import BrokerUnreachable, NotAuthorized, RequestFailed, TopicMissing
from onceflow.events import ID_HEADER, SEQUENCE_HEADER, SOURCE_HEADER
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.rights import is_denied
from onceflow.reader.event import LETTER_PREFIX as PREFIX
from onceflow.reader.event import Event
from onceflow.reader.patience import Stopped
from onceflow.reader.reasons import told
from onceflow.reader.settings import ReaderSettings
from onceflow.stop_flag import StopFlag

_librdkafka = logging.getLogger("onceflow.kafka.librdkafka")
_REASON_CHARS = 1000
_WAIT_S = 1.0
_LARGEST = 1_000_000_000  # librdkafka's own bound; its default is below what a topic takes by default
SEQUENCE = PREFIX + "sequence"
Headers = list[tuple[str, str | bytes | None]]


class DeadLetters:
    """Writes letters, one at a time: a letter is acknowledged before the event counts as handled.

    A letter has the event's key, value and headers, the same partition number (modulo the partitions there are), the time of now,
    and headers with the reason, the original position and time. The topic is made when the first letter is written, if it is
    missing.

    What it survives::

        the event is older than its topic's letters are kept for: a new group reads a topic of years, and letters are kept a week
        with the event's time the letter would be deleted within minutes, and the event counts as handled

        the letters' topic bounds the timestamps that it takes, and the event is older than that (or from the future)
        the brokers would refuse a letter of that time, at each start

        the brokers do not answer
        librdkafka itself gives the letter up: as long as it may still send it, a second try would write another one

        the same, and the reader is to end
        it ends, and the event comes again; the letter may have been written by then, and is written again, with the same id
    """

    def __init__(self, settings: ReaderSettings, stop: StopFlag) -> None:
        self._settings = settings
        self._stop = stop
        self._producer: Producer | None = None
        self._partitions: dict[str, int] = {}

    def write(self, event: Event, reason: Exception, attempts: int) -> None:
        """Returns when the brokers have it. Raises KafkaError, and Stopped if it is to end meanwhile."""
        topic = self._settings.dead_letter_topic(event.topic)
        partition = event.partition % self._partitions_of(topic, like=event.topic)
        refusal = self._send(topic, partition, event, _headers(event, reason, attempts, self._settings.group))
        if refusal is not None:
            raise _refused(topic, refusal)

    def _send(self, topic: str, partition: int, event: Event, headers: Headers) -> Problem | None:
        """What the brokers refuse it with, or None."""
        answers: list[Problem | None] = []
        try:
            self._open().produce(
                topic,
                event.value,
                event.key,
                partition,
                lambda refusal, _: answers.append(refusal),
                headers=headers,
            )
            # Not by ``flush``: that goes on behind a fatal error, and reports the letter while that one is being raised.
            while not answers:
                self._open().poll(_WAIT_S)
                if not answers and self._stop.is_set():
                    raise Stopped
        except KafkaException as error:
            return cast("Problem", error.args[0])
        except (ValueError, TypeError, OverflowError, BufferError) as error:
            raise RequestFailed(
                f"a dead letter of {event!r} to {topic} cannot be sent: {told(error)}",
                action="see the message; the event comes again first, and dead_letters=None stops the reader there instead",
            ) from error
        refusal = answers[0]
        if refusal is not None and refusal.code() == Problem._MSG_TIMED_OUT:  # noqa: SLF001
            raise BrokerUnreachable(f"a dead letter to {topic} was not acknowledged in {self._settings.answer_s:g} s")
        return refusal

    def close(self) -> None:
        """Ends the producer; nothing waits in it."""
        self._producer = None

    def _open(self) -> Producer:
        if self._producer is None:
            options = {
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": int(self._settings.answer_s * 1000),
                "message.max.bytes": _LARGEST,
                "log_level": 3,
            }
            try:
                self._producer = Producer({**self._settings.cluster.for_librdkafka(), **options}, logger=_librdkafka)
            except KafkaException as error:
                raise RequestFailed(f"dead letters: {error.args[0].str()}") from error
        return self._producer

    def _partitions_of(self, topic: str, like: str) -> int:
        if topic not in self._partitions:
            admin = ClusterAdmin(self._settings.cluster, patience_s=self._settings.answer_s)
            known = admin.partitions()
            if topic not in known:
                if like not in known:
                    raise TopicMissing(
                        f"{like}: the topic of a dead letter's event is gone", action="find out who deleted it"
                    )
                admin.create_topics([topic], partitions=len(known[like]), needed="WRITE")
                known[topic] = known[like]
            self._partitions[topic] = len(known[topic])
        return self._partitions[topic]


def _refused(topic: str, error: Problem) -> RequestFailed | NotAuthorized:
    if is_denied(error):  # perhaps of the cluster, where the principal may write no topic at all
        return NotAuthorized(f"a dead letter to {topic}: {error.str()}", action=f"grant WRITE on the topic {topic}")
    too_large = error.code() == Problem.MSG_SIZE_TOO_LARGE
    action = "raise the topic's max.message.bytes: a letter has some headers more than its event" if too_large else ""
    return RequestFailed(f"a dead letter to {topic}: {error.str()}", action=action, error=error.name())


def _headers(event: Event, reason: Exception, attempts: int, group: str) -> Headers:
    """The event's own headers first; one without id gets the id of its position, so that a repeated letter is known.

    The sequence goes by another name: it rises along the partition that the event came from, and letters of several partitions
    (or topics) may stand in one. Taken for a sequence there, 5 after 6 would be a duplicate, and nobody would handle it.
    """
    own = [(SEQUENCE if name == SEQUENCE_HEADER else name, value) for name, value in event.headers]
    identity = [] if event.identity else [(ID_HEADER, event.entry.id), (SOURCE_HEADER, event.entry.source)]
    return [*own, *identity, *((PREFIX + name, text) for name, text in _told(event, reason, attempts, group))]


def _told(event: Event, reason: Exception, attempts: int, group: str) -> Sequence[tuple[str, str]]:
    return [
        ("reason", told(reason)[:_REASON_CHARS]),
        ("attempts", str(attempts)),
        ("group", group),
        ("topic", event.topic),
        ("partition", str(event.partition)),
        ("offset", str(event.offset)),
        ("timestamp", str(event.timestamp_ms)),
    ]
