"""A request that arrived and whose answer did not: it is found out, and nothing is done twice."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.light import FailsOnce, Job, LightDriver
from tests.faults.support import Cluster, expected_records

from onceflow.broker import EmbeddedBroker
from onceflow.broker.settings import HOST
from onceflow.errors import BrokerUnreachable, OutcomeUnknown
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction import executor_path
from onceflow.transaction.compression import Codec
from onceflow.transaction.router import Encoding
from onceflow.verify.wire import ActiveRule, Direction, Do, Rule, Wire, apis

if TYPE_CHECKING:
    from tests.conftest import Workbench

pytestmark = [pytest.mark.faults, pytest.mark.in_turn(2)]

# What a driver asks: api key, the how manieth request of it, in which transaction versions
REQUESTS = {
    "the cluster's features": (apis.API_VERSIONS, 2, (1, 2)),  # behind those of two connections
    "the coordinator's address": (apis.FIND_COORDINATOR, 0, (1, 2)),
    "the first look": (apis.DESCRIBE_TRANSACTIONS, 0, (1, 2)),
    "the fence": (apis.INIT_PRODUCER_ID, 0, (1, 2)),
    "a fresh epoch": (apis.INIT_PRODUCER_ID, 1, (1,)),
    "the group coordinator's address": (apis.FIND_COORDINATOR, 1, (1, 2)),
    "the progress": (apis.OFFSET_FETCH, 0, (1, 2)),
    "the second look": (apis.DESCRIBE_TRANSACTIONS, 1, (1, 2)),
    "the claim's group": (apis.ADD_OFFSETS, 0, (1,)),
    "the claim's offsets": (apis.TXN_OFFSET_COMMIT, 0, (1, 2)),
    "the claim's commit": (apis.END_TXN, 0, (1, 2)),
    "the topic's leaders": (apis.METADATA, 2, (1, 2)),  # behind those of the cluster, and of the topic of the progress
    "the topic's limit": (apis.DESCRIBE_CONFIGS, 0, (1, 2)),
    "the batch's partitions": (apis.ADD_PARTITIONS, 0, (1,)),
    "the first records": (apis.PRODUCE, 0, (1, 2)),
    "the last records": (apis.PRODUCE, 5, (1, 2)),
    "the audit": (apis.DESCRIBE_PRODUCERS, 0, (1, 2)),
    "the batch's group": (apis.ADD_OFFSETS, 1, (1,)),
    "the batch's offsets": (apis.TXN_OFFSET_COMMIT, 1, (1, 2)),
    "the batch's commit": (apis.END_TXN, 1, (1, 2)),
}


@contextmanager
def losing(
    api: int, first: int, count: int = 1, then: Callable[[], object] = lambda: None
) -> Iterator[tuple[Wire, ActiveRule]]:
    """A wire that loses answers to one kind of request, and the rule that counts them."""
    with Wire() as wire:
        rule = Rule(Do.CUT, frozenset({api}), Direction.ANSWER, first=first, count=count, then=then)
        yield wire, wire.rules.add(rule)


def job(cluster: Cluster, directory: Path, wire: Wire) -> Job:
    name = cluster.unique("lost")
    options = {"proxy_url": wire.url}
    checkpoint = str(directory / name)
    return Job(cluster.servers, name, cluster.make_topic(), checkpoint, patience_s=30.0, options=options)


@pytest.mark.parametrize("what", list(REQUESTS))
def test_the_answer_is_lost(cluster: Cluster, tmp_path: Path, what: str) -> None:
    api, number, versions = REQUESTS[what]
    if cluster.broker.status().transaction_version not in versions:
        pytest.skip("no such request in this transaction version")
    with losing(api, number) as (wire, loss):
        driver = LightDriver(job(cluster, tmp_path, wire))
        driver.run()
    assert loss.applied == 1
    cluster.check_exactly(driver.topic, expected_records(2))
    assert "ABORT" not in [step for step, _ in driver.steps]
    assert [step for step, _ in driver.steps].count("WRITE") == 2, "a batch was written again"


def test_no_commit_is_answered_until_the_driver_gives_up(cluster: Cluster, tmp_path: Path) -> None:
    """The outcome is unknown: an error that says so; the same driver then looks, and finds it committed."""
    with losing(apis.END_TXN, 1, count=10**6) as (wire, _):
        driver = LightDriver(job(cluster, tmp_path, wire))
        coordinator = driver.open()
        driver.requests.client.patience_s = 15.0
        with pytest.raises(OutcomeUnknown, match="a commit was sent and not answered"):
            driver.run_batch(coordinator, 0)
        assert [step for step, _ in driver.steps].count("ABORT") == 0
        steps_before = len(driver.steps)
        driver.requests.client.patience_s = 30.0
        driver.run_batch(coordinator, 0)
        driver.close()
    assert [step for step, _ in driver.steps[steps_before:]] == ["LOOK", "CHECK_CLAIM", "RETAKE", "RESOLVE", "DONE"]
    cluster.check_exactly(driver.topic, expected_records(1))


class AbortsUnheard(FailsOnce):
    """The next answer to an InitProducerId is lost, from its abort on: how many come before depends on how fast markers are."""

    def __init__(self, job: Job, wire: Wire) -> None:
        super().__init__(job)
        self._wire = wire
        self.losses: list[ActiveRule] = []

    def step(self, step: str, batch_id: int) -> None:
        if step == "ABORT":
            rule = Rule(Do.CUT, frozenset({apis.INIT_PRODUCER_ID}), Direction.ANSWER, count=1)
            self.losses.append(self._wire.rules.add(rule))
        super().step(step, batch_id)


def test_the_answer_to_the_abort_of_version_1_is_lost(v1: Cluster, tmp_path: Path) -> None:
    with Wire() as wire:
        driver = AbortsUnheard(job(v1, tmp_path, wire), wire)
        driver.run()
    assert [loss.applied for loss in driver.losses] == [1]
    assert [step for step, _ in driver.steps].count("WRITE") == 2 + 1
    v1.check_exactly(driver.topic, expected_records(2))


@pytest.mark.parametrize(
    ("version", "what"),
    [
        *product((1, 2), ("the batch's commit", "the batch's offsets", "the first records")),
        (1, "a fresh epoch"),
    ],
)
def test_the_broker_is_killed_before_it_can_answer(
    mortal: Callable[[int], EmbeddedBroker], tmp_path: Path, version: int, what: str
) -> None:
    """The request is in the broker's log, its answer is not, and another incarnation of the coordinator is asked again."""
    api, number, _ = REQUESTS[what]
    broker = mortal(version)
    cluster = Cluster(broker)

    def restart() -> None:
        broker.kill()
        broker.start()

    with losing(api, number, then=restart) as (wire, loss):
        driver = LightDriver(replace(job(cluster, tmp_path, wire), patience_s=60.0))
        driver.run()
    assert loss.applied == 1
    cluster.check_exactly(driver.topic, expected_records(2))
    cluster.close()


def test_a_slow_query_does_not_use_up_the_patience_of_the_write(v2: Cluster, tmp_path: Path) -> None:
    """The write begins when the first rows come; what the query took until then is no silence of the broker."""
    with losing(apis.PRODUCE, 0) as (wire, loss):
        driver = LightDriver(job(v2, tmp_path, wire))
        driver.before_records = lambda producer: setattr(producer, "_last_progress", producer._last_progress - 1000)
        driver.run()
    assert loss.applied == 1
    v2.check_exactly(driver.topic, expected_records(2))


def test_executors_are_as_patient_as_the_sink(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = bench.topic(), bench.topic()
    bench.fill(source, [("k", "1")])
    direct = ClusterSettings.for_protocol
    with Wire() as wire:
        wire.rules.add(Rule(Do.DROP, frozenset({apis.PRODUCE}), Direction.ANSWER))
        monkeypatch.setattr(ClusterSettings, "for_protocol", lambda self: {**direct(self), "proxy_url": wire.url})
        with pytest.raises(Exception, match="no record was acknowledged for 10 s"):
            bench.run(source, target, {"driver_bytes": 0, "patience_s": 10.0})
    assert bench.read(target) == []


def test_a_task_that_asks_for_a_topic_is_as_patient_as_the_sink() -> None:
    """Of a broker that takes the connection, and says nothing."""
    with socket.create_server((HOST, 0)) as silent, ExitStack() as opened:
        servers = {"bootstrap_servers": ["{}:{}".format(*silent.getsockname())]}
        task = executor_path._Encode(Encoding(None, Codec.NONE, 0, 0), {}, servers, patience_s=0.3, writers=1)
        with pytest.raises(BrokerUnreachable, match=r"answered within 0\.3 s"):
            executor_path._Finder(task, opened).find("asked")
