"""Which topics exist, how many partitions they have and what they accept, remembered for some minutes."""

from __future__ import annotations

import math
import time

from onceflow.errors import TopicMissing
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.topic_limits import max_message_bytes
from onceflow.transaction.router import TopicInfo

MAX_AGE_S = 300.0  # as the Java producer's metadata.max.age.ms: keys move when partitions are added, but not at once


class TopicCatalog:
    """Answers from memory, asks the cluster once per topic and ``MAX_AGE_S``. Raises TopicMissing, NotAuthorized."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._known: dict[str, tuple[float, TopicInfo]] = {}

    def find(self, topic: str) -> TopicInfo:
        """The topic's partition count and limit."""
        if topic not in self._known or time.monotonic() - self._known[topic][0] > MAX_AGE_S:
            self._known[topic] = (time.monotonic(), self._ask(topic))
        return self._known[topic][1]

    def forget(self) -> None:
        """Asks again before it answers: an attempt may have failed for a topic that is not as it was."""
        self._known = {topic: (-math.inf, info) for topic, (_, info) in self._known.items()}

    def known(self) -> dict[str, TopicInfo]:
        """What is known of all topics that were asked for, no older than an answer: tasks of one batch must not differ in it."""
        found: dict[str, TopicInfo] = {}
        for topic in list(self._known):
            try:
                found[topic] = self.find(topic)
            except TopicMissing:  # perhaps nobody writes it any more; a task that does will say so
                del self._known[topic]
        return found

    def _ask(self, topic: str) -> TopicInfo:
        partitions = self._client.topics([topic], refresh=True)[topic].partition_count
        return TopicInfo(partitions, max_message_bytes(self._client, topic))
