"""A reader beside the run: what a ``read_committed`` consumer sees, and when.

It reads partitions by assignment and keeps its positions itself, so that no fault of ours makes it skip or repeat::

    the client fails for good, and is replaced                              the new one is assigned the position
    the position is out of range, for the log lost what was acknowledged    librdkafka would begin elsewhere: it is told to
                                                                            say so, and is assigned the position once more

What it is given is recorded as it was given, also a record that comes a second time (``again``): the checker calls that
``nonmonotonic_poll``, and compares both. A record that it skips is found as well: the final read knows that it was there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from onceflow.verify.recording.beside import Beside
from onceflow.verify.recording.final import committed_reader
from onceflow.verify.recording.messages import Row, place_of, row_of
from onceflow.verify.recording.tables import READ, Chunks, Clock, Place, last_offsets

_RECORDS = 500
_POLL_S = 0.2
_METADATA_S = 2.0
_LOOK_S = 3.0  # between looks for partitions that were added
_END_S = 60.0


class ReadCommittedRecorder(Beside):
    """Reads ``topics`` from their beginning in a thread of its own, from ``start`` until ``stop``."""

    def __init__(self, bootstrap_servers: str, topics: Iterable[str], *, clock: Clock = time.monotonic) -> None:
        super().__init__("verify-reader", "the reader beside the run", _END_S)
        self._bootstrap_servers = bootstrap_servers
        self._topics = tuple(sorted(set(topics)))
        self._clock = clock
        self._records = Chunks(READ)
        self._position: dict[Place, int] = {}
        self._op = 0
        self._look_at = 0.0
        self._changed = threading.Condition()  # its positions
        self.again = 0  # records that the client gave a second time
        self.reconnected = 0

    def table(self) -> pa.Table:
        """What was read so far (``tables.READ``)."""
        return self._records.table()

    def behind(self, final: pa.Table, patience_s: float) -> list[Place]:
        """Waits until it has read as far as the ``final`` read (``tables.READ``). The partitions where it does not come to that.

        ::

            reader   is refused whenever it asks for the partitions, or gets nothing any more: it has no records, and no error
            run      what was visible for a while, or read and then aborted, is looked for in what it saw: nothing
        """
        last = last_offsets(final)

        def not_reached() -> list[Place]:
            return sorted(at for at, offset in last.items() if self._position.get(at, 0) <= offset)

        with self._changed:
            self._changed.wait_for(lambda: not not_reached() or not self._thread.is_alive(), patience_s)
        return not_reached()

    @property
    def positions(self) -> dict[Place, int]:
        """The offset after the last record read, for each partition that is read."""
        return dict(self._position)

    def _work(self) -> None:
        while not self.ending.is_set():
            consumer = committed_reader(self._bootstrap_servers)
            try:
                self._read(consumer)
            except KafkaException:
                self.reconnected += 1
                self.ending.wait(_POLL_S)
            finally:
                consumer.close()

    def _read(self, consumer: Consumer) -> None:
        """Raises KafkaException when the client is to be replaced."""
        self._look_at = 0.0
        assigned: set[Place] = set()
        while not self.ending.is_set():
            assigned |= self._assign(consumer, assigned)
            self._take(consumer.consume(_RECORDS, _POLL_S))

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

    def _take(self, messages: list[Message]) -> None:
        """Records what came with one call. Raises KafkaException when the client is to be replaced; what came before that stays::

        one call gives records 5 and 6, and that the client has failed for good
        its successor is assigned 7; without 5 and 6 in the table it would seem to have skipped them
        """
        at_s, rows = self._clock(), list[Row]()
        try:
            for message in messages:
                if _is_record(message):
                    self._move(*place_of(message))
                    rows.append(row_of(message, at_s, self._op))
        finally:
            self._records.extend(rows)
            self._op += bool(rows)
            with self._changed:
                self._changed.notify_all()

    def _move(self, topic: str, partition: int, offset: int) -> None:
        self.again += offset < self._position[topic, partition]
        self._position[topic, partition] = max(self._position[topic, partition], offset + 1)


def _is_record(message: Message) -> bool:
    error = message.error()
    if error is not None and not error.retriable() and _is_final(error.name()):
        raise KafkaException(error)
    return error is None


def _is_final(name: str) -> bool:
    """Whether a consumer that says this reads no further; all else librdkafka mends by itself."""
    return name in ("_FATAL", "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_STATE")
