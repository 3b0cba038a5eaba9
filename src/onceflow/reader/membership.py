"""What Kafka says of a member of the group: asked before a partition is taken again, and by a member that has none.

What it survives::

    A owns a partition of which nothing was ever handled, and is stopped; B takes it and handles its first events
    A wakes, is refused by the store, and has no position to commit, so no commit can tell it that it is no member any more
    the group's own description tells: A is not in it, and leaves B alone

    A is put out of its group (stopped for longer than its session) while it takes its partitions, and commits
    Kafka says that it knows no such member. In the callback A cannot join again, so repeating that is of no use: it goes back
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from onceflow.kafka.admin import LONGEST_S
from onceflow.reader.settings import ReaderSettings

log = logging.getLogger("onceflow.reader")
_librdkafka = logging.getLogger("onceflow.kafka.librdkafka")


_PUT_OUT = {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.FENCED_MEMBER_EPOCH}


class PutOut(Exception):
    """Kafka does not know the consumer as a member of the group any more; librdkafka hears of it by itself, and joins again."""


def is_put_out(error: KafkaError) -> bool:
    """Whether a request was refused for that."""
    return error.code() in _PUT_OUT


class Membership:
    """Asks for the group's description. Every answer is no where it cannot be had."""

    def __init__(self, settings: ReaderSettings) -> None:
        self._settings = settings

    def owns(self, member_id: str, topic: str, partition: int) -> bool:
        """Whether the member owns the partition; no also while the group is being rebalanced."""
        return (topic, partition) in (_assignments(self._described()).get(member_id) or ())

    def has_none(self, member_id: str) -> bool:
        """Whether it is a member of the group, which is not being rebalanced, and has no partition."""
        group = self._described()
        if group is None or group.state is not ConsumerGroupState.STABLE:
            return False
        return _assignments(group).get(member_id) == set()

    def _described(self) -> Any:
        group = self._settings.group
        try:
            wait_s = min(self._settings.answer_s, LONGEST_S)
            asked = self._admin.describe_consumer_groups([group], request_timeout=wait_s)
            return asked[group].result()
        except KafkaException as error:
            log.info("the group %s cannot be described: %s", group, error.args[0].str())
            return None

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self._settings.cluster.for_librdkafka(), logger=_librdkafka)


def _assignments(group: Any) -> dict[str, set[tuple[str, int]]]:
    """The partitions of each member."""
    return {
        member.member_id: {(each.topic, each.partition) for each in member.assignment.topic_partitions}
        for member in (group.members if group is not None else ())
        if member.assignment is not None
    }
