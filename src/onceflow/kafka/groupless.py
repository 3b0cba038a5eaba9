"""What a consumer polls that has partitions assigned by hand, and asks nothing of a group."""

from __future__ import annotations

from confluent_kafka import KafkaError as Problem
from confluent_kafka import Message

from onceflow.errors import NotAuthorized, RequestFailed


def record_in(message: Message, topic: str) -> Message | None:
    """The record; None for what is not about the topic. Raises NotAuthorized, RequestFailed."""
    error = message.error()
    if error is None:
        return message
    if error.code() == Problem.TOPIC_AUTHORIZATION_FAILED:
        raise NotAuthorized(f"{topic}: {error.str()}", action=f"grant READ on the topic {topic}")
    # librdkafka looks for the group's coordinator, whether or not anything is asked of the group.
    # And a partition that was added a moment ago is not known to every broker.
    if error.code() in (Problem.GROUP_AUTHORIZATION_FAILED, Problem._UNKNOWN_PARTITION):  # noqa: SLF001
        return None
    raise RequestFailed(f"{topic}: {error.str()}", error=error.name())
