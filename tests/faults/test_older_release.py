"""All parts on brokers of an older Kafka, as a cluster has them that was not upgraded for long."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.older import OLDER, RELEASE
from tests.faults.support import API_VERSIONS, Cluster, LightDrivers, expected_records
from tests.faults.test_driver_killed import finish, killed_at, points
from tests.faults.test_moved_clock import book_all

import onceflow
from onceflow.broker import EmbeddedBroker
from onceflow.errors import Fenced
from onceflow.kafka.client import KafkaClient

if TYPE_CHECKING:
    from tests.conftest import Fill, Reader, RunQuery, TopicFactory

pytestmark = [pytest.mark.faults, pytest.mark.long]

STOP = int(signal.SIGSTOP)
ASLEEP = [("HALF", 0), ("COMMIT", 0), ("DONE", 0)]
WORDS = [(word, str(number)) for number, word in enumerate(["a", "b", "c"] * 20)]
ENCODED = [(key.encode(), value.encode()) for key, value in WORDS]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """It knows no transaction version, which is version 0."""
    directory = tmp_path_factory.mktemp("older")
    with EmbeddedBroker(directory, transaction_version=0, heap_mb=256, installation=OLDER) as broker:
        yield broker


@pytest.fixture(scope="module")
def cluster(older: EmbeddedBroker) -> Iterator[Cluster]:
    with closing(Cluster(older)) as found:
        yield found


def test_it_is_the_older_one(older: EmbeddedBroker) -> None:
    with KafkaClient({"bootstrap_servers": [older.bootstrap_servers]}, patience_s=60) as client:
        answer = client.repeat(lambda: client.ask(None, API_VERSIONS), "the cluster's features")
        assert "transaction.version" not in {feature.name for feature in answer.supported_features}
    assert f"Kafka version: {RELEASE}" in (older.directory / "broker.log").read_text()


def test_a_driver_killed_at_every_step(cluster: Cluster, light: LightDrivers) -> None:
    for point in points(cluster):
        job = light.job(cluster, cluster.make_topic())
        assert killed_at(light, job, point), f"it did not come to {point}"
        finish(cluster, light, job)


def test_a_driver_that_slept_until_another_one_had_finished_is_fenced(cluster: Cluster, light: LightDrivers) -> None:
    for point in ASLEEP:
        job = light.job(cluster, cluster.make_topic(1))
        asleep = light.start_stopped(replace(job, interrupt=(*point, STOP)))
        finish(cluster, light, job)
        assert light.wake(asleep).error == "FENCED", point
        cluster.check_exactly(job.topic, expected_records(2))


def test_events_through_the_writer_and_the_reader_have_one_effect_each(cluster: Cluster, tmp_path: Path) -> None:
    topic, file = cluster.make_topic(2), tmp_path / "ledger.db"

    def open_writer() -> onceflow.Writer:
        return onceflow.Writer(bootstrap_servers=cluster.servers, source="shop", transactional_id=topic)

    def write(writer: onceflow.Writer, *texts: str) -> None:
        with writer.transaction():
            for text in texts:
                writer.send(topic, text.encode(), key=text, id=text)
            if "aborted" in texts:
                raise ZeroDivisionError

    with open_writer() as older, open_writer() as newer:
        write(newer, "a", "b")
        with pytest.raises(Fenced):
            write(older, "fenced")
        with pytest.raises(ZeroDivisionError):
            write(newer, "aborted")
        write(newer, "c")
    assert booked(cluster, topic, file) == ["a", "b", "c"]
    assert booked(cluster, topic, file) == ["a", "b", "c"]


def booked(cluster: Cluster, topic: str, file: Path) -> list[str]:
    """What a reader has booked that ran to the end of the topic, in this run or in an earlier one."""
    book_all(cluster, topic, file)
    with closing(sqlite3.connect(file)) as ledger:
        return sorted(text for (text,) in ledger.execute("SELECT event FROM ledger"))


def test_a_query_writes_each_record_once_though_its_last_commit_is_unknown_to_spark(
    older: EmbeddedBroker, topic: TopicFactory, fill: Fill, read: Reader, run_query: RunQuery, tmp_path: Path
) -> None:
    source, target = topic(2, on=older), topic(3, on=older)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        with closing(onceflow.KafkaSink(target, name=target, bootstrap_servers=older.bootstrap_servers)) as sink:
            run_query(source, sink, checkpoint, on=older)

    fill(source, WORDS, on=older)
    run()
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    fill(source, WORDS, on=older)
    run()
    assert sorted((m.key(), m.value()) for m in read(target, on=older)) == sorted(ENCODED * 2)
