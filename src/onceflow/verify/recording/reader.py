"""A reader beside the run: what a ``read_committed`` consumer sees, and when.

It reads partitions by assignment and keeps its positions itself, so that no fault makes it skip or repeat::

    a broker dies, and librdkafka goes on behind the position that it had    what was read before is passed over (``again``)
    the position is out of range, for the log lost what was acknowledged     librdkafka would begin elsewhere: it is told to
                                                                             say so, and is assigned the position once more

A record that it skips all the same is found by the checker: the final read knows that it was there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Self

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from onceflow.errors import VerificationError
from onceflow.verify.recording.final import committed_reader
from onceflow.verify.recording.messages import Row, place_of, row_of
from onceflow.verify.recording.tables import READ, Chunks, Clock, Place

_RECORDS = 500
_POLL_S = 0.2
_METADATA_S = 2.0
_LOOK_S = 3.0  # between looks for partitions that were added
_END_S = 60.0


class ReadCommittedRecorder:
    """Reads ``topics`` from their beginning in a thread of its own, from ``start`` until ``stop``."""

    def __init__(self, bootstrap_servers: str, topics: Iterable[str], *, clock: Clock = time.monotonic) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topics = tuple(sorted(set(topics)))
        self._clock = clock
        self._records = Chunks(READ)
        self._position: dict[Place, int] = {}
        self._op = 0
        self._look_at = 0.0
        self._ending = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="verify-reader", daemon=True)
        self.again = 0  # records that the client gave a second time; they are not in the table
        self.reconnected = 0

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> pa.Table:
        """Ends the thread; gives what was read (``tables.READ``). Raises what ended the thread before: much was not read then."""
        self._ending.set()
        self._thread.join(_END_S)
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise VerificationError(f"the reader beside the run did not end within {_END_S:.0f} s")
        return self.table()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def table(self) -> pa.Table:
        """What was read so far (``tables.READ``)."""
        return self._records.table()

    @property
    def positions(self) -> dict[Place, int]:
        """The offset after the last record read, for each partition that is read."""
        return dict(self._position)

    def _run(self) -> None:
        try:
            self._read_until_end()
        except Exception as error:  # noqa: BLE001  raised by stop, on a thread that somebody looks at
            self._error = error

    def _read_until_end(self) -> None:
        while not self._ending.is_set():
            consumer = committed_reader(self._bootstrap_servers)
            try:
                self._read(consumer)
            except KafkaException:
                self.reconnected += 1
                self._ending.wait(_POLL_S)
            finally:
                consumer.close()

    def _read(self, consumer: Consumer) -> None:
        """Raises KafkaException when the client is to be replaced."""
        self._look_at = 0.0
        assigned: set[Place] = set()
        while not self._ending.is_set():
            assigned |= self._assign(consumer, assigned)
            messages = consumer.consume(_RECORDS, _POLL_S)
            self._records.extend(self._rows(messages))

    def _assign(self, consumer: Consumer, assigned: set[Place]) -> set[Place]:
        """The partitions that are new, now assigned at our own positions."""
        if time.monotonic() < self._look_at:
            return set()
        self._look_at = time.monotonic() + (_LOOK_S if assigned else _POLL_S)
        for at in self._partitions(consumer):
            self._position.setdefault(at, 0)
        new = set(self._position) - assigned
        if new:
            consumer.incremental_assign([TopicPartition(*at, self._position[at]) for at in sorted(new)])
        return new

    def _partitions(self, consumer: Consumer) -> list[Place]:
        try:
            topics = consumer.list_topics(timeout=_METADATA_S).topics
        except KafkaException:  # no broker answers now; what is assigned already is read on
            return []
        return [(name, number) for name in self._topics if name in topics for number in topics[name].partitions]

    def _rows(self, messages: list[Message]) -> list[Row]:
        at_s, rows = self._clock(), []
        for message in messages:
            error = message.error()
            if error is not None:
                if error.retriable() or not _is_final(error.name()):
                    continue
                raise KafkaException(error)
            if self._is_next(message):
                rows.append(row_of(message, at_s, self._op))
        self._op += bool(rows)
        return rows

    def _is_next(self, message: Message) -> bool:
        topic, partition, offset = place_of(message)
        if offset < self._position[topic, partition]:
            self.again += 1
            return False
        self._position[topic, partition] = offset + 1
        return True


def _is_final(name: str) -> bool:
    """Whether a consumer that says this reads no further; all else librdkafka mends by itself."""
    return name in ("_FATAL", "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_STATE")
