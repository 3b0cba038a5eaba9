"""What librdkafka says of a right that the principal lacks.

Mostly a code. Where it wraps the refusal in an error of its own (a fatal one of the consumer protocol, the reason of an aborted
transaction), the text alone says it.
"""

from __future__ import annotations

from confluent_kafka import KafkaError as Problem

_CODES = frozenset(
    {
        Problem.TOPIC_AUTHORIZATION_FAILED,
        Problem.GROUP_AUTHORIZATION_FAILED,
        Problem.CLUSTER_AUTHORIZATION_FAILED,
        Problem.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


def is_denied(error: Problem) -> bool:
    """Whether a right is lacking, which no repetition grants."""
    return error.code() in _CODES or tells_of_denial(error.str())


def tells_of_denial(text: str) -> bool:
    """The same of an error of which only the text is left."""
    return "authorization failed" in text


def may_be_hidden(right: str, topic: str) -> str:
    """What to do about a topic that is not seen: it may be missing, or be hidden from who has no right to it."""
    return f"grant {right} on the topic {topic}, or it is hidden; where it is missing, CREATE too"
