"""The looks at a topic that all tests share fail where a transaction is left open."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tests import conftest
from tests.conftest import TopicFactory, read_topic, until_stable
from tests.faults import support
from tests.faults.support import Cluster
from tests.log_ends import left_unstable

from onceflow.broker import EmbeddedBroker

PATIENCE_S = 60.0


def at_once(
    admin: AdminClient, topic: str, partitions: Iterable[int], _patience_s: float
) -> dict[int, tuple[int, int]]:
    return left_unstable(admin, topic, partitions, 0.5)


def look_again(broker: EmbeddedBroker, topic: str) -> None:
    cluster = Cluster(broker)
    try:
        cluster.stable_end(topic)
    finally:
        cluster.close()


@pytest.fixture
def left_open(broker: EmbeddedBroker, topic: TopicFactory) -> tuple[str, Producer]:
    """A topic with a record of a transaction that is open."""
    name = topic(1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"open-{name}"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(name, b"open")
    assert producer.flush(PATIENCE_S) == 0
    return name, producer


@pytest.mark.parametrize("look", [read_topic, until_stable, look_again])
def test_a_transaction_that_is_left_open_is_seen(
    broker: EmbeddedBroker,
    left_open: tuple[str, Producer],
    look: Callable[[EmbeddedBroker, str], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, producer = left_open
    with monkeypatch.context() as patched:
        patched.setattr(conftest, "_STABLE_S", 0.5)
        patched.setattr(support, "left_unstable", at_once)
        with pytest.raises(AssertionError, match=r"a transaction is open|last stable offsets"):
            look(broker, name)
    producer.abort_transaction(PATIENCE_S)
    look(broker, name)
