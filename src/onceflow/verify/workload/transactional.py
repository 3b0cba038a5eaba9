"""One transaction at a time over confluent-kafka, each with an outcome that is known or said to be unknown."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from onceflow.errors import RequestFailed
from onceflow.verify.java_partition import java_partition
from onceflow.verify.workload.inputs import Record

_librdkafka = logging.getLogger("onceflow.verify.librdkafka")
_librdkafka.addHandler(logging.NullHandler())  # who wants to see it says so

PATIENCE_S = 240.0  # for a producer that takes the place of another, through whatever fault
_STEP_S = 5.0  # the longest that a call of the client may block
_COMMIT_S = 30.0  # how long a commit that is not answered is asked again
_DELIVERY_S = 30.0
_PAUSE_S = 0.2
_LOOK_S = 5.0  # between looks for partitions that were added
_KEYS = 65_536  # whose partitions are remembered

# confluent-kafka raises a fatal error (fenced) in the middle of whatever call; if reports of deliveries come with it, Python
# finds their function returning "with an exception set", and makes a SystemError of it.
_FAILURES = (KafkaException, BufferError, SystemError)


@dataclass(slots=True)
class Send:
    """One record of a transaction; ``offset`` once it is acknowledged."""

    topic: str
    partition: int
    id: str
    record: Record
    offset: int | None = None
    failed: bool = False

    def told(self, error: KafkaError | None, message: Message) -> None:
        """librdkafka's delivery report."""
        self.failed = error is not None
        self.offset = None if self.failed else message.offset()


@dataclass(slots=True)
class Attempt:
    """A transaction and what became of it."""

    began_s: float
    sends: list[Send] = field(default_factory=list)
    status: str = "fail"

    def add(self, send: Send) -> None:
        self.sends.append(send)

    @property
    def delivered(self) -> bool:
        return all(send.offset is not None for send in self.sends)


class Client:
    """The producer of one transactional id, replaced after each error. When ``given_up``, it waits for no broker any more."""

    def __init__(
        self, bootstrap_servers: str, transactional_id: str, topics: Sequence[str], given_up: threading.Event
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._id = transactional_id
        self._topics = topics
        self._given_up = given_up
        self._partitions: dict[str, int] = {}
        self._look_at = 0.0
        self._producer: Producer | None = None

    def close(self) -> None:
        self._producer = None

    def placed(self, topic: str, record: Record, event_id: str, chance: random.Random) -> Send:
        """A record with the partition that it goes to: that of its key, or any."""
        count = self._count(topic)
        if record.key is None:
            return Send(topic, chance.randrange(count), event_id, record)
        return Send(topic, _partition_of(record.key, count), event_id, record)

    def commit(self, attempt: Attempt) -> None:
        """Writes and commits; the attempt then has its status."""
        with self._replacing() as producer:
            self._produce(producer, attempt)
            self._flush(producer, attempt)
            attempt.status = "info"
            _commit(producer)
            attempt.status = "ok"

    def abort(self, attempt: Attempt, *, flushed: bool) -> None:
        """Writes and aborts, ``flushed``: when all of it is in the log."""
        with self._replacing() as producer:
            self._produce(producer, attempt)
            if flushed:
                self._flush(producer, attempt)
            producer.abort_transaction(_DELIVERY_S)

    @contextlib.contextmanager
    def _replacing(self) -> Iterator[Producer]:
        """The producer to use. After an error it is not used again, and the attempt stays what it was when it came."""
        producer = self._ready()
        failed = True
        with contextlib.suppress(*_FAILURES):
            yield producer
            failed = False
        if failed:
            self._producer = None
            _empty(producer)

    def _ready(self) -> Producer:
        deadline = time.monotonic() + PATIENCE_S
        while self._producer is None:
            if self._given_up.is_set():
                raise RequestFailed("the writer of the input was given up before it had a producer")
            producer = self._new_producer()
            try:
                producer.init_transactions(_DELIVERY_S)
                self._producer = producer
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise RequestFailed(
                        f"the writer of the input gets no producer: {error.args[0].str()}",
                        action="see whether the brokers are healthy; the run proves nothing",
                    ) from None
                self._given_up.wait(_PAUSE_S)
        return self._producer

    def _new_producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "transactional.id": self._id,
                "transaction.timeout.ms": int(1000 * _DELIVERY_S),
                "delivery.timeout.ms": int(1000 * _DELIVERY_S),
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                "retry.backoff.max.ms": 200,
                "log_level": 0,
            },
            logger=_librdkafka,  # or it prints fatal errors, which are expected here, past everything
        )

    def _produce(self, producer: Producer, attempt: Attempt) -> None:
        producer.begin_transaction()
        for send in attempt.sends:
            producer.produce(
                send.topic,
                send.record.value,
                send.record.key,
                send.partition,
                on_delivery=send.told,
                headers=list(send.record.headers),
            )
            producer.poll(0)

    def _flush(self, producer: Producer, attempt: Attempt) -> None:
        deadline = time.monotonic() + _DELIVERY_S + _STEP_S
        while producer.flush(_STEP_S) and time.monotonic() < deadline and not self._given_up.is_set():
            pass
        if not attempt.delivered:
            raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))  # noqa: SLF001  the code's only name

    def _count(self, topic: str) -> int:
        """How many partitions a topic has, looked at now and then: a fault may add some."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            with contextlib.suppress(KafkaException):
                found = self._ready().list_topics(timeout=_STEP_S).topics
                self._partitions |= {name: len(found[name].partitions) for name in self._topics if name in found}
        if topic not in self._partitions:
            raise RequestFailed(f"the writer of the input finds no topic {topic}", action="create it first")
        return self._partitions[topic]


_partition_of = lru_cache(_KEYS)(java_partition)
"""The input is written as Java's producer writes it."""


def _empty(producer: Producer) -> None:
    """Takes in the reports of what a producer still holds: else they come while it is thrown away, wherever that happens."""
    for end in (producer.purge, lambda: producer.poll(0), lambda: producer.flush(_STEP_S)):
        with contextlib.suppress(*_FAILURES):  # a fatal error is told again by each of them
            end()


def _commit(producer: Producer) -> None:
    """Asks until it is answered or time runs out. Raises KafkaException: then the outcome is not known."""
    deadline = time.monotonic() + _COMMIT_S
    while True:
        try:
            producer.commit_transaction(_STEP_S)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return
