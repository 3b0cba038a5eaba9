"""The model against a leader whose followers fail: it may not append, or it appends and cannot acknowledge."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import cast

import pytest
from confluent_kafka.admin import NewTopic
from tests.conftest import read_topic
from tests.verify.simulator.both import KINDS, NEVER_GIVEN, PARTITIONS, Both, check_readable, check_visible
from tests.verify.simulator.conftest import make_topic
from tests.verify.simulator.real import RealBroker
from tests.verify.simulator.waiting import open_two, open_waiting

from onceflow.broker import EmbeddedBroker
from onceflow.kafka import codes
from onceflow.kafka.client import Again, KafkaClient
from onceflow.verify.cluster import KafkaCluster, Node, placement
from onceflow.verify.cluster.placement import COORDINATED_IN
from onceflow.verify.simulator.requests import (
    INVALID_PRODUCER_EPOCH,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER,
    AddPartitions,
    DescribeProducer,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    Produce,
)

TOPIC = "followers-fail"
OF_TWO = f"{TOPIC}-of-two"
REQUEST_TIMED_OUT = 7
IDS = 8
REQUESTS = 15
ENDS_NOTHING = {kind: KINDS[kind] for kind in ("add", "offsets", "transaction", "producer", "produce")}
"""Whatever ends a transaction waits for its markers, and they wait for replicas."""


@pytest.mark.faults
def test_the_model_answers_as_a_leader_whose_followers_fail(three_brokers: KafkaCluster, direct: KafkaClient) -> None:
    """Of partition 0 one replica is left, and two have to be in sync; partition 1 and the coordinators have enough."""
    leader, follower, third = three_brokers.nodes
    replicas = [[leader.id, follower.id], [leader.id, third.id]]
    for name in (TOPIC, OF_TWO):
        make_topic(three_brokers, NewTopic(name, PARTITIONS, replica_assignment=replicas))

    def real(name: str, to: str = TOPIC) -> RealBroker:
        return RealBroker(direct, f"{TOPIC}-{name}", three_brokers.transaction_version, to)

    two = open_two(partial(real, to=OF_TWO))
    waiting = [*open_waiting(three_brokers, real), *two]
    coordinate_everything(three_brokers, leader)
    several = [Both(real(f"any-{n}"), Random(n)) for n in range(IDS)]
    steps(several, KINDS)
    unacknowledged, fenced = Both.opened(real("unacknowledged")), Both.opened(real("fenced"))
    fenced.ask(InitProducerId(None))
    follower.pause()
    third.pause()
    check_unacknowledged(unacknowledged)
    third.resume()
    wait_until_missing(three_brokers, follower, seen_by=leader)
    ending = [each.both for each in waiting]
    everybody = [*several, *ending, unacknowledged, fenced, Both(real("beginning"), Random(0))]
    for both in everybody:
        both.model.partitions[0].refuses = NOT_ENOUGH_REPLICAS
        both.real.told = frozenset({NOT_ENOUGH_REPLICAS.code})
    check_refused(everybody[-1], unacknowledged, fenced)
    steps(several, ENDS_NOTHING)
    for each in waiting:
        each.decide()
        each.ask_meanwhile()
    coordinate_everything(three_brokers, third)
    for both in everybody:
        both.move(coordinators=True, leaders=False, restarts=False)
    for each in waiting:
        each.ask_meanwhile()
    three_brokers.heal()
    for both in everybody:
        both.model.partitions[0].refuses = None
        both.real.told = frozenset()
    check_repaired(everybody[-1], unacknowledged)
    for each in waiting:
        each.settle()
    steps(several, KINDS)
    for both in everybody:
        both.finish()
    elsewhere = {each.both for each in two}
    check_visible(
        (both for both in everybody if both not in elsewhere), read_topic(cast(EmbeddedBroker, three_brokers), TOPIC)
    )
    check_readable(two[0].both.model.partitions, read_topic(cast(EmbeddedBroker, three_brokers), OF_TWO))


def coordinate_everything(cluster: KafkaCluster, node: Node) -> None:
    """So that nobody is missing but a follower."""
    for topic in COORDINATED_IN.values():
        for partition in cluster.client.topics([topic])[topic].leaders:
            cluster.move_leader(topic, partition, node)


def wait_until_missing(cluster: KafkaCluster, node: Node, *, seen_by: Node) -> None:
    """Until of all replicas those of one node alone are not in sync."""

    def once() -> None:
        for at, each in placement.view(cluster.client, seen_by.id).partitions.items():
            if set(each.in_sync) != set(each.replicas) - {node.id}:
                raise Again(f"{at} is {each}")

    cluster.client.repeat(once, f"node {node.id} leaves the sets in sync")


def steps(several: list[Both], kinds: dict[str, int]) -> None:
    for both in several:
        for _ in range(REQUESTS):
            both.step(kinds)


def check_unacknowledged(both: Both) -> None:
    """The followers count as in sync and are silent, and nobody can change that: two of three controllers are silent too.

    The batch is in the log, a repetition is known as one, and what comes after a gap is refused as ever: to the model it is a
    lost answer.
    """
    both.real.told = frozenset({REQUEST_TIMED_OUT})
    for _ in range(2):
        assert both.model.ask(Produce(both.ours, 0, 1, (101,))).code == codes.NONE
        assert both.real.ask(Produce(both.theirs, 0, 1, (101,))).code == REQUEST_TIMED_OUT
    both.ask(Produce(both.ours, 0, 7, (107,)))
    both.ask(DescribeProducer(0))
    assert met(both, "Produce") == {codes.NONE, OUT_OF_ORDER.code}


def check_refused(beginning: Both, unacknowledged: Both, fenced: Both) -> None:
    """Too few replicas say no to right, repeated and wrong sequences alike; but not to an identity that is refused."""
    for sequence in (1, 0, 7):
        unacknowledged.ask(Produce(unacknowledged.ours, 0, sequence, (100 + sequence,)))
    unacknowledged.ask(Produce(unacknowledged.ours, 1, 0, (200,)))
    older = fenced.known[-2][0]
    for identity in (older, NEVER_GIVEN):
        fenced.ask(Produce(identity, 0, 1, (101,)))
    assert INVALID_PRODUCER_EPOCH.code in met(fenced, "Produce")
    assert NOT_ENOUGH_REPLICAS.code not in met(fenced, "Produce")
    check_joined(beginning)


def check_joined(both: Both) -> None:
    """A partition whose first batch was refused by its leader is part of the transaction; the leader holds nothing of it."""
    both.ask(InitProducerId(None))
    if both.real.version == 1:
        both.ask(AddPartitions(both.ours, 0))
    for sequence in (0, 2):
        both.ask(Produce(both.ours, 0, sequence, (100 + sequence,)))
    both.ask(DescribeTransaction())
    both.ask(DescribeProducer(0))
    assert met(both, "Produce") == {NOT_ENOUGH_REPLICAS.code}


def check_repaired(beginning: Both, unacknowledged: Both) -> None:
    """As a lane repairs: the same batches again, oldest first; one that overtakes a refused first one is not taken for it."""
    for sequence in (1, 2):
        unacknowledged.ask(Produce(unacknowledged.ours, 0, sequence, (100 + sequence,)))
    for sequence in (2, 0, 1):
        beginning.ask(Produce(beginning.ours, 0, sequence, (100 + sequence,)))
    for both in (unacknowledged, beginning):
        both.ask(EndTransaction(both.ours, commit=True))


def met(both: Both, request: str) -> set[int]:
    """The codes that a kind of request was answered with."""
    return {code for kind, code in both.codes if kind == request}
