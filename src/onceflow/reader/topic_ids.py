"""The ids that Kafka gives its topics: one that is made anew under the same name has another id.

Of an id its first 48 bits are compared, kept and shown: they are drawn at random, fit into an offset of every store, and are the
first eight characters of what Kafka's own tools show.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import cached_property

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, TopicDescription

from onceflow.errors import BrokerUnreachable, NotAuthorized
from onceflow.reader.offsets import KAFKA_TIMEOUT_S
from onceflow.reader.settings import ReaderSettings

_librdkafka = logging.getLogger("onceflow.kafka.librdkafka")
_CHARACTERS = 8  # of base64: 48 bits
_OF_URLS = str.maketrans("-_", "+/")
Answers = Mapping[str, "Future[TopicDescription]"]


class TopicIds:
    """Asks Kafka for them. A topic whose broker gives none (before 2.8) has none here."""

    def __init__(self, settings: ReaderSettings) -> None:
        self._settings = settings

    def ask(self, topics: Iterable[str]) -> Answers:
        """The question alone; nobody waits for its answers."""
        wanted = TopicCollection(list(topics))
        return self._admin.describe_topics(wanted, request_timeout=KAFKA_TIMEOUT_S)

    def of(self, topics: Iterable[str]) -> dict[str, int]:
        """Raises NotAuthorized, and BrokerUnreachable also for a topic that a broker does not know: the group has it."""
        found = {topic: self._answered(topic, answer) for topic, answer in self.ask(topics).items()}
        return {topic: number for topic, number in found.items() if number}

    def _answered(self, topic: str, answer: Future[TopicDescription]) -> int:
        try:
            return number_of(answer.result())
        except KafkaException as error:
            what = f"{topic}: its id cannot be read: {error.args[0].str()}"
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise NotAuthorized(what, action=f"grant READ on the topic {topic}") from error
            raise BrokerUnreachable(what, action="check that the cluster runs, and has the topic") from error

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self._settings.cluster.for_librdkafka(), logger=_librdkafka)


def number_of(description: TopicDescription) -> int:
    """The beginning of its id, as a number; 0 where the broker gives none."""
    return int.from_bytes(base64.b64decode(str(description.topic_id)[:_CHARACTERS].translate(_OF_URLS), validate=True))


def shown(number: int) -> str:
    """As Kafka's tools show the beginning of an id."""
    return base64.urlsafe_b64encode(number.to_bytes(6)).decode()
