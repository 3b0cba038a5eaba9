"""A broker that has frozen answers nothing and closes no connection: whoever is asked to end ends all the same (KAFKA-17734).

The Java consumer's ``close`` goes beyond its time limit there.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.faults.support import Cluster, eventually

import onceflow
from onceflow.broker import EmbeddedBroker
from onceflow.errors import DeliveryFailed
from onceflow.reader import loop
from onceflow.reader.event import Event

pytestmark = pytest.mark.faults

PATIENCE_S = 120.0
NEVER_S = 3600.0
VALUES = [str(number) for number in range(20)]


@pytest.fixture(scope="module")
def freezing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with EmbeddedBroker(tmp_path_factory.mktemp("freezing"), heap_mb=256) as broker, closing(Cluster(broker)) as found:
        yield found


@contextmanager
def frozen(cluster: Cluster) -> Iterator[None]:
    pid = cluster.broker.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def send(cluster: Cluster, topic: str, values: list[str]) -> None:
    with onceflow.Writer(bootstrap_servers=cluster.servers, source="shop") as writer:
        for value in values:
            writer.send(topic, value.encode(), key="k", id=value)


class Booking:
    """A reader that books events in a ledger, on a thread of its own."""

    def __init__(self, cluster: Cluster, topic: str, file: Path) -> None:
        self.file = file
        with closing(sqlite3.connect(file)) as ledger:
            ledger.execute("CREATE TABLE IF NOT EXISTS ledger (event TEXT)")
        self.reader = onceflow.Reader(
            topic, group=topic, store=f"sqlite:///{file}", bootstrap_servers=cluster.servers, session_timeout_s=6
        )

        @self.reader.handler
        def book(event: Event, tx: sqlite3.Connection) -> None:
            tx.execute("INSERT INTO ledger VALUES (?)", ((event.value or b"").decode(),))

        self.thread = threading.Thread(target=self.reader.run, daemon=True)

    def booked(self) -> list[str]:
        with closing(sqlite3.connect(self.file)) as ledger:
            return [text for (text,) in ledger.execute("SELECT event FROM ledger")]


def test_a_reader_ends_and_the_next_one_goes_on(
    freezing: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has news for Kafka then: librdkafka alone waits for minutes for the answer to the commit of an offset."""
    monkeypatch.setattr(loop, "OFFSETS_EVERY_S", NEVER_S)
    topic, file = freezing.make_topic(1), tmp_path / "ledger.db"
    send(freezing, topic, VALUES[:10])
    first = Booking(freezing, topic, file)
    first.thread.start()
    eventually(first.booked, lambda found: found == VALUES[:10], "the first events")
    with frozen(freezing):
        first.reader.stop()
        first.thread.join(PATIENCE_S)
        assert not first.thread.is_alive()
    send(freezing, topic, VALUES[10:])
    second = Booking(freezing, topic, file)
    second.reader.run(until_end=True)
    assert second.booked() == VALUES


def test_a_writer_ends_and_names_what_is_not_acknowledged(freezing: Cluster) -> None:
    topic = freezing.make_topic(1)
    kafka = {"delivery.timeout.ms": 2000}
    writer = onceflow.Writer(bootstrap_servers=freezing.servers, source="shop", kafka=kafka)
    with pytest.raises(DeliveryFailed) as caught, writer:  # noqa: PT012  the end of the block raises
        writer.send(topic, b"first", key="k", id="first").result()
        with frozen(freezing):
            writer.send(topic, b"second", key="k", id="second")
            writer.close()
    assert len(caught.value.fields["failures"]) == 1
