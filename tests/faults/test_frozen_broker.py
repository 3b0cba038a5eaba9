"""A broker that has frozen answers nothing and closes no connection: whoever is asked to end ends all the same (KAFKA-17734).

The Java consumer's ``close`` may go beyond its time limit there (``test_java_consumer_close.py``), and librdkafka's has none.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException
from tests.faults.support import Cluster, eventually

import onceflow
from onceflow.broker import EmbeddedBroker
from onceflow.errors import DeliveryFailed
from onceflow.reader import loop
from onceflow.reader.event import Event
from onceflow.reader.steps import OnStep, Step

pytestmark = pytest.mark.faults

PATIENCE_S = 120.0
NEVER_S = 3600.0
VALUES = [str(number) for number in range(20)]


@pytest.fixture(scope="module")
def freezing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with EmbeddedBroker(tmp_path_factory.mktemp("freezing"), heap_mb=256) as broker, closing(Cluster(broker)) as found:
        yield found


def tell(cluster: Cluster, number: signal.Signals) -> None:
    pid = cluster.broker.pid
    assert pid is not None
    os.kill(pid, number)


@contextmanager
def frozen(cluster: Cluster) -> Iterator[None]:
    tell(cluster, signal.SIGSTOP)
    try:
        yield
    finally:
        tell(cluster, signal.SIGCONT)
        await_answer(cluster)


def await_answer(cluster: Cluster) -> None:
    """Of a broker that goes on; one that does not says why."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            cluster.admin.list_topics(timeout=5)
        except KafkaException as error:
            if time.monotonic() > deadline:
                log = (cluster.broker.directory / "broker.log").read_text()[-5000:]
                pytest.fail(f"{error.args[0].str()}; {cluster.broker.status()}; the end of its log:\n{log}")
        else:
            return


def send(cluster: Cluster, topic: str, values: list[str]) -> None:
    with onceflow.Writer(bootstrap_servers=cluster.servers, source="shop") as writer:
        for value in values:
            writer.send(topic, value.encode(), key="k", id=value)


class Booking:
    """A reader that books events in a ledger, on a thread of its own."""

    def __init__(self, cluster: Cluster, topic: str, file: Path, on_step: OnStep | None = None) -> None:
        self.file = file
        with closing(sqlite3.connect(file)) as ledger:
            ledger.execute("CREATE TABLE IF NOT EXISTS ledger (event TEXT)")
        self.reader = onceflow.Reader(
            topic,
            group=topic,
            store=f"sqlite:///{file}",
            bootstrap_servers=cluster.servers,
            session_timeout_s=6,
            on_step=on_step,
        )

        @self.reader.handler
        def book(event: Event, tx: sqlite3.Connection) -> None:
            tx.execute("INSERT INTO ledger VALUES (?)", ((event.value or b"").decode(),))

        self.thread = threading.Thread(target=self.reader.run, daemon=True)

    def await_booked(self, values: list[str]) -> None:
        eventually(self.booked, lambda found: found == values, "what is booked")

    def booked(self) -> list[str]:
        with closing(sqlite3.connect(self.file)) as ledger:
            return [text for (text,) in ledger.execute("SELECT event FROM ledger")]


@contextmanager
def plain_consumer(cluster: Cluster) -> Iterator[threading.Thread]:
    """A consumer of confluent-kafka's own that has read; the thread has it commit an offset and close."""
    topic = cluster.make_topic(1)
    send(cluster, topic, VALUES[:1])
    options = {"bootstrap.servers": cluster.servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**options, "enable.auto.commit": False, "log_level": 0})
    consumer.subscribe([topic])
    message = eventually(lambda: consumer.poll(1), bool, "a record")
    assert message is not None

    def commit_and_close() -> None:
        consumer.commit(message=message)
        consumer.close()

    thread = threading.Thread(target=commit_and_close, daemon=True)
    try:
        yield thread
    finally:
        if thread.ident is None:
            consumer.close()
        else:
            thread.join(PATIENCE_S)
    assert not thread.is_alive()


def end_and_go_on(
    cluster: Cluster, topic: str, file: Path, first: Booking, undefended: threading.Thread | None = None
) -> None:
    """While the broker stands still the first reader ends, and who has no defence does not; when it goes on, so does the next
    reader.
    """
    with frozen(cluster):
        first.reader.stop()
        first.thread.join(PATIENCE_S)
        assert not first.thread.is_alive()
        assert undefended is None or undefended.is_alive()
    send(cluster, topic, VALUES[10:])
    second = Booking(cluster, topic, file)
    second.reader.run(until_end=True)
    assert second.booked() == VALUES


def test_a_reader_ends_that_has_news_for_kafka(
    freezing: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka alone waits for minutes for the answer to the commit of an offset."""
    monkeypatch.setattr(loop, "OFFSETS_EVERY_S", NEVER_S)
    told = threading.Event()
    topic, file = freezing.make_topic(1), tmp_path / "ledger.db"
    first = Booking(freezing, topic, file, lambda step: told.set() if step is Step.OFFSETS else None)
    first.thread.start()
    send(freezing, topic, VALUES[:5])
    first.await_booked(VALUES[:5])
    assert told.wait(PATIENCE_S), "the one time that it tells Kafka of itself"
    send(freezing, topic, VALUES[5:10])
    first.await_booked(VALUES[:10])
    end_and_go_on(freezing, topic, file, first)


def test_a_reader_ends_whose_commit_of_an_offset_is_not_answered(
    freezing: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka alone closes nothing before it has asked for that answer three times, a minute each."""
    monkeypatch.setattr(loop, "OFFSETS_EVERY_S", 0.0)
    told = threading.Event()

    def freeze_before_the_offsets(step: Step) -> None:
        if step is Step.COMMITTED:
            tell(freezing, signal.SIGSTOP)
        elif step is Step.OFFSETS:
            told.set()

    topic, file = freezing.make_topic(1), tmp_path / "ledger.db"
    send(freezing, topic, VALUES[:10])
    first = Booking(freezing, topic, file, freeze_before_the_offsets)
    with plain_consumer(freezing) as closes_plainly:
        first.thread.start()
        assert told.wait(PATIENCE_S), "it tells Kafka, which answers no more"
        closes_plainly.start()
        end_and_go_on(freezing, topic, file, first, closes_plainly)


def test_a_writer_ends_and_names_what_is_not_acknowledged(freezing: Cluster) -> None:
    topic = freezing.make_topic(1)
    kafka = {"delivery.timeout.ms": 5000}  # "first" waits for a new producer's first metadata, too
    writer = onceflow.Writer(bootstrap_servers=freezing.servers, source="shop", kafka=kafka)
    with pytest.raises(DeliveryFailed) as caught, writer:  # noqa: PT012  the end of the block raises
        writer.send(topic, b"first", key="k", id="first").result()
        with frozen(freezing):
            writer.send(topic, b"second", key="k", id="second")
            writer.close()
    assert len(caught.value.fields["failures"]) == 1
