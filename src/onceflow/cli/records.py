"""Records in and out of a topic by hand, to try a pipeline."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from onceflow.errors import ConfigurationError, KafkaError, RequestFailed, TopicMissing
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings

PATIENCE_S = 30.0
_librdkafka = logging.getLogger("onceflow.kafka.librdkafka")  # what matters of its log comes as errors too


@dataclass(frozen=True, slots=True)
class Record:
    """A record as people read it; bytes that are no UTF-8 are replaced."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: str | None


def send_lines(settings: ClusterSettings, topic: str, lines: Iterable[str | bytes], key: str | bytes | None) -> int:
    """Sends every line, waits until all are acknowledged, and counts them. Raises TopicMissing, KafkaError."""
    partitions_of(settings, topic)
    producer = Producer({**settings.for_librdkafka(), "enable.idempotence": True}, logger=_librdkafka)
    failed: list[str] = []
    count = 0
    for line in lines:
        producer.produce(topic, line, key, on_delivery=lambda error, _: failed.append(error.str()) if error else None)
        producer.poll(0)
        count += 1
    left = producer.flush(PATIENCE_S)
    if failed or left:
        raise KafkaError(f"{len(failed) + left} of {count} records were not acknowledged: {failed[:1] or 'in time'}")
    return count


def read_committed(settings: ClusterSettings, topic: str) -> Iterator[Record]:
    """Every committed record up to the end that the topic has now. Raises TopicMissing, RequestFailed."""
    for message in committed_messages(settings, topic):
        offset = message.offset() or 0
        yield Record(topic, message.partition() or 0, offset, text_of(message.key()), text_of(message.value()))


def committed_messages(
    settings: ClusterSettings, topic: str, only: Collection[int] | None = None, *, follow: bool = False
) -> Iterator[Message]:
    """The committed records of a topic, or of ``only`` these partitions, from the beginning.

    Partition by partition up to the end that each has now; with ``follow`` as they come, without end. Raises TopicMissing,
    RequestFailed, ConfigurationError for a partition that the topic does not have.
    """
    known = partitions_of(settings, topic)
    _check_partitions(topic, known, only or ())
    partitions = [number for number in known if only is None or number in only]
    ends = ClusterAdmin(settings).end_offsets([(topic, p) for p in partitions])
    options = {"group.id": "onceflow-read", "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({**settings.for_librdkafka(), **options, "auto.offset.reset": "earliest"}, logger=_librdkafka)
    try:
        if follow:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
            while True:
                yield from _polled(consumer)
        for partition in partitions:
            yield from _partition(consumer, topic, partition, ends[topic, partition])
    finally:
        consumer.close()


def _check_partitions(topic: str, known: Collection[int], wanted: Collection[int]) -> None:
    missing = sorted(set(wanted) - set(known))
    if missing:
        there = f"its partitions are {min(known)} to {max(known)}" if len(known) > 1 else "it has partition 0 alone"
        mistakes = [f"--partition {number}: topic {topic} has no such partition; {there}" for number in missing]
        raise ConfigurationError.of("the command line", mistakes)


def _partition(consumer: Consumer, topic: str, partition: int, end: int) -> Iterator[Message]:
    """Up to ``end``; the last offsets may be transaction markers, which only the position tells."""
    first, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_S)
    if first >= end:
        return
    place = TopicPartition(topic, partition, first)
    consumer.assign([place])
    while consumer.position([place])[0].offset < end:
        yield from _polled(consumer)


def _polled(consumer: Consumer) -> Iterator[Message]:
    message = consumer.poll(0.2)
    if message is None:
        return
    error = message.error()
    if error is None:
        yield message
    elif not error.retriable():
        raise RequestFailed(f"{message.topic()}-{message.partition()}: {error.str()}")


def partitions_of(settings: ClusterSettings, topic: str) -> tuple[int, ...]:
    """The topic's partitions. Raises TopicMissing."""
    known = ClusterAdmin(settings).partitions()
    if topic not in known:
        names = ", ".join(sorted(name for name in known if not name.startswith("__"))) or "none"
        raise TopicMissing(f"topic {topic} does not exist", action=f"topics are: {names}")
    return known[topic]


def text_of(value: str | bytes | None) -> str | None:
    """Bytes as people read them."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
