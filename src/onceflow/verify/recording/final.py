"""The last read: every partition from its beginning to its end, when nothing is written any more."""

from __future__ import annotations

import time
import uuid

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from onceflow.errors import RequestFailed
from onceflow.verify.recording.messages import place_of, row_of
from onceflow.verify.recording.tables import READ, Chunks, Clock, Place

PATIENCE_S = 300.0
_RECORDS = 1000
_POLL_S = 1.0


def read_all(
    bootstrap_servers: str, ends: pa.Table, *, clock: Clock = time.monotonic, patience_s: float = PATIENCE_S
) -> pa.Table:
    """All committed records (``tables.READ``) of the partitions in ``ends`` (``tables.ENDS``), up to the stable ends there.

    One ``op`` a partition. Raises RequestFailed if the ends are not reached in time.
    """
    reader = _FinalReader(bootstrap_servers, ends, clock)
    try:
        return reader.read(time.monotonic() + patience_s)
    finally:
        reader.close()


def committed_reader(bootstrap_servers: str, **options: object) -> Consumer:
    """A consumer that reads what is committed, and says where a position is no longer there instead of going elsewhere."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"onceflow-verify-{uuid.uuid4().hex[:8]}",  # asked for by librdkafka; nothing is committed
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            **options,
        }
    )


class _FinalReader:
    def __init__(self, bootstrap_servers: str, ends: pa.Table, clock: Clock) -> None:
        self._clock = clock
        rows = ends.to_pylist()
        self._position: dict[Place, int] = {(row["topic"], row["partition"]): row["start"] for row in rows}
        self._end: dict[Place, int] = {(row["topic"], row["partition"]): row["stable"] for row in rows}
        self._op = {at: number for number, at in enumerate(self._position)}
        self._unread = {at for at, end in self._end.items() if self._position[at] < end}
        self._records = Chunks(READ)
        self._consumer = committed_reader(bootstrap_servers, **{"enable.partition.eof": True})

    def close(self) -> None:
        self._consumer.close()

    def read(self, deadline: float) -> pa.Table:
        self._consumer.assign([TopicPartition(*at, self._position[at]) for at in sorted(self._unread)])
        while self._unread:
            if time.monotonic() > deadline:
                raise RequestFailed(
                    f"the final read did not reach the ends of {_names(self._unread)}",
                    action="see whether the brokers are healthy; the run proves nothing",
                )
            messages = self._consumer.consume(_RECORDS, _POLL_S)
            self._records.extend(row for message in messages if (row := self._row(message)) is not None)
        return self._records.table()

    def _row(self, message: Message) -> tuple[object, ...] | None:
        error = message.error()
        if error is not None:
            self._told(error, message)
            return None
        topic, partition, offset = place_of(message)
        at = (topic, partition)
        if not self._position[at] <= offset < self._end[at]:
            return None  # a client that was cut off may begin again behind its position
        self._position[at] = offset + 1
        if offset + 1 >= self._end[at]:
            self._unread.discard(at)
        return row_of(message, self._clock(), self._op[at])

    def _told(self, error: KafkaError, message: Message) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  this is how confluent-kafka names it
            topic, partition, offset = place_of(message)
            if offset >= self._end[topic, partition]:
                self._unread.discard((topic, partition))
        elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            raise RequestFailed(f"the final read of {message.topic()}: {error.str()}", error=error.name())


def _names(places: set[Place]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(places))
