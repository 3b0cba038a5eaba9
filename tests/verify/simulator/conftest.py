"""Who asks three brokers directly, for what is compared while they move or fail."""

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


@pytest.fixture
def direct(three_brokers: KafkaCluster) -> Iterator[KafkaClient]:
    """Asks the brokers as a pipeline does; a question that is not answered is asked once more, so it must be patient."""
    options = {"bootstrap_servers": three_brokers.direct_servers.split(","), "request_timeout_ms": _REQUEST_TIMEOUT_MS}
    with KafkaClient(options, patience_s=PATIENCE_S) as client:
        ensure_anchor_topic(client)
        yield client


def make_topic(cluster: KafkaCluster, topic: NewTopic) -> None:
    """Makes a topic, and waits until every replica of everything is in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.direct_servers})
    create(admin, topic, _TIMEOUT_S)
    cluster.wait_until_healthy()
