"""The model against real brokers whose coordinators and leaders change: moved to another node, or loaded anew by a restart."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import NewTopic
from tests.conftest import create_topic
from tests.verify.simulator.both import PARTITIONS, Both, hold_back
from tests.verify.simulator.conftest import make_topic
from tests.verify.simulator.real import RealBroker
from tests.verify.simulator.test_at_the_edges import TOPIC, running

from onceflow.kafka import codes
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.messages import Identity
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.cluster.placement import COORDINATED_IN
from onceflow.verify.simulator.requests import (
    OUT_OF_ORDER,
    PRODUCER_FENCED,
    AddPartitions,
    DescribeProducer,
    DescribeTransaction,
    EndTransaction,
    FetchOffsets,
    InitProducerId,
    Produce,
)

IDS = 10
MOVES = 3
REQUESTS = 12


@dataclass(frozen=True, slots=True)
class Moving:
    """What changes from one reign to the next."""

    coordinators: bool = True
    leaders: bool = True
    restarts: bool = False  # the leaders are the same brokers, which have read their snapshots


EVERYTHING, LEADERS, COORDINATORS = Moving(), Moving(coordinators=False), Moving(leaders=False)
RESTARTED = Moving(restarts=True)


@pytest.mark.parametrize("version", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_model_answers_as_a_broker_that_was_restarted(version: int, tmp_path: Path) -> None:
    """It loads what it coordinates and leads from its logs, as another node would."""
    with running(tmp_path, version) as (broker, _):
        for each in (TOPIC, of_two(TOPIC)):
            create_topic(broker, each, PARTITIONS)
    check_moves(version, TOPIC, RESTARTED, lives(tmp_path, version))


def lives(directory: Path, version: int) -> Generator[KafkaClient]:
    """The lives of one broker, each with a client of its own."""
    while True:
        with running(directory, version) as (_, client):
            yield client


@pytest.mark.faults
@pytest.mark.parametrize(
    ("topic", "moving"),
    [
        ("all-move", EVERYTHING),
        pytest.param("leaders-move", LEADERS, marks=pytest.mark.long),
        pytest.param("coordinators-move", COORDINATORS, marks=pytest.mark.long),
    ],
)
def test_the_model_answers_as_three_brokers_that_take_over_from_each_other(
    three_brokers: KafkaCluster, direct: KafkaClient, topic: str, moving: Moving
) -> None:
    for each in (topic, of_two(topic)):
        make_topic(three_brokers, NewTopic(each, PARTITIONS))
    check_moves(three_brokers.transaction_version, topic, moving, reigns(three_brokers, direct, topic, moving))


def reigns(cluster: KafkaCluster, client: KafkaClient, topic: str, moving: Moving) -> Generator[KafkaClient]:
    """Each time other nodes coordinate, or lead the topic's partitions."""
    led = [topic, of_two(topic)] if moving.leaders else []
    moved = [*(COORDINATED_IN.values() if moving.coordinators else ()), *led]
    while True:
        yield client
        for each in moved:
            move_leaders(cluster, each)


def move_leaders(cluster: KafkaCluster, topic: str) -> None:
    for partition in cluster.client.topics([topic])[topic].leaders:
        leader = cluster.leader(topic, partition)
        cluster.move_leader(topic, partition, cluster.others(leader)[0])


def of_two(topic: str) -> str:
    """The topic beside it, of which the model knows all who write to it: so how far it is stable can be compared."""
    return f"{topic}-of-two"


def check_moves(version: int, topic: str, moving: Moving, clients: Generator[KafkaClient]) -> None:
    """Before each further client something that coordinates or leads has changed."""
    client = next(clients)

    def real(name: str, to: str = topic) -> RealBroker:
        return RealBroker(client, f"{topic}-{name}", version, to)

    older = Both(real("older", of_two(topic)), Random(1))
    older.begin_alone()
    newer = Both(real("newer", of_two(topic)), Random(2), beside=older)
    several = [Both(real(f"any-{n}"), Random(n)) for n in range(IDS)]
    unanswered = Both(real("unanswered"), Random(0))
    unanswered.ask(InitProducerId(None))
    for number in range(MOVES):
        for both in several:
            for _ in range(REQUESTS):
                both.step()
        for _ in range(REQUESTS):
            for both in (older, newer):
                both.step()
        hold_back(newer, older)
        going_on, committed = (Both.opened(real(f"{name}-{number}")) for name in ("going-on", "committed"))
        committed.ask(EndTransaction(committed.ours, commit=True))
        going_on.ask(Produce(going_on.ours, 0, 1, (101,)))
        before = unanswered.ours
        unanswered.ask(InitProducerId(before))
        unanswered.ask(InitProducerId(before))  # not heard, and asked again: the same answer
        refused = Both(real(f"refused-{number}"), Random(0))
        refuse_first(refused)
        client = next(clients)
        for both in (*several, older, newer, going_on, committed, unanswered, refused):
            both.real.reconnect(client)
            follow(both, moving)
        check_asked_again(unanswered, before, moving)
        check_going_on(going_on, moving)
        check_ended_again(committed)
        check_after_refused(refused, moving)
        check_held_back(older)
    for both in (*several, older, newer):
        both.finish()
    clients.close()


def follow(both: Both, moving: Moving) -> None:
    """The model moves as well; what shows of it is the same as on the real brokers."""
    both.move(coordinators=moving.coordinators, leaders=moving.leaders, restarts=moving.restarts)
    both.ask(DescribeTransaction())
    for partition in range(PARTITIONS):
        both.ask(DescribeProducer(partition))
    both.compare_stable()


def check_asked_again(both: Both, before: Identity, moving: Moving) -> None:
    """A driver whose InitProducerId was not answered asks again; a coordinator that moved takes it for an older one."""
    both.ask(InitProducerId(before))
    assert (("InitProducerId", PRODUCER_FENCED.code) in both.codes) == moving.coordinators
    both.ask(InitProducerId(None))


def check_going_on(both: Both, moving: Moving) -> None:
    """An open transaction stays open: the newest batch is known as a duplicate, the next is taken, one with a gap is not.

    The batch before the newest is a duplicate to a replica that has followed; a broker that was restarted does not know it.
    """
    ours = both.ours
    assert both.ask(Produce(ours, 0, 1, (101,))) == codes.NONE
    older = both.ask(Produce(ours, 0, 0, (100,)))
    assert older == (OUT_OF_ORDER.code if moving.restarts else codes.NONE)
    for sequence in (7, 2):
        both.ask(Produce(ours, 0, sequence, (100 + sequence,)))
    for _ in range(2):
        both.ask(EndTransaction(ours, commit=True))
    both.ask(FetchOffsets())
    both.finish()


def check_held_back(older: Both) -> None:
    """What waited for it can be read when it has ended."""
    partition = older.model.partitions[0]
    assert partition.hanging
    older.ask(EndTransaction(older.ours, commit=True))
    older.compare_stable()
    assert not partition.hanging


def check_ended_again(both: Both) -> None:
    """A commit whose answer was lost is asked for again after the move; a late write of its transaction is refused."""
    ours = both.ours if both.real.version == 1 else both.known[-2][0]
    for request in (EndTransaction(ours, commit=True), EndTransaction(ours, commit=False), Produce(ours, 0, 1, (101,))):
        both.ask(request)
    both.finish()


def refuse_first(both: Both) -> None:
    """A first batch comes before its partition is in the transaction (version 1). The leader notes its sequence, in memory."""
    both.ask(InitProducerId(None))
    both.ask(Produce(both.ours, 0, 0, (100,)))


def check_after_refused(both: Both, moving: Moving) -> None:
    """The batch behind it is no first one, but for a leader that never saw the first: why lanes repair in order."""
    if both.real.version == 1:
        both.ask(AddPartitions(both.ours, 0))
    both.ask(Produce(both.ours, 0, 3, (103,)))
    taken = ("Produce", OUT_OF_ORDER.code) not in both.codes
    assert taken == (both.real.version == 1 and moving.leaders)
    both.finish()
