"""Which argument of ``send`` is of the wrong kind: looked for when the call has failed, so that a good event pays nothing."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onceflow.errors import EventRefused, WriterError
from onceflow.events import ID_HEADER, SOURCE_HEADER
from onceflow.kafka.names import no_nul

_PARAMETERS = {ID_HEADER: "id", SOURCE_HEADER: "source"}
"""The headers that the short way of ``send`` makes of arguments as they are."""
NOT_PAIRS = "headers must be pairs of a name and a value, as [('trace', b'1')]; of a mapping, its items()"
_CONSUMERS_METHODS = ("assignment", "committed", "consumer_group_metadata", "memberid", "position")


def refused(topic: object, name: object, mistakes: Sequence[str]) -> EventRefused:
    """The error of one event that is not sent."""
    return EventRefused(
        f"event {name!r} for {topic}: {'; '.join(mistakes)}",
        action="correct the call of send",
        mistakes=tuple(mistakes),
    )


def mistakes_of(
    value: object, key: object, headers: Sequence[object], partition: object, timestamp_ms: object
) -> list[str]:
    """Every argument that confluent-kafka cannot have taken."""
    found = [_data("value", value), _data("key", key)]
    found += [_header(each) for each in headers]
    found += [_number("partition", partition, 32), _number("timestamp_ms", timestamp_ms, 64) or _past(timestamp_ms)]
    return [text for text in found if text]


def _past(timestamp_ms: Any) -> str:
    negative = operator.index(timestamp_ms) < 0
    return f"timestamp_ms is {timestamp_ms}: Kafka has no time before 1970; 0 is now" if negative else ""


def place_mistakes(topic: object, partition: Any) -> list[str]:
    """What is wrong with a topic and a partition before anybody asks whether there are such."""
    found = [
        no_nul("topic", topic) if isinstance(topic, str) else f"topic must be a text, not {kind(topic)}",
        _number("partition", partition, 32)
        or ("" if operator.index(partition) >= -1 else f"partition {partition}: they begin at 0; -1 places by key"),
    ]
    return [text for text in found if text]


def no_such_partition(partition: int, count: int) -> str:
    """The mistake of a partition that a topic does not have."""
    there = f"{count} partitions, 0 to {count - 1}" if count > 1 else "partition 0 alone"
    return f"partition {partition}: the topic has {there}; leave it out to place by key"


def _header(pair: object) -> str:
    if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
        return NOT_PAIRS
    name, given = pair
    return _data(_PARAMETERS.get(name, f"headers: {name}"), given)


def _data(name: str, given: object) -> str:
    if isinstance(given, str):
        return not_utf8(name, given)
    return "" if given is None or isinstance(given, bytes) else f"{name} must be bytes, text or None, not {kind(given)}"


def not_utf8(name: str, text: str) -> str:
    """The mistake of a text with half a surrogate pair in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"{name} holds a lone surrogate, which UTF-8 cannot write"
    return ""


def _number(name: str, given: Any, bits: int) -> str:
    if not hasattr(given, "__index__"):
        return f"{name} must be a whole number, not {kind(given)}"
    return "" if operator.index(given).bit_length() < bits else f"{name} has more than {bits} bits"


def kind(given: object) -> str:
    """What it is, for people."""
    return "None" if given is None else type(given).__name__


def check_transaction(progress: object, consumer: object) -> None:
    """Raises WriterError for arguments of ``transaction`` that are something else."""
    if progress is not None and not isinstance(progress, str):
        raise WriterError(
            f"the progress must be a text, not {kind(progress)}",
            action="use: writer.transaction(progress=str(...)), and writer.transaction(consumer=...) for a consumer",
        )
    if isinstance(progress, str) and (problem := not_utf8("the progress", progress)):
        raise WriterError(problem, action="commit text that UTF-8 can write")
    if consumer is not None and not all(callable(getattr(consumer, name, None)) for name in _CONSUMERS_METHODS):
        raise WriterError(
            f"the consumer must be a confluent_kafka.Consumer, not {kind(consumer)}",
            action="give the consumer that the block's events come from",
        )


def settings_mistakes(bootstrap_servers: object, kafka: object, transactional_id: object, source: object) -> list[str]:
    """Arguments of a writer that are of the wrong kind."""
    kinds: list[tuple[str, object, Callable[[object], bool], str]] = [
        (
            "bootstrap_servers",
            bootstrap_servers,
            lambda it: isinstance(it, str),
            "a text: host:port, several with commas",
        ),
        ("kafka", kafka, lambda it: isinstance(it, Mapping), "a mapping of option names to values"),
        ("transactional_id", transactional_id, lambda it: it is None or isinstance(it, str), "a text or None"),
        ("source", source, lambda it: isinstance(it, str), "a text that names where the events come from"),
    ]
    unset = [name for name, value in kafka.items() if value is None] if isinstance(kafka, Mapping) else []
    return [
        *(f"{name}: must be {meant}, not {kind(it)}" for name, it, is_right, meant in kinds if not is_right(it)),
        *(f"{name}: is None (an environment variable that is not set?)" for name in unset),
    ]
