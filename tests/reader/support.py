"""What the reader's tests share: a ledger to count effects in, readers in processes of their own, events with ids.

What the ledger survives::

    a handler in the reader's thread inserts through the ledger's connection while the test counts through the same one
    the count holds an older snapshot, so the INSERT fails (SQLITE_BUSY_SNAPSHOT); before ``sqlite3`` asks the connection which
    error it was, a step of the count has set that to "no error": ``execute`` returns, and nothing was inserted

so effects are counted through a connection of its own. (Seen once in CI as an effect that was missing for ever, and without Kafka
or a reader: of 1,472,157 INSERTs that raised nothing one was not there, beside 817 "locked" and 18 "another row available".)
"""

from __future__ import annotations

import itertools
import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from tests.conftest import create_topic
from tests.log_ends import log_ends
from tests.reader.light import Job

from onceflow.broker import EmbeddedBroker
from onceflow.events import EventIdentity
from onceflow.reader.event import Event
from onceflow.reader.reader import Reader

LIGHT = Path(__file__).with_name("light.py")
TIMEOUT_S = 90.0
T = TypeVar("T")


def eventually(look: Callable[[], T], is_so: Callable[[T], bool], what: str) -> T:
    """What ``look`` gives, once it ``is_so``."""
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so(found := look()):
        assert time.monotonic() < deadline, f"{what}: still {found!r}"
        time.sleep(0.02)
    return found


class Place:
    """One topic, one group, one store and one ledger: what a test works on."""

    _numbers = itertools.count()

    def __init__(self, broker: EmbeddedBroker, directory: Path, partitions: int = 1) -> None:
        self.broker = broker
        self.servers = broker.bootstrap_servers
        self.topic = f"reader-{next(self._numbers)}"
        self.group = f"group-{self.topic}"
        self.file = directory / f"{self.topic}.db"
        self.store = f"sqlite:///{self.file}"
        self.partitions = partitions
        self.processes: list[LightReader] = []
        create_topic(broker, self.topic, partitions)
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        self.ledger = sqlite3.connect(self.file, isolation_level=None, timeout=TIMEOUT_S, check_same_thread=False)
        self.ledger.execute("PRAGMA journal_mode = WAL")
        self.ledger.execute("CREATE TABLE ledger (number INTEGER PRIMARY KEY, event TEXT, pid INTEGER)")
        self._counting = sqlite3.connect(self.file, isolation_level=None, timeout=TIMEOUT_S)

    def close(self) -> None:
        for process in self.processes:
            process.end()
        self.ledger.close()
        self._counting.close()

    def add_partition(self) -> None:
        """Until the broker has heard of it, and leads it: the controller answers a moment earlier.

        librdkafka does not ask what it believes to know, so whoever asks for the end too early is told for minutes that there
        is no such partition, unless the topics are listed anew::

            controller  has made the partition, and answers
            librdkafka  asks the broker for the topic: it has one partition; this is remembered
            broker      hears of the second
        """
        self.partitions += 1
        made = self.admin.create_partitions([NewPartitions(self.topic, self.partitions)], operation_timeout=TIMEOUT_S)
        made[self.topic].result(TIMEOUT_S)
        eventually(self._ends, lambda ends: len(ends) == self.partitions, "the new partition")

    def _ends(self) -> dict[int, int]:
        if len(self.admin.list_topics(self.topic, TIMEOUT_S).topics[self.topic].partitions) < self.partitions:
            return {}
        return log_ends(self.admin, self.topic, range(self.partitions))

    # ------------------------------------------------------------------------------------------------------------ events

    def send(
        self, texts: Iterable[object], *, ids: bool = True, sequence: bool = False, partition: int | None = None
    ) -> None:
        """One event per text, the text is its value and its id; round robin over the partitions where none is named."""
        producer, failed = Producer({"bootstrap.servers": self.servers, "linger.ms": 5, "log_level": 0}), list[object]()
        for number, text in enumerate(map(str, texts)):
            identity = EventIdentity("tests", text, sequence=int(text) if sequence else None)
            producer.produce(
                self.topic,
                text,
                f"key {text}",
                number % self.partitions if partition is None else partition,
                headers=[*identity.headers()] if ids else None,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(TIMEOUT_S) == 0
        assert not failed

    def send_uncommitted(self, *texts: str) -> Callable[[], None]:
        """Gives what commits them: until then the partition ends before them, for whoever reads committed."""
        patient = {"transaction.timeout.ms": 300_000, "log_level": 0}
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": self.topic, **patient})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for text in texts:
            producer.produce(self.topic, text, partition=0, headers=[*EventIdentity("tests", text).headers()])
        assert producer.flush(TIMEOUT_S) == 0
        return lambda: producer.commit_transaction(TIMEOUT_S)

    def effects(self) -> list[str]:
        """What the ledger holds, in the order it was written."""
        return [row[0] for row in self._counting.execute("SELECT event FROM ledger ORDER BY number")]

    # ----------------------------------------------------------------------------------------------------------- readers

    def reader(self, **options: Any) -> Reader:
        """A reader in this process, without a handler."""
        return Reader(
            self.topic,
            **{
                "group": self.group,
                "store": self.store,
                "bootstrap_servers": self.servers,
                "backoff_s": 0.01,
                **options,
            },
        )

    def book_all(self, **options: Any) -> None:
        """Runs a reader in this process over all there is; effects go to the ledger in the store's transaction."""
        reader = self.reader(**options)

        @reader.handler
        def book(event: Event, tx: Any) -> None:
            insert(tx, event)

        reader.run(until_end=True)

    def job(self, **given: Any) -> Job:
        given = {"ledger": str(self.file), "store": self.store, **given}
        return Job(self.servers, self.topic, self.group, **given)

    def start(self, job: Job) -> LightReader:
        process = LightReader(job)
        self.processes.append(process)
        return process

    def finish(self, job: Job) -> None:
        """A reader process without any interruption, which must reach the end."""
        process = self.start(replace(job, interrupt=None, until_end=True))
        assert process.wait() == 0, process.said()

    # ------------------------------------------------------------------------------------------------------------- group

    def committed(self) -> dict[int, int]:
        """The group's offsets in Kafka."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": self.group, "log_level": 0})
        try:
            asked = [TopicPartition(self.topic, number) for number in range(self.partitions)]
            return {p.partition: p.offset for p in consumer.committed(asked, timeout=TIMEOUT_S) if p.offset >= 0}
        finally:
            consumer.close()

    def members(self) -> int:
        """How many members the group has, once it is not being rebalanced; 0 until then."""
        return len(self.partitions_each())

    def partitions_each(self) -> list[int]:
        """How many partitions each member of the group has, once it is not being rebalanced; nothing until then.

        A second member has none at first: the first one is yet to give up one of its own.
        """
        group = self.admin.describe_consumer_groups([self.group])[self.group].result(TIMEOUT_S)
        if group.state is not ConsumerGroupState.STABLE:
            return []
        return [len(member.assignment.topic_partitions) for member in group.members]

    def set_committed(self, offsets: dict[int, int]) -> None:
        """What kafka-consumer-groups --reset-offsets does."""
        places = [TopicPartition(self.topic, number, offset) for number, offset in offsets.items()]
        asked = self.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(self.group, places)])
        asked[self.group].result(TIMEOUT_S)


def insert(tx: Any, event: Event) -> None:
    tx.execute("INSERT INTO ledger (event, pid) VALUES (?, 0)", ((event.value or b"").decode(),))


@dataclass
class LightReader:
    """One process of light.py."""

    job: Job
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        command = [sys.executable, str(LIGHT), json.dumps(asdict(self.job))]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self) -> int:
        """Its exit status; negative is the signal that ended it."""
        return self.process.wait(TIMEOUT_S)

    def said(self) -> str:
        assert self.process.stdout is not None
        return "" if self.process.stdout.closed else self.process.stdout.read()

    def until_it_says(self, *texts: str) -> None:
        """Reads what it prints up to a line with one of these texts. One that lives on and says nothing is killed for it."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(TIMEOUT_S, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                if any(text in line for text in texts):
                    return
        finally:
            watchdog.cancel()
        raise AssertionError(f"it ended without saying {' or '.join(texts)}")

    def state(self) -> str:
        """What the kernel says of it; T is stopped."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def until_stopped(self) -> None:
        """Waits until it has stopped itself."""
        eventually(self.state, "T".__eq__, "state")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        """Ends it in order."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def end(self) -> None:
        """Whatever state it is in, it is gone afterwards."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
