"""What librdkafka reports, told apart: what passes by itself, and what ends the reader.

What it survives::

    a second process starts with the same group.instance.id; Kafka fences this one
    librdkafka says ``_FATAL`` once, without saying ``fatal()``, and is silent from then on: passed over, the reader would
    wait for ever and tell nobody

    a batch of records is damaged on its way or on a broker's disk, or of a kind that librdkafka cannot read
    librdkafka says so, and passes the batch over, or asks for it for ever: the reader ends before it handles what comes behind it
"""

from __future__ import annotations

import logging

from confluent_kafka import KafkaError as Problem

from onceflow.errors import EventsGone, NotAuthorized, ReaderReplaced, RequestFailed, TopicMissing
from onceflow.kafka.rights import is_denied

log = logging.getLogger("onceflow.reader")

_UNREADABLE = (
    Problem._BAD_MSG,  # noqa: SLF001
    Problem._BAD_COMPRESSION,  # noqa: SLF001
    Problem._NOT_IMPLEMENTED,  # noqa: SLF001
    Problem.MSG_SIZE_TOO_LARGE,
)
_REPLACED = tuple(Problem(code).str() for code in (Problem.FENCED_INSTANCE_ID, Problem.UNRELEASED_INSTANCE_ID))


def is_end(error: Problem) -> bool:
    """Whether it only says that the partition is read to its end."""
    return error.code() == Problem._PARTITION_EOF  # noqa: SLF001


def check(error: Problem, where: str, position: int | None = None, at: int | None = None) -> None:
    """Logs what passes by itself, raises what does not. ``position``: the next to be handled; ``at``: what the error is of."""
    code = error.code()
    if code == Problem._AUTO_OFFSET_RESET:  # noqa: SLF001
        which = f"offset {at}" if position is None else f"offset {position}, the next to be handled,"
        raise EventsGone(
            f"{where}: {which} is not in the topic: {error.str()}",
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
    if is_denied(error):
        what = "group" if "Group authorization" in error.str() else "topic"
        raise NotAuthorized(f"{where}: {error.str()}", action=f"grant READ on the {what}")
    if code in _UNREADABLE:
        raise RequestFailed(
            f"{where}: the records from offset {at} on cannot be read: {error.str()}",
            action="nothing from there on was handled. If the next start says the same, they are damaged on the broker's disk "
            "(let another replica lead the partition), or larger or compressed otherwise than librdkafka can read",
            error=error.name(),
            offset=at,
        )
    if is_fatal:
        raise RequestFailed(f"{where}: {error.str()}", error=error.name())
    log.info("%s: %s", where, error.str())
