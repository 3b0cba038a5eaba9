"""Three brokers of each transaction version, for what is compared while brokers move or fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.new_topics import create

from onceflow.kafka.client import KafkaClient
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.cluster.kafka import PATIENCE_S

_TIMEOUT_S = 60
_REQUEST_TIMEOUT_MS = 15_000


@pytest.fixture(scope="package")
def shared_brokers_v1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    directory = tmp_path_factory.mktemp("three-brokers-v1")
    with KafkaCluster(directory, brokers=3, transaction_version=1, heap_mb=192) as cluster:
        yield cluster


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.long), 2])
def brokers(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Three brokers. Whoever breaks them heals them; a test that fails before does not."""
    version_1 = request.param == 1
    cluster: KafkaCluster = request.getfixturevalue("shared_brokers_v1" if version_1 else "shared_brokers")
    yield cluster
    if any(node.is_paused or not node.is_running for node in cluster.nodes):
        cluster.heal()


@pytest.fixture
def direct(brokers: KafkaCluster) -> Iterator[KafkaClient]:
    """Asks the brokers as a pipeline does; a question that is not answered is asked once more, so it must be patient."""
    options = {"bootstrap_servers": brokers.direct_servers.split(","), "request_timeout_ms": _REQUEST_TIMEOUT_MS}
    with KafkaClient(options, patience_s=PATIENCE_S) as client:
        ensure_anchor_topic(client)
        yield client


def make_topic(cluster: KafkaCluster, topic: NewTopic) -> None:
    """Makes a topic, and waits until every replica of everything is in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.direct_servers})
    create(admin, topic, _TIMEOUT_S)
    cluster.wait_until_healthy()
