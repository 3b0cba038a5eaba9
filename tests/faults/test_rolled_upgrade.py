"""Three brokers that are upgraded from an older Kafka one after the other, with drivers and a writer at work (F22).

In between brokers of two releases are one cluster: a transaction's coordinator, the group's and the leaders may be of either.
Then the cluster is told that it may use what is new, and at last transaction version 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import UpdateFeaturesRequest
from tests.faults.older import OLDER, RELEASE
from tests.faults.support import API_VERSIONS, Cluster, Job, LightDrivers, eventually, expected_records
from tests.faults.test_upgraded import ASLEEP, BATCHES, KILL, PLACES, STOP, UPGRADE, check_went_on

import onceflow
from onceflow.broker.installation import LOCKED
from onceflow.errors import TransactionAborted
from onceflow.jars_lock import KAFKA_VERSION
from onceflow.verify.cluster import KafkaCluster, Node

pytestmark = [pytest.mark.faults, pytest.mark.long]

MANY_BATCHES = 300
PATIENCE_S = 90

UnderWay = Iterator[None]
"""What a step of the upgrade finds at work: up to its ``yield`` before the step, and what became of it behind that."""


class Rolled:
    """The cluster; each of its ``steps`` upgrades it a little."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self.kafka = kafka
        self.cluster = Cluster(kafka)

    def steps(self) -> list[Callable[[], None]]:
        nodes = [partial(self._replace, node) for node in self.kafka.nodes]
        return [*nodes, partial(self._allow, "metadata.version"), partial(self._allow, "transaction.version")]

    def releases(self) -> list[str]:
        """Of each node, as it says itself."""
        logs = [(node.directory / "broker.log").read_text() for node in self.kafka.nodes]
        return [log.rpartition("Kafka version: ")[2].split()[0] for log in logs]

    def _replace(self, node: Node) -> None:
        node.install(LOCKED)
        node.restart()
        self.kafka.wait_until_healthy()

    def _allow(self, feature: str) -> None:
        """All that the brokers have of it."""
        level = min(highest for highest, _ in self._levels(feature))
        update = UpdateFeaturesRequest.FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=UPGRADE)
        request = UpdateFeaturesRequest(timeout_ms=60_000, feature_updates=[update], validate_only=False, min_version=1)
        assert self._ask(None, request).error_code == 0
        eventually(lambda: self._levels(feature), lambda levels: set(levels) == {(level, level)}, feature)

    def _levels(self, feature: str) -> list[tuple[int, int]]:
        """The highest one that a broker has, and the one that it has heard to be in force, of each broker."""
        answers = [self._ask(node.id, API_VERSIONS) for node in self.kafka.nodes]
        highest = [{each.name: each.max_version for each in answer.supported_features} for answer in answers]
        in_force = [{each.name: each.max_version_level for each in answer.finalized_features} for answer in answers]
        return [(has[feature], uses.get(feature, 0)) for has, uses in zip(highest, in_force, strict=True)]

    def _ask(self, node_id: int | None, request: Any) -> Any:
        client = self.kafka.client
        return client.repeat(lambda: client.ask(node_id, request), "the cluster's features")


@pytest.fixture
def rolled(tmp_path: Path) -> Iterator[Rolled]:
    with KafkaCluster(tmp_path, brokers=3, transaction_version=0, installation=OLDER) as kafka:
        found = Rolled(kafka)
        with closing(found.cluster):
            yield found


def test_drivers_and_writers_at_every_step_of_theirs_and_of_the_upgrade(rolled: Rolled, light: LightDrivers) -> None:
    assert rolled.releases() == [RELEASE] * 3
    for step in rolled.steps():
        under_way = [kind(rolled.cluster, light, place) for kind, places in KINDS for place in places]
        under_way += [works_on(rolled.cluster, light), writes_a_block(rolled.cluster)]
        for each in under_way:
            next(each)
        step()
        for each in under_way:
            next(each, None)
    assert rolled.releases() == [KAFKA_VERSION] * 3
    assert rolled.kafka.client.transaction_version() == 2


def goes_on(cluster: Cluster, light: LightDrivers, place: tuple[str, int]) -> UnderWay:
    job = new_job(cluster, light)
    stopped = light.start_stopped(replace(job, interrupt=(*place, STOP)))
    yield
    check_went_on(light.wake(stopped), place)
    cluster.check_exactly(job.topic, expected_records(BATCHES))


def is_recovered(cluster: Cluster, light: LightDrivers, place: tuple[str, int]) -> UnderWay:
    job = new_job(cluster, light)
    assert light.run(replace(job, interrupt=(*place, KILL))).signal == KILL, place
    yield
    check_went_on(light.run(job), place)
    cluster.check_exactly(job.topic, expected_records(BATCHES))


def is_fenced(cluster: Cluster, light: LightDrivers, place: tuple[str, int]) -> UnderWay:
    """It slept over the step, and over its successor's end."""
    job = new_job(cluster, light)
    stopped = light.start_stopped(replace(job, interrupt=(*place, STOP)))
    yield
    check_went_on(light.run(job), place)
    woken = light.wake(stopped)
    assert woken.error == "FENCED", f"{place}: {woken}"
    cluster.check_exactly(job.topic, expected_records(BATCHES))


KINDS = [(goes_on, PLACES), (is_recovered, PLACES), (is_fenced, ASLEEP)]


def works_on(cluster: Cluster, light: LightDrivers) -> UnderWay:
    """It stands still nowhere: the step comes into the middle of its batches."""
    job = replace(new_job(cluster, light), batches=MANY_BATCHES)
    running = light.start(job)
    done = Path(job.checkpoint)
    eventually(done.exists, bool, "the first of many batches", PATIENCE_S)
    assert int(done.read_text()) < MANY_BATCHES
    yield
    check_went_on(light.wait(running), ("in full work", -1))
    cluster.check_exactly(job.topic, expected_records(MANY_BATCHES))


def writes_a_block(cluster: Cluster) -> UnderWay:
    """If its coordinator is the one that goes away, it may be told that the block is aborted, and writes it again."""
    topic = cluster.make_topic(1)
    with onceflow.Writer(bootstrap_servers=cluster.servers, source="shop", transactional_id=topic) as writer:

        def send(*texts: str) -> None:
            for text in texts:
                writer.send(topic, text.encode(), key="k", id=text).result()

        try:
            with writer.transaction():
                send("before")
                yield
                send("behind")
        except TransactionAborted:
            with writer.transaction():
                send("before", "behind")
        with writer.transaction():
            send("next")
    cluster.check_exactly(topic, [("k", text) for text in ("before", "behind", "next")])


def new_job(cluster: Cluster, light: LightDrivers) -> Job:
    return light.job(cluster, cluster.make_topic(1), batches=BATCHES, patience_s=PATIENCE_S)
