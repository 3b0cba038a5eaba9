"""Services in processes of their own: they write numbered events in transactions, or without, and are killed where they are told.

Blocks of 5 events up to 15, progress in the marker (with a transactional id), in consumed offsets (a topic is copied) or in
nothing at all (without). The signal comes at the step, of block 1 if it is one of a block. A block that was aborted is run again.

Run as a program it is where they come from (``tests/forkserver.py``).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from tests.forkserver import serve
from tests.writer.on_a_loop import OnLoop

from onceflow.errors import DeliveryFailed, Fenced, TransactionAborted
from onceflow.writer.coordination import State, Transactions
from onceflow.writer.ledger import Ledger
from onceflow.writer.sender import Sender
from onceflow.writer.writer import Writer

BLOCKS, EVENTS = 3, 5
STEPS = (
    *("opened", "probing", "probed", "read", "claiming", "claimed"),
    *("begun", "sent", "acknowledged", "marked", "ended"),
)
RECOVERY = ("aborted", "looked", "fenced", "probing-again", "probed-again", "found")
"""The steps after a block with an event that the broker refuses, of a topic that takes no more than ``SMALL_BYTES``."""
SMALL_BYTES = 2000
SOURCE_PARTITIONS = 2
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Job:
    """One life. ``name``: the transactional id, if there is one. ``step``: where ``signal`` comes, if any does.

    ``on_a_loop``: an AsyncWriter writes. ``kafka``: options of its client. ``copies``: the topic whose events it sends on, as a
    member of ``group``, with the options ``consumer``. ``apart``: as a control, its offsets are committed behind the transaction.
    """

    servers: str
    name: str | None
    topic: str
    step: str = ""
    signal: int = int(signal.SIGKILL)
    on_a_loop: bool = False
    kafka: dict[str, Any] | None = None
    copies: str = ""
    group: str = ""
    consumer: dict[str, Any] = field(default_factory=dict)
    apart: bool = False


class Interrupt:
    """Sends this process the job's signal at the end of a method of its step, the first time that a condition holds."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self) -> None:
        os.kill(os.getpid(), self._job.signal)

    def after(self, owner: type, method: str, when: Callable[[Any], bool]) -> None:
        original = getattr(owner, method)

        def wrapped(owned: Any, *arguments: Any, **options: Any) -> Any:
            result = original(owned, *arguments, **options)
            if when(owned):
                setattr(owner, method, original)
                self()
            return result

        setattr(owner, method, wrapped)

    def arm(self) -> None:
        if self._job.step in ENDS_OF:
            self.after(*ENDS_OF[self._job.step])


def always(_: Any) -> bool:
    return True


def in_block_one(transactions: Transactions) -> bool:
    return transactions.marker.number >= 1


def in_open_block_one(transactions: Transactions) -> bool:
    """And not before it: who is put out of its group in a block takes its id anew, and probes."""
    return in_block_one(transactions) and transactions.state is State.OPEN


def in_block_two(transactions: Transactions) -> bool:
    return transactions.marker.number == 2


flushes, entries = itertools.count(), itertools.count()
ENDS_OF: dict[str, tuple[type, str, Callable[[Any], bool]]] = {
    "opened": (Transactions, "_fence", always),
    "probing": (Transactions, "_enter", always),
    "probed": (Transactions, "_commit_alone", always),
    "read": (Ledger, "read_with_nonce", always),
    "claiming": (Transactions, "_enter", lambda _: next(entries) == 1),
    "claimed": (Transactions, "_claim", always),
    "begun": (Transactions, "begin", in_block_one),
    "consumed": (Transactions, "add_offsets", in_block_one),
    "acknowledged": (Sender, "flush", lambda _: next(flushes) == 1),
    "marked": (Transactions, "_enter", in_open_block_one),
    "ended": (Transactions, "settle", in_block_two),
    "aborted": (Transactions, "abort", in_block_one),
    "looked": (Ledger, "read", always),
    "fenced": (Transactions, "_fence", in_block_one),
    "probing-again": (Transactions, "_enter", in_block_one),
    "probed-again": (Transactions, "_commit_alone", in_block_one),
    "found": (Transactions, "_final_marker", always),
}
"""The method behind which each step comes; "sent" lies between two of them."""


class Disturbance:
    """What comes in the middle of block 1, once: an event that is refused, or the signal behind events that were sent."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._left = {job.step}
        self._interrupt = Interrupt(job)
        self._interrupt.arm()

    def before(self, writer: Writer | OnLoop, block: int) -> None:
        if block == 1 and self._left & {*RECOVERY}:
            self._left.clear()
            writer.send(self._job.topic, os.urandom(3 * SMALL_BYTES), id="refused")

    def behind(self, writer: Writer | OnLoop, block: int) -> None:
        if block == 1 and "sent" in self._left:
            self._left.clear()
            writer.flush()
            self._interrupt()


def writer_of(job: Job) -> Writer | OnLoop:
    kafka = {**(job.kafka or {}), **({"compression.type": "gzip"} if job.step in RECOVERY else {})}
    kind: type[Writer | OnLoop] = OnLoop if job.on_a_loop else Writer
    return kind(bootstrap_servers=job.servers, source="victim", transactional_id=job.name, kafka=kafka)


def in_transactions(job: Job) -> None:
    disturbance = Disturbance(job)
    with writer_of(job) as writer:
        while (block := int(writer.progress or 0)) < BLOCKS:
            with contextlib.suppress(TransactionAborted, DeliveryFailed), writer.transaction(progress=str(block + 1)):
                disturbance.before(writer, block)
                for n in range(block * EVENTS, (block + 1) * EVENTS):
                    writer.send(job.topic, str(n), position=("numbers", n))
                disturbance.behind(writer, block)


class Numbers:
    """The events that a job copies, as its group is handed them."""

    def __init__(self, job: Job) -> None:
        safe = {"enable.auto.commit": False, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        options = {"bootstrap.servers": job.servers, "group.id": job.group, "log_level": 0, **job.consumer}
        self.consumer = Consumer({**options, **safe})
        self.consumer.subscribe([job.copies])
        self._partitions = [TopicPartition(job.copies, partition) for partition in range(SOURCE_PARTITIONS)]

    def close(self) -> None:
        self.consumer.close()

    def join(self) -> None:
        """Until it is a member; what it is handed meanwhile belongs to no block."""
        while not self.consumer.assignment():
            self._consume(1)
        self.go_back()

    def go_back(self) -> None:
        for at in self._committed(self.consumer.assignment()):
            try:
                self.consumer.seek(TopicPartition(at.topic, at.partition, max(at.offset, 0)))
            except KafkaException as error:  # only just assigned, it begins there anyway
                if error.args[0].code() != KafkaError._STATE:
                    raise

    @property
    def done(self) -> int:
        """How many of them the group has committed."""
        return sum(max(at.offset, 0) for at in self._committed(self._partitions))

    def _committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return self.consumer.committed(partitions, timeout=60) if partitions else []

    def block(self) -> list[Message]:
        """As many as a block has; fewer where the group has put the member out: the rest may be another's by now."""
        found: list[Message] = []
        member = self.consumer.memberid()
        while len(found) < EVENTS and self.consumer.assignment() and self.consumer.memberid() == member:
            found += self._consume(EVENTS - len(found))
        return found

    def _consume(self, count: int) -> list[Message]:
        """Raises Fenced where another process has taken the member's place."""
        handed_out = self.consumer.consume(count, timeout=_LOOK_S)
        errors = {error.code() for message in handed_out if (error := message.error())}
        if errors & {KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID}:
            raise Fenced("the member was replaced")
        return [] if errors else handed_out


def copying(job: Job) -> None:
    """The writer first: it ends what its predecessor left open, and a consumer that asks where to begin would wait for that."""
    disturbance = Disturbance(job)
    with writer_of(job) as writer, closing(Numbers(job)) as numbers:
        numbers.join()
        while (done := numbers.done) < BLOCKS * EVENTS:
            block = done // EVENTS
            try:
                with writer.transaction(consumer=numbers.consumer) as transaction:
                    disturbance.before(writer, block)
                    for message in numbers.block():
                        key, number = message.key(), int(message.value() or b"")
                        writer.send(job.topic, str(number), key=key, position=("numbers", number))
                    disturbance.behind(writer, block)
                    transaction.consumed(numbers.consumer, {} if job.apart else None)
                if job.apart:
                    numbers.consumer.commit(asynchronous=False)
            except (TransactionAborted, DeliveryFailed):
                numbers.join()


def undefended(job: Job) -> None:
    with Writer(bootstrap_servers=job.servers, source="victim") as writer:
        for n in range(BLOCKS * EVENTS):
            writer.send(job.topic, str(n), position=("numbers", n))
        writer.flush()
        if job.step:
            Interrupt(job)()


def _live(fields: dict[str, Any], told: dict[str, Any]) -> None:
    job = Job(**fields)
    if job.name is None:
        undefended(job)
    elif job.copies:
        copying(job)
    else:
        in_transactions(job)


if __name__ == "__main__":
    serve(_live)
