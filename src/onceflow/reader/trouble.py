"""What librdkafka reports, told apart: what passes by itself, and what ends the reader.

What it survives::

    a second process starts with the same group.instance.id; Kafka fences this one
    librdkafka says ``_FATAL`` once, without saying ``fatal()``, and is silent from then on: passed over, the reader would
    wait for ever and tell nobody
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError as Problem
from confluent_kafka import KafkaException

from onceflow.errors import ConfigurationError, EventsGone, NotAuthorized, ReaderReplaced, RequestFailed, TopicMissing

log = logging.getLogger("onceflow.reader")
T = TypeVar("T")

_UNAUTHORISED = {Problem.TOPIC_AUTHORIZATION_FAILED, Problem.GROUP_AUTHORIZATION_FAILED}
_REPLACED = tuple(Problem(code).str() for code in (Problem.FENCED_INSTANCE_ID, Problem.UNRELEASED_INSTANCE_ID))


def is_end(error: Problem) -> bool:
    """Whether it only says that the partition is read to its end."""
    return error.code() == Problem._PARTITION_EOF  # noqa: SLF001


def check(error: Problem, where: str, position: int | None = None) -> None:
    """Logs what passes by itself, raises what does not."""
    code = error.code()
    if code == Problem._AUTO_OFFSET_RESET:  # noqa: SLF001
        raise EventsGone(
            f"{where}: offset {position}, the next to be handled, is not in the topic: {error.str()}",
            action="events were deleted before they were handled, or the topic was made anew, or retention took all but the "
            "end of a transaction (then the topic begins at the very next offset, and nothing is lost). Check the topic's "
            "retention; a new group begins where the topic does, and so does this one after kafka-consumer-groups "
            "--reset-offsets --to-earliest, with lost_store='accept'",
        )
    is_fatal = error.fatal() or code == Problem._FATAL  # noqa: SLF001
    if is_fatal and any(text in error.str() for text in _REPLACED):  # the cause stands in the text alone
        raise ReaderReplaced(
            f"another reader with the same group_instance_id runs: {error.str()}",
            action="give each process of the group its own group_instance_id",
        )
    if code == Problem.UNKNOWN_TOPIC_OR_PART:
        raise TopicMissing(f"{where}: {error.str()}", action="create the topic")
    if code in _UNAUTHORISED:
        raise NotAuthorized(f"{where}: {error.str()}", action="grant READ on the topics and on the group")
    if is_fatal:
        raise RequestFailed(f"{where}: {error.str()}", error=error.name())
    log.info("%s: %s", where, error.str())


def opened(make: Callable[[], T]) -> T:
    """A client that librdkafka makes. Raises ConfigurationError with what it says."""
    try:
        return make()
    except KafkaException as error:
        raise ConfigurationError.of("the reader's Kafka settings", [error.args[0].str()]) from error
