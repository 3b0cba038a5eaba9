"""Real Kafka clusters of one and of three nodes: they start, move, break, heal, and leave nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.broker import EmbeddedBroker
from onceflow.broker import process as broker_process
from onceflow.errors import BrokerStartError, ConfigurationError, SetupError
from onceflow.kafka.client import GROUP, TRANSACTION
from onceflow.verify.cluster import KafkaCluster, placement

pytestmark = pytest.mark.faults

TIMEOUT_S = 60
PATIENCE_S = 120


def make_topic(cluster: KafkaCluster, name: str, partitions: int = 1) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.direct_servers})
    admin.create_topics([NewTopic(name, partitions)])[name].result(TIMEOUT_S)
    return name


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def replicas(cluster: KafkaCluster, topic: str) -> placement.Replicas:
    return placement.replicas_of(cluster.client, topic, 0)


def test_they_are_of_the_transaction_version_that_was_asked_for(
    three_brokers: KafkaCluster, request: pytest.FixtureRequest
) -> None:
    assert f"v{three_brokers.client.transaction_version()}" == request.node.callspec.id


def test_topics_have_three_replicas_and_so_have_the_internal_ones(three_brokers_v2: KafkaCluster) -> None:
    make_topic(three_brokers_v2, "replicated")
    three_brokers_v2.wait_until_healthy()
    for topic in ("replicated", placement.GROUPS_TOPIC, placement.TRANSACTIONS_TOPIC):
        assert replicas(three_brokers_v2, topic).in_sync == (1, 2, 3), topic


@pytest.mark.parametrize("key", ["a", "onceflow-orders", "höher-🎈", "polygenelubricants"])
def test_the_partition_of_a_name_is_the_brokers(three_brokers_v2: KafkaCluster, key: str) -> None:
    """The coordinator that the broker names leads the partition that we compute; checked by moving it."""
    for kind, find in (
        (GROUP, three_brokers_v2.group_coordinator),
        (TRANSACTION, three_brokers_v2.transaction_coordinator),
    ):
        number = placement.partition_of(three_brokers_v2.client, kind, key)
        for node in three_brokers_v2.nodes:
            three_brokers_v2.move_leader(placement.COORDINATED_IN[kind], number, node)
            until(lambda node=node, find=find: find(key) is node, f"{key} at {node}")  # type: ignore[misc]


def test_a_hash_is_javas() -> None:
    assert placement.java_hash("polygenelubricants") == -(2**31)  # a known one, with no absolute value of its own
    assert [placement.java_hash(text) for text in ("", "a", "ab", "🎈")] == [0, 97, 3105, 1773260]


def test_a_killed_node_loses_its_leaderships_and_comes_back_in_sync(three_brokers_v2: KafkaCluster) -> None:
    topic = make_topic(three_brokers_v2, "killed")
    node = three_brokers_v2.leader(topic, 0)
    pid = node.pid
    node.kill()
    assert (node.pid, node.is_running) == (None, False)
    until(lambda: node.id not in replicas(three_brokers_v2, topic).in_sync, "the node leaves the set in sync")
    # Asked of a broker that may not have heard of it yet.
    until(lambda: three_brokers_v2.leader(topic, 0) is not node, "another one leads")
    node.start()
    three_brokers_v2.wait_until_healthy()
    assert node.pid not in (None, pid)
    assert node.id in replicas(three_brokers_v2, topic).in_sync


def test_a_frozen_node_loses_its_leaderships_and_is_in_sync_when_it_goes_on(three_brokers_v2: KafkaCluster) -> None:
    topic = make_topic(three_brokers_v2, "frozen")
    node = three_brokers_v2.leader(topic, 0)
    pid = node.pid
    assert pid is not None
    node.pause()
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it is frozen")
    until(lambda: node.id not in replicas(three_brokers_v2, topic).in_sync, "the node leaves the set in sync")
    three_brokers_v2.heal()
    assert node.pid == pid
    assert node.id in replicas(three_brokers_v2, topic).in_sync


def test_what_is_not_healthy_is_told(three_brokers_v2: KafkaCluster) -> None:
    node = three_brokers_v2.nodes[0]
    node.stop()
    with pytest.raises(SetupError, match="node 1 does not run"):
        three_brokers_v2.wait_until_healthy(0.1)
    three_brokers_v2.heal()


def test_one_node_is_as_the_embedded_broker(tmp_path: Path, broker_v1: EmbeddedBroker) -> None:
    from confluent_kafka.admin import ConfigResource, ResourceType

    with KafkaCluster(tmp_path, transaction_version=1) as cluster:
        cluster.wait_until_healthy()
        assert cluster.client.transaction_version() == 1
        assert cluster.bootstrap_servers == cluster.direct_servers

        def settings(servers: str) -> dict[str, str]:
            resource = ConfigResource(ResourceType.BROKER, "1")
            admin = AdminClient({"bootstrap.servers": servers})
            found = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
            return {name: entry.value for name, entry in found.items() if not entry.is_default}

        ours, its = settings(cluster.bootstrap_servers), settings(broker_v1.bootstrap_servers)
        own = {"listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs", "log.dir"}
        assert {name: value for name, value in ours.items() if name not in own} == {
            name: value for name, value in its.items() if name not in own
        }
        pid = cluster.nodes[0].pid
        cluster.stop()
        assert pid is not None
        assert not psutil.pid_exists(pid)


START = """
import sys
from onceflow.verify.cluster import KafkaCluster
with KafkaCluster(sys.argv[1], brokers=3, heap_mb=192) as cluster:
    cluster.nodes[0].pause()
    print(*(node.pid for node in cluster.nodes), flush=True)
    sys.stdin.read()
"""


def test_nothing_stays_when_the_interpreter_is_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", START, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with starter:
        assert starter.stdout is not None
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        assert len(pids) == 3
        starter.send_signal(signal.SIGKILL)
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "all brokers are gone, the frozen one too")


def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    cluster = KafkaCluster(tmp_path, config={"metric.reporters": "no.such.Reporter"})
    with pytest.raises(BrokerStartError, match=r"no\.such\.Reporter"):
        cluster.start()
    assert not any(node.is_running for node in cluster.nodes)


def test_a_node_that_cannot_be_killed_leaves_no_other_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of Kafka's processes are some that do nothing."""
    monkeypatch.setattr(broker_process, "java_command", lambda *_, **__: ["sleep", "600"])
    monkeypatch.setattr(broker_process.BrokerProcess, "format", lambda *_: None)
    cluster = KafkaCluster(tmp_path, brokers=3)
    cluster._launch()
    assert all(node.is_running for node in cluster.nodes)
    kill = cluster.nodes[0].kill

    def fail() -> None:
        kill()
        raise SetupError("the first one is still there")

    monkeypatch.setattr(cluster.nodes[0], "kill", fail)
    with pytest.raises(SetupError, match="still there"):
        cluster.kill()
    left = [node for node in cluster.nodes if node.is_running]
    monkeypatch.undo()
    cluster.kill()
    assert not left


def test_mistakes_are_told_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"brokers is 2(.|\n)*transaction_version is 3"):
        KafkaCluster(tmp_path, brokers=2, transaction_version=3)
