"""A cluster whose feature ``transaction.version`` is 0, as one that came from before 4.0 and was not told otherwise.

It names no version at all then, and the rules are those of version 1.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from tests.faults.support import API_VERSIONS, Cluster, LightDrivers, expected_records
from tests.faults.test_driver_killed import finish, killed_at, points

import onceflow
from onceflow.broker import EmbeddedBroker
from onceflow.errors import Fenced
from onceflow.kafka.client import KafkaClient

pytestmark = pytest.mark.faults

STOP = int(signal.SIGSTOP)
FEATURE = "transaction.version"
ASLEEP = [("HALF", 0), ("COMMIT", 0), ("DONE", 0)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    old = EmbeddedBroker(tmp_path_factory.mktemp("version-0"), transaction_version=0, heap_mb=256)
    with old, closing(Cluster(old)) as found:
        yield found


def test_it_names_no_version_and_is_taken_for_1(cluster: Cluster) -> None:
    client = KafkaClient({"bootstrap_servers": [cluster.servers]}, patience_s=60)
    client.open()
    with closing(client):
        answer = client.repeat(lambda: client.ask(None, API_VERSIONS), "the cluster's features")
        assert FEATURE in {feature.name for feature in answer.supported_features}
        assert FEATURE not in {feature.name for feature in answer.finalized_features}
        assert client.transaction_version() == 1


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


def test_a_writer_commits_aborts_and_fences(cluster: Cluster) -> None:
    topic = cluster.make_topic(1)

    def open_writer() -> onceflow.Writer:
        return onceflow.Writer(bootstrap_servers=cluster.servers, source="shop", transactional_id=topic)

    def write(writer: onceflow.Writer, text: str, progress: str = "", failure: Exception | None = None) -> None:
        with writer.transaction(progress=progress):
            writer.send(topic, text.encode(), key="k", id=text).result()
            if failure:
                raise failure

    with open_writer() as older:
        write(older, "committed", progress="1")
        with pytest.raises(ZeroDivisionError):
            write(older, "aborted", progress="2", failure=ZeroDivisionError())
        with open_writer() as newer:
            assert newer.progress == "1"
            write(newer, "of the next one", progress="2")
            with pytest.raises(Fenced):
                write(older, "fenced", progress="2")
    cluster.check_exactly(topic, [("k", "committed"), ("k", "of the next one")])
