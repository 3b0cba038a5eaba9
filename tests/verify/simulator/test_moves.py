"""The model against real brokers whose coordinators and leaders change: moved to another node, or loaded anew by a restart."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import create_topic
from tests.verify.simulator.real import RealBroker
from tests.verify.simulator.test_against_broker import PARTITIONS, Both
from tests.verify.simulator.test_at_the_edges import TOPIC, opened, running

from onceflow.kafka.client import GROUP, TRANSACTION, KafkaClient
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.transaction.messages import Identity
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.cluster.placement import COORDINATED_IN
from onceflow.verify.simulator.requests import (
    DescribeProducer,
    DescribeTransaction,
    EndTransaction,
    FetchOffsets,
    InitProducerId,
    Produce,
)

PRODUCER_FENCED = 90
IDS = 10
MOVES = 3
REQUESTS = 12
_TIMEOUT_S = 60


@pytest.mark.parametrize("version", [1, 2])
def test_the_model_answers_as_a_broker_that_was_restarted(version: int, tmp_path: Path) -> None:
    """It loads what it coordinates and leads from its logs, as another node would."""
    with running(tmp_path, version) as (broker, _):
        create_topic(broker, TOPIC, PARTITIONS)
    check_moves(version, lives(tmp_path, version))


def lives(directory: Path, version: int) -> Generator[KafkaClient]:
    """The lives of one broker, each with a client of its own."""
    while True:
        with running(directory, version) as (_, client):
            yield client


@pytest.mark.faults
def test_the_model_answers_as_three_brokers_that_take_over_from_each_other(three_brokers: KafkaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": three_brokers.direct_servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(_TIMEOUT_S)
    with KafkaClient({"bootstrap_servers": three_brokers.direct_servers.split(",")}, patience_s=60) as client:
        ensure_anchor_topic(client)
        check_moves(2, reigns(three_brokers, client))


def reigns(cluster: KafkaCluster, client: KafkaClient) -> Generator[KafkaClient]:
    """Each time other nodes coordinate and lead."""
    while True:
        yield client
        move_everything(cluster)


def move_everything(cluster: KafkaCluster) -> None:
    for topic in (COORDINATED_IN[TRANSACTION], COORDINATED_IN[GROUP], TOPIC):
        for partition in cluster.client.topics([topic])[topic].leaders:
            leader = cluster.leader(topic, partition)
            cluster.move_leader(topic, partition, cluster.others(leader)[0])


def check_moves(version: int, clients: Generator[KafkaClient]) -> None:
    """Before each further client all that coordinates and leads has changed."""
    client = next(clients)
    several = [Both(version, RealBroker(client, f"moved-{n}", version, TOPIC), Random(n)) for n in range(IDS)]
    unanswered = Both(version, RealBroker(client, "unanswered", version, TOPIC), Random(0))
    unanswered.ask(InitProducerId(None))
    for number in range(MOVES):
        for both in several:
            for _ in range(REQUESTS):
                both.step()
        going_on, committed = (opened(client, version, f"{name}-{number}") for name in ("going-on", "committed"))
        committed.ask(EndTransaction(committed.known[-1][0], commit=True))
        before, _ = unanswered.known[-1]
        unanswered.ask(InitProducerId(before))
        unanswered.ask(InitProducerId(before))  # not heard, and asked again: the same answer
        client = next(clients)
        for both in (*several, going_on, committed, unanswered):
            both.real.reconnect(client)
            follow(both)
        check_asked_again(unanswered, before)
        check_going_on(going_on)
        check_ended_again(committed, version)
    for both in several:
        both.finish()
    clients.close()


def follow(both: Both) -> None:
    """The model moves as well; what shows of it is the same as on the real brokers."""
    both.move()
    both.ask(DescribeTransaction())
    for partition in range(PARTITIONS):
        both.ask(DescribeProducer(partition))


def check_asked_again(both: Both, before: Identity) -> None:
    """A driver whose InitProducerId was not answered before the move asks again after it, and is taken for an older one."""
    both.ask(InitProducerId(before))
    assert both.real.ask(InitProducerId(dict(both.known)[before])).code == PRODUCER_FENCED
    both.ask(InitProducerId(None))


def check_going_on(both: Both) -> None:
    """An open transaction stays open: the first batch is known as a duplicate, the next is taken, one with a gap is not."""
    ours, _ = both.known[-1]
    for sequence in (0, 7, 1):
        both.ask(Produce(ours, 0, sequence, (100 + sequence,)))
    for _ in range(2):
        both.ask(EndTransaction(ours, commit=True))
    both.ask(FetchOffsets())
    both.finish()


def check_ended_again(both: Both, version: int) -> None:
    """A commit whose answer was lost is asked for again after the move; a late write of its transaction is refused."""
    ours = both.known[-1][0] if version == 1 else both.known[-2][0]
    for request in (EndTransaction(ours, commit=True), EndTransaction(ours, commit=False), Produce(ours, 0, 1, (101,))):
        both.ask(request)
    both.finish()
