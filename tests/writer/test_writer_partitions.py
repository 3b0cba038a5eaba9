"""A partition that is named: one that the topic does not have is a mistake of that one event, and ends nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from tests.conftest import Reader, TopicFactory
from tests.faults.support import make_anew
from tests.writer.on_a_loop import OnLoop

from onceflow.broker import EmbeddedBroker
from onceflow.errors import EventRefused
from onceflow.writer.sender import Sender
from onceflow.writer.writer import Writer

MakeWriter = Callable[..., Any]
TIMEOUT_S = 60.0
BOTH_KINDS = pytest.mark.parametrize("writer", [Writer, OnLoop], indirect=True, ids=["Writer", "AsyncWriter"])


def admin_of(broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


def add_partitions(broker: EmbeddedBroker, topic: str, count: int) -> None:
    admin = admin_of(broker)  # it answers for as long as somebody holds it
    admin.create_partitions([NewPartitions(topic, count)], operation_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)


@BOTH_KINDS
@pytest.mark.parametrize("in_a_transaction", [False, True], ids=["plain", "transaction"])
def test_it_concerns_that_event_alone(
    writer: MakeWriter, topic: TopicFactory, read: Reader, *, in_a_transaction: bool
) -> None:
    name = topic(3)
    shop = writer(name if in_a_transaction else None)
    block: AbstractContextManager[Any] = shop.transaction() if in_a_transaction else nullcontext()
    with block:
        shop.send(name, b"before", id="1", partition=2)
        with pytest.raises(
            EventRefused, match=r"event 'shop 2' for .*: partition 99: the topic has 3 partitions, 0 to 2"
        ):
            shop.send(name, b"astray", id="2", partition=99)
        with pytest.raises(EventRefused, match="partition -2: they begin at 0"):
            shop.send(name, b"astray", id="3", partition=-2)
        shop.send(name, b"after", id="4", partition=2)
    if not in_a_transaction:
        shop.flush()
    assert [(m.partition(), m.value()) for m in read(name)] == [(2, b"before"), (2, b"after")]


@BOTH_KINDS
def test_one_that_was_added_since_the_first_event_is_found(
    writer: MakeWriter, topic: TopicFactory, read: Reader, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka itself looks every five minutes."""
    name = topic(1)
    monkeypatch.setattr(
        "onceflow.writer.sender.SURE_S", 60.0
    )  # the broker hears of it behind its owner, who waits no longer
    with writer() as shop:
        shop.send(name, b"first", id="1", partition=0).result()
        add_partitions(broker, name, 3)
        shop.send(name, b"second", id="2", partition=2).result()
    assert {(m.partition(), m.value()) for m in read(name)} == {(0, b"first"), (2, b"second")}


def test_one_of_which_the_broker_has_not_heard_yet_is_waited_for(
    writer: MakeWriter, topic: TopicFactory, read: Reader, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was added a moment ago, as far as its owner knows: here, between two looks."""
    name = topic(1)
    monkeypatch.setattr("onceflow.writer.sender.SURE_S", 60.0)
    looks: list[str] = []
    look_up = Sender._look_up

    def added_after_the_first(sender: Sender, topic: str) -> KafkaError | None:
        looks.append(topic)
        answer = look_up(sender, topic)
        if len(looks) == 1:
            add_partitions(broker, name, 2)
        return answer

    monkeypatch.setattr(Sender, "_look_up", added_after_the_first)
    with writer() as shop:
        shop.send(name, b"first", id="1", partition=1)
    assert len(looks) > 1
    assert [(m.partition(), m.value()) for m in read(name)] == [(1, b"first")]


def test_one_that_is_gone_because_the_topic_was_made_anew(
    writer: MakeWriter, topic: TopicFactory, read: Reader, broker: EmbeddedBroker
) -> None:
    name, other = topic(3), topic(1)
    with writer() as shop:
        shop.send(name, b"of the old one", id="1", partition=2).result()
        make_anew(broker, name, 1)
        shop.sender()._look_up(name)  # librdkafka hears of it
        shop.sender().known[name] = range(-1, 3)  # and the writer has not: what it knows is of a moment ago
        waiting = shop.send(other, b"on its way", id="2")
        with pytest.raises(EventRefused, match=r"event 'shop 3' for .*: the topic has no partition 2 any more"):
            shop.send(name, b"astray", id="3", partition=2)
        shop.send(name, b"after", id="4", partition=0)
        waiting.result()
    assert [m.value() for m in read(name)] == [b"after"]
    assert [m.value() for m in read(other)] == [b"on its way"]
