"""Whether Kafka says that a member of the group owns a partition: asked before a partition is taken again.

What it survives::

    A owns a partition of which nothing was ever handled, and is stopped; B takes it and handles its first events
    A wakes, is refused by the store, and has no position to commit, so no commit can tell it that it is no member any more
    the group's own description tells: A is not in it, and leaves B alone
"""

from __future__ import annotations

import logging

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from onceflow.reader.settings import ReaderSettings

log = logging.getLogger("onceflow.reader")
_librdkafka = logging.getLogger("onceflow.kafka.librdkafka")


def owns(settings: ReaderSettings, member_id: str, topic: str, partition: int) -> bool:
    """What the group's description says; False also where it cannot be had, or where the group is just being rebalanced."""
    admin = AdminClient(settings.cluster.for_librdkafka(), logger=_librdkafka)
    try:
        group = admin.describe_consumer_groups([settings.group], request_timeout=settings.patience_s)[
            settings.group
        ].result()
    except KafkaException as error:
        log.info("the group %s cannot be described: %s", settings.group, error.args[0].str())
        return False
    held = (
        (each.topic, each.partition)
        for member in group.members
        if member.member_id == member_id and member.assignment is not None
        for each in member.assignment.topic_partitions
    )
    return (topic, partition) in held
