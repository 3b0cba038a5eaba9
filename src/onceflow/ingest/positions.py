"""Where a source's committed positions are kept: a compacted topic, one record a position, as KIP-618 keeps Connect's.

A topic for each name: a reader of committed records ends at the first open transaction of the whole partition, so with one topic
for all, a transaction that another name left open would hide the newest positions of ours.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from onceflow.errors import ConfigurationError, RequestFailed, TopicMissing
from onceflow.kafka.client import KafkaClient, Pause
from onceflow.kafka.groupless import record_in
from onceflow.kafka.names import POSITIONS, is_pipeline
from onceflow.kafka.opened import opened
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.anchor import ensure_own_topic

_PARTITION = 0
_POLL_S = 0.05
_SILENCE_S = 1.0  # after that it is asked whether the topic is still there
_SEGMENT_BYTES = str(4 << 20)


def check_name(kind: str, name: str) -> None:
    """Raises ConfigurationError unless ``name`` can be part of a topic's name and of a transactional id."""
    if not is_pipeline(name):
        raise ConfigurationError(
            f"{name!r} is no name for an {kind}", action="use letters, digits, '.', '_' and '-', 200 at most"
        )


def positions_topic(kind: str, name: str) -> str:
    """The topic of one source."""
    return f"{POSITIONS}{kind}-{name}"


def ensure_positions_topic(client: KafkaClient, topic: str) -> None:
    """Creates it where it is missing, compacted, so that it grows with the positions and not with the commits.

    Compaction leaves out the segment that is written, which a start reads whole: so segments are small.
    """
    ensure_own_topic(client, topic, {"cleanup.policy": "compact", "segment.bytes": _SEGMENT_BYTES})


def as_records(positions: Mapping[str, str | None]) -> pa.RecordBatch:
    """The positions as rows to write; None becomes a tombstone."""
    keys, values = list(positions), list(positions.values())
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.string()), "value": pa.array(values, pa.string())})


def read_positions(settings: ClusterSettings, client: KafkaClient, topic: str) -> dict[str, str]:
    """Every committed position, for the one instance that may write them.

    Raises RequestFailed when the end is not reached within the client's patience, TopicMissing, BrokerUnreachable, NotAuthorized.
    """
    options = {
        "group.id": topic,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "check.crcs": True,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 10,
    }
    options = {**settings.for_librdkafka(), **options, "enable.partition.eof": True}
    consumer = opened(lambda: Consumer(options), "the Kafka settings")
    try:
        consumer.assign([TopicPartition(topic, _PARTITION, 0)])
        return _read_to_the_end(consumer, client, topic)
    finally:
        consumer.close()


def _read_to_the_end(consumer: Consumer, client: KafkaClient, topic: str) -> dict[str, str]:
    """Up to the end that the partition reports; a position would not do, it stays unset where only markers are left.

    librdkafka says nothing of a topic that is deleted under it::

        somebody deletes the topic; the controller says that it is done
        a start asks a broker that has not heard of it: there it is, and need not be made
        the broker hears of it; the consumer gets no record, no end and no error, as long as one waits
    """
    found: dict[str, str] = {}
    pause, silence = Pause(client.patience_s), Pause(_SILENCE_S)
    while not pause.expired:
        for message in consumer.consume(1000, _POLL_S):
            if _is_end(message):
                return found
            record = record_in(message, topic)
            if record is not None:
                silence = Pause(_SILENCE_S)
                _apply(found, _text(record.key()), _text(record.value()))
        if silence.expired:
            _check_there(client, topic)
            silence = Pause(_SILENCE_S)
    raise RequestFailed(f"the positions in {topic} could not be read to the end in time")


def _check_there(client: KafkaClient, topic: str) -> None:
    try:
        client.topics([topic], refresh=True)
    except TopicMissing as error:
        raise TopicMissing(
            f"topic {topic}, which holds the positions, was deleted while they were read",
            action="start again, in a new process: it is made anew then, and what is missing in it is told",
            topics=(topic,),
        ) from error


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001  the constant's public name


def _apply(found: dict[str, str], key: str | None, value: str | None) -> None:
    if key is not None and value is None:
        found.pop(key, None)
    elif key is not None and value is not None:
        found[key] = value


def _text(data: bytes | str | None) -> str | None:
    return data.decode() if isinstance(data, bytes) else data
