"""Records in and out of a topic by hand, to try a pipeline."""

from __future__ import annotations

import logging
import time
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka import KafkaError as Problem

from onceflow.errors import (
    BrokerUnreachable,
    ConfigurationError,
    KafkaError,
    OnceflowError,
    RecordTooLarge,
    RequestFailed,
    TopicMissing,
)
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.groupless import record_in
from onceflow.kafka.missing import meant
from onceflow.kafka.settings import ClusterSettings

PATIENCE_S = 30.0
_POLL_S = 0.1
_LOOK_EVERY_S = 5.0  # for partitions that are added to a topic that is followed
_LOOK_S = 2.0
_librdkafka = logging.getLogger("onceflow.kafka.librdkafka")  # what matters of its log comes as errors too

OnDelivery = Callable[[Problem | None, Message], None]


@dataclass(frozen=True, slots=True)
class Record:
    """A record as people read it; bytes that are no UTF-8 are replaced."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: str | None


def send_lines(settings: ClusterSettings, topic: str, lines: Iterable[str | bytes], key: str | bytes | None) -> int:
    """Sends every line, waits until all are acknowledged, and counts them. Ends at the first one that is refused.

    Raises TopicMissing, RecordTooLarge, KafkaError.
    """
    partitions_of(settings, topic)
    producer = Producer({**settings.for_librdkafka(), "enable.idempotence": True}, logger=_librdkafka)
    failed: list[str] = []

    def told(error: Problem | None, _: Message) -> None:
        if error is not None:
            failed.append(error.str())

    count = 0
    for line in lines:
        refused = _hand_over(producer, topic, line, key, told)
        if refused is not None:
            left = _drained(producer)
            raise _refused(refused, f"line {count + 1:,} for {topic} ({len(line):,} bytes)", count - len(failed) - left)
        count += 1
        if failed:
            break
    left = _drained(producer)
    if failed or left:
        raise KafkaError(f"{len(failed) + left} of {count} records were not acknowledged: {failed[:1] or 'in time'}")
    return count


def _hand_over(
    producer: Producer, topic: str, line: str | bytes, key: str | bytes | None, told: OnDelivery
) -> Problem | None:
    """Puts a line into the producer's queue, as soon as there is room; the reason why it may not. Calls what was answered."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            producer.produce(topic, line, key, on_delivery=told)
            producer.poll(0)
        except BufferError:
            producer.poll(_POLL_S)
            if time.monotonic() > deadline:
                raise KafkaError(
                    f"{topic}: nothing was acknowledged for {PATIENCE_S:.0f} s", action="start again"
                ) from None
        except KafkaException as error:
            reason: Problem = error.args[0]
            return reason
        else:
            return None


def _drained(producer: Producer) -> int:
    """Waits as long as records are acknowledged: how many were not in the end."""
    left, before = len(producer), 0
    while left and left != before:
        left, before = producer.flush(PATIENCE_S), left
    return left


def _refused(reason: Problem, line: str, sent: int) -> KafkaError | RecordTooLarge:
    kept = f"of the lines before it {sent:,} are in the topic, of those behind it none"
    if reason.code() == Problem.MSG_SIZE_TOO_LARGE:
        return RecordTooLarge(
            f"{line} is longer than Kafka's clients send, 1,000,000 bytes", action=f"split it; {kept}"
        )
    return KafkaError(f"{line} was not sent: {reason.str()}", action=f"see the reason; {kept}")


def read_committed(settings: ClusterSettings, topic: str) -> Iterator[Record]:
    """Every committed record up to the end that the topic has now. Raises TopicMissing, RequestFailed, BrokerUnreachable."""
    for message in committed_messages(settings, topic):
        offset = message.offset() or 0
        yield Record(topic, message.partition() or 0, offset, text_of(message.key()), text_of(message.value()))


def committed_messages(
    settings: ClusterSettings, topic: str, only: Collection[int] | None = None, *, follow: bool = False
) -> Iterator[Message]:
    """The committed records of a topic, or of ``only`` these partitions, from the beginning.

    Partition by partition up to the end that each has now; with ``follow`` as they come, without end, whatever becomes of the
    brokers meanwhile. Raises TopicMissing, RequestFailed, BrokerUnreachable, ConfigurationError for a partition that the topic
    does not have.
    """
    known = partitions_of(settings, topic)
    _check_partitions(topic, known, only or ())
    partitions = [number for number in known if only is None or number in only]
    admin = ClusterAdmin(settings)
    ends = admin.end_offsets([(topic, p) for p in partitions])
    options = {
        "group.id": "onceflow-read",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "check.crcs": True,
    }
    consumer = Consumer({**settings.for_librdkafka(), **options, "auto.offset.reset": "earliest"}, logger=_librdkafka)
    try:
        if follow:
            yield from _followed(consumer, ClusterAdmin(settings, patience_s=_LOOK_S), topic, partitions, only)
        for partition in partitions:
            yield from _partition(consumer, admin, topic, partition, ends[topic, partition])
    finally:
        consumer.close()


def _followed(
    consumer: Consumer, admin: ClusterAdmin, topic: str, partitions: Iterable[int], only: Collection[int] | None
) -> Iterator[Message]:
    """Without end; of partitions that the topic gets meanwhile as well, unless it is ``only`` some that are wanted."""
    followed: set[int] = set()
    while True:
        new = sorted(set(partitions) - followed)
        if new:
            consumer.incremental_assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in new])
            followed.update(new)
        looks_at = time.monotonic() + _LOOK_EVERY_S
        while only is not None or time.monotonic() < looks_at:
            yield from _polled(consumer, topic)
        try:
            partitions = admin.partitions().get(topic, ())
        except OnceflowError as error:
            if not error.retriable:  # brokers that are away are waited for, as by the consumer
                raise


def _check_partitions(topic: str, known: Collection[int], wanted: Collection[int]) -> None:
    missing = sorted(set(wanted) - set(known))
    if missing:
        there = f"its partitions are {min(known)} to {max(known)}" if len(known) > 1 else "it has partition 0 alone"
        mistakes = [f"--partition {number}: topic {topic} has no such partition; {there}" for number in missing]
        raise ConfigurationError.of("the command line", mistakes)


def _partition(consumer: Consumer, admin: ClusterAdmin, topic: str, partition: int, end: int) -> Iterator[Message]:
    """Up to ``end``; the last offsets may be transaction markers, which only the position tells.

    A consumer waits for brokers that are gone without an end. What is aborted passes unseen, however much it is, so one that
    gives nothing for long says nothing yet: the brokers are asked whether they are there.
    """
    first = _first_offset(consumer, admin, topic, partition)
    if first >= end:
        return
    place, reached, moved_at = TopicPartition(topic, partition, first), first, time.monotonic()
    consumer.assign([place])
    while (now := consumer.position([place])[0].offset) < end:
        if now > reached:
            reached, moved_at = now, time.monotonic()
        elif time.monotonic() > moved_at + PATIENCE_S:
            admin.end_offsets([(topic, partition)])
            moved_at = time.monotonic()
        yield from _polled(consumer, topic)


def _first_offset(consumer: Consumer, admin: ClusterAdmin, topic: str, partition: int) -> int:
    try:
        found = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_S)
    except KafkaException as error:
        reason: Problem = error.args[0]
        admin.end_offsets([(topic, partition)])  # says so where the brokers are gone
        raise RequestFailed(
            f"the beginning of {topic}-{partition}: {reason.str()}", action="start again", error=reason.name()
        ) from None
    if found is None:
        raise BrokerUnreachable(
            f"the beginning of {topic}-{partition} was not answered for {PATIENCE_S:.0f} s",
            action="check the cluster, then start again",
        )
    first: int = found[0]
    return first


def _polled(consumer: Consumer, topic: str) -> Iterator[Message]:
    message = consumer.poll(0.2)
    if message is None:  # not `not message`: a tombstone is falsy
        return
    record = record_in(message, topic)
    if record is not None:
        yield record


def partitions_of(settings: ClusterSettings, topic: str) -> tuple[int, ...]:
    """The topic's partitions. Raises TopicMissing."""
    admin = ClusterAdmin(settings)
    if admin.missing([topic]):
        raise TopicMissing(
            f"topic {topic} does not exist",
            action=f"create it, or correct the name; {meant([topic], admin.partitions())}",
            topics=(topic,),
        )
    return admin.partitions()[topic]


def base64_of(value: str | bytes | None) -> str | None:
    """Bytes that are no text, so that none of them is lost; None for a text, which says all by itself."""
    if not isinstance(value, bytes):
        return None
    try:
        value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode()
    return None


def text_of(value: str | bytes | None) -> str | None:
    """Bytes as people read them."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
