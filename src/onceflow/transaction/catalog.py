"""Which topics exist, how many partitions they have and what they accept, remembered for some minutes."""

from __future__ import annotations

import math
import time

from onceflow.errors import TopicMissing
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.missing import SURE_S
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
        if not self._is_fresh(topic):
            self._known[topic] = (time.monotonic(), self._ask(topic))
        return self._known[topic][1]

    def _is_fresh(self, topic: str) -> bool:
        return topic in self._known and time.monotonic() - self._known[topic][0] <= MAX_AGE_S

    def forget(self) -> None:
        """Asks again before it answers: an attempt may have failed for a topic that is not as it was."""
        self._known = {topic: (-math.inf, info) for topic, (_, info) in self._known.items()}

    def known(self) -> dict[str, TopicInfo]:
        """What is known of all topics that were asked for, no older than an answer: tasks of one batch must not differ in it."""
        for topic in [each for each in self._known if not self._is_fresh(each)]:
            try:
                self._known[topic] = (time.monotonic(), self._ask(topic, sure_s=0.0))
            except TopicMissing:  # perhaps nobody writes it any more; a task that does will look for itself
                del self._known[topic]
        return {topic: info for topic, (_, info) in self._known.items()}

    def _ask(self, topic: str, sure_s: float = SURE_S) -> TopicInfo:
        partitions = self._client.topics([topic], refresh=True, sure_s=sure_s)[topic].partition_count
        return TopicInfo(partitions, max_message_bytes(self._client, topic))
