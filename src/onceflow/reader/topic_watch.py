"""Whether the topics are still there, and the same: asked now and then, because librdkafka says nothing of it.

What it survives::

    a topic is deleted under a running reader
    librdkafka goes on asking for it, or the group takes its partitions away, and no error comes: the reader would wait for ever

    it is deleted and made anew, and gets more events than the old one had
    the reader would go on in the middle of it

    a broker that has just started does not know the topic yet
    it counts as missing when a second question, a moment later, says so too; so it does where librdkafka was told that first,
    and where librdkafka is told so again between the two

    the brokers do not answer
    nobody waits for the answer; the next question comes as it would have come
"""

from __future__ import annotations

import logging
import time

from confluent_kafka import KafkaError, KafkaException

from onceflow.errors import TopicMissing
from onceflow.reader.same_topics import SameTopics
from onceflow.reader.topic_ids import Answers, number_of

log = logging.getLogger("onceflow.reader")
LOOK_EVERY_S = 30.0
LOOK_AGAIN_S = 1.0


class TopicWatch:
    """``look`` belongs into every round of the loop: it costs nothing while nothing is due."""

    def __init__(self, topics: tuple[str, ...], same: SameTopics) -> None:
        self._topics = topics
        self._same = same
        self._answers: Answers = {}
        self._missing: set[str] = set()
        self._ask_at = time.monotonic() + LOOK_EVERY_S

    def ask_soon(self) -> None:
        """A broker has said that it does not know one of them. That the second question comes later stays so."""
        if not self._missing:
            self._ask_at = time.monotonic()

    def look(self) -> None:
        """Raises TopicMissing, and EventsGone for a topic that was made anew."""
        if self._answers:
            if all(answer.done() for answer in self._answers.values()):
                self._judge()
        elif time.monotonic() >= self._ask_at:
            self._answers = self._same.ids.ask(self._topics)

    def _judge(self) -> None:
        missing = {topic for topic in self._topics if self._is_missing(topic)}
        gone = sorted(missing & self._missing)
        if gone:
            raise TopicMissing(
                f"topics that were deleted while they were read: {', '.join(gone)}",
                action="what was handled stays so; create them anew and take another group, or leave them out",
                topics=tuple(gone),
            )
        self._missing = missing
        self._answers = {}
        self._ask_at = time.monotonic() + (LOOK_AGAIN_S if missing else LOOK_EVERY_S)

    def _is_missing(self, topic: str) -> bool:
        """Raises EventsGone for another topic of that name."""
        try:
            self._same.compare(topic, number_of(self._answers[topic].result()))
        except KafkaException as error:
            problem = error.args[0]
            if problem.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return True
            log.info("%s: whether it is still there is not known: %s", topic, problem.str())
        return False
