"""A broker that its peers cannot reach, and its clients can: one way and both, whatever it leads and coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from tests.faults.support import Cluster, eventually
from tests.verify.faults.bare import PATIENCE_S, BareWorld, SteadyDriver

from onceflow.broker import EmbeddedBroker
from onceflow.kafka.client import Again
from onceflow.verify.cluster import KafkaCluster, Node, placement
from onceflow.verify.faults.isolated import IsolateBroker, Way, cut_off
from onceflow.writer.writer import Writer

pytestmark = pytest.mark.faults

EVENTS = [str(number) for number in range(20)]
GONE = [Way.OUT, Way.BOTH]  # the others miss it
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def meshed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers that reach each other through wires."""
    with KafkaCluster(tmp_path_factory.mktemp("meshed"), brokers=3, heap_mb=192, between=True) as cluster:
        yield cluster


@pytest.fixture
def judge(meshed: KafkaCluster) -> Iterator[Cluster]:
    found = Cluster(cast(EmbeddedBroker, meshed))
    yield found
    found.close()


def topic_of(cluster: KafkaCluster, judge: Cluster) -> tuple[str, Node]:
    """A topic of one partition with three replicas, and who leads it."""
    name = judge.unique("isolated")
    judge.admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    cluster.wait_until_healthy()
    return name, cluster.leader(name, 0)


def another_leads(cluster: KafkaCluster, topic: str, old: Node) -> bool:
    """As those see it who are not cut off."""
    other = cluster.others(old)[0]
    try:
        return placement.view(cluster.client, other.id, topics=[topic]).partitions[topic, 0].leader not in (-1, old.id)
    except Again:
        return False


def beginning_with(node: Node, way: Way, cluster: KafkaCluster) -> Random:
    """A source of chances whose first choices are these."""
    for seed in range(1000):
        random = Random(seed)
        if (random.choice(cluster.nodes), random.choice(list(Way))) == (node, way):
            return Random(seed)
    raise AssertionError(node)


WHO: dict[str, Callable[[KafkaCluster, SteadyDriver], Node]] = {
    "leader": lambda cluster, driver: cluster.leader(driver.name, 0),
    "coordinator": lambda cluster, driver: cluster.transaction_coordinator(f"onceflow-{driver.name}"),
}


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("way", Way, ids=lambda way: way.name.lower())
@pytest.mark.in_turn(3)
def test_a_driver_goes_on_and_writes_once(
    meshed: KafkaCluster, judge: Cluster, tmp_path: Path, way: Way, who: str
) -> None:
    driver = SteadyDriver(meshed, tmp_path)
    driver.goes_on()
    node, world = WHO[who](meshed, driver), BareWorld(meshed, driver)
    IsolateBroker().inject(world.as_world(), beginning_with(node, way, meshed))
    assert world.notes[-1].startswith(f"node {node.id} {way}: ")
    assert not world.misses
    driver.goes_on()
    judge.check_exactly(driver.name, driver.end())


@pytest.mark.parametrize("way", GONE, ids=lambda way: way.name.lower())
def test_a_writer_s_events_are_there_once(meshed: KafkaCluster, judge: Cluster, way: Way) -> None:
    """Nothing is acknowledged that the isolated leader has alone."""
    topic, leader = topic_of(meshed, judge)
    with Writer(bootstrap_servers=meshed.bootstrap_servers, source="shop") as writer:
        writer.send(topic, b"before", id="before").result()
        with meshed.peer_rules.during(*cut_off(meshed, leader, way)):
            sent = [writer.send(topic, text.encode(), id=text) for text in EVENTS]
            eventually(lambda: another_leads(meshed, topic, leader), bool, "another leader", PATIENCE_S)
        for delivery in sent:
            delivery.result()
    meshed.wait_until_healthy()
    assert [value for _, _, value in judge.read(topic)] == ["before", *EVENTS]


@pytest.mark.parametrize("way", GONE, ids=lambda way: way.name.lower())
def test_control_with_acks_of_the_leader_alone_they_are_lost(meshed: KafkaCluster, judge: Cluster, way: Way) -> None:
    """It acknowledges what it takes while nobody follows, and drops it when it follows."""
    topic, leader = topic_of(meshed, judge)
    lost = Producer({"bootstrap.servers": meshed.bootstrap_servers, "acks": 1, "log_level": 0})
    lost.list_topics(topic, TIMEOUT_S)
    with meshed.peer_rules.during(*cut_off(meshed, leader, way)):
        for text in EVENTS:
            lost.produce(topic, text)
        assert lost.flush(TIMEOUT_S) == 0, "all of them are acknowledged"
        eventually(lambda: another_leads(meshed, topic, leader), bool, "another leader", PATIENCE_S)
    meshed.wait_until_healthy()
    assert not judge.read(topic)
