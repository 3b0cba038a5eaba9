"""A batch is written, its answer is lost, and then its leader moves: what sounds like a refusal is none (KAFKA-13574).

The copy that is sent again meets a broker that leads no more, or the next leader, which knows it. A client that takes the last
answer for the outcome reports as failed what is in the log, and writes it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import NewTopic
from tests.faults.support import Cluster
from tests.new_topics import create
from tests.verify.faults.bare import PATIENCE_S, SteadyDriver

from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.wire import Direction, Do, Rule, apis

pytestmark = pytest.mark.faults

MOVES = 3


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.long), 2], ids=["v1", "v2"])
def moving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers whose leaders move, behind wires, of each transaction version."""
    directory = tmp_path_factory.mktemp("moving")
    with KafkaCluster(directory, brokers=3, transaction_version=request.param, heap_mb=192, wire=True) as cluster:
        yield cluster


@pytest.fixture
def judge(moving: KafkaCluster) -> Iterator[Cluster]:
    found = Cluster(moving)
    yield found
    found.close()


def move_leader(cluster: KafkaCluster, topic: str, partition: int = 0) -> None:
    cluster.move_leader(topic, partition, cluster.others(cluster.leader(topic, partition))[0])


def lost_answer(cluster: KafkaCluster, topic: str) -> Rule:
    """The answer to one produce request is lost, after its leader has moved."""
    then = partial(move_leader, cluster, topic)
    return Rule(Do.CUT, frozenset({apis.PRODUCE}), Direction.ANSWER, count=1, then=then)


def test_a_driver_writes_once_what_was_written_before_its_leader_moved(
    moving: KafkaCluster, judge: Cluster, tmp_path: Path
) -> None:
    driver = SteadyDriver(moving, tmp_path)
    for _ in range(MOVES):
        driver.goes_on()
        with moving.rules.during(lost_answer(moving, driver.name)) as (lost,):
            assert lost.wait_applied(timeout_s=PATIENCE_S)
            driver.goes_on()
        moving.wait_until_healthy()
    judge.check_exactly(driver.name, driver.end())


@pytest.mark.parametrize("idempotent", [True, False])
def test_control_a_producer_that_is_not_idempotent_writes_it_again(
    moving: KafkaCluster, judge: Cluster, idempotent: bool
) -> None:
    assert send_one(moving, judge, retries=10, idempotent=idempotent) == ([None], 1 if idempotent else 2)


def test_control_one_that_does_not_ask_again_reports_as_failed_what_is_in_the_log(
    moving: KafkaCluster, judge: Cluster
) -> None:
    ((error,), written) = send_one(moving, judge, retries=0)
    assert error is not None
    assert written == 1


def send_one(
    cluster: KafkaCluster, judge: Cluster, *, retries: int, idempotent: bool = False
) -> tuple[list[KafkaError | None], int]:
    """What is told of an event whose answer is lost, and how often it is in the log."""
    topic = judge.unique("ambiguous")
    create(judge.admin, NewTopic(topic, 1), PATIENCE_S)
    cluster.wait_until_healthy()
    settings = {"enable.idempotence": idempotent, "acks": "all", "retries": retries, "linger.ms": 0, "log_level": 0}
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
    told: list[KafkaError | None] = []
    with cluster.rules.during(lost_answer(cluster, topic)) as (lost,):
        producer.produce(topic, "v", key="k", partition=0, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(PATIENCE_S) == 0
        assert lost.applied == 1
    cluster.wait_until_healthy()
    return told, len(judge.read(topic))
