"""A broker that its peers cannot reach, and its clients can: one way and both, whatever it leads and coordinates.

And a leader that freezes with what nobody has followed yet, and leaders that hear nothing of what is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import tests.faults.light
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from tests.faults.light import Job, LightDriver, records_of
from tests.faults.support import Cluster, eventually, expected_records
from tests.faults.takeover import Died, Dying, listen
from tests.verify.faults.bare import PATIENCE_S, BareWorld, SteadyDriver

from onceflow.broker import EmbeddedBroker
from onceflow.kafka import codes
from onceflow.kafka.client import GROUP, Again, KafkaClient
from onceflow.kafka_python import FindCoordinatorRequest
from onceflow.transaction.asking import Asking
from onceflow.verify.cluster import KafkaCluster, Node, placement
from onceflow.verify.faults.brokers import PauseBroker
from onceflow.verify.faults.isolated import IsolateBroker, Way, cut_off
from onceflow.verify.wire import ActiveRule, Direction, Do, Rule, apis
from onceflow.writer.writer import Writer

pytestmark = pytest.mark.faults

EVENTS = [str(number) for number in range(20)]
GONE = [Way.OUT, Way.BOTH]  # the others miss it
TIMEOUT_S = 120.0


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.long), 2], ids=["v1", "v2"])
def meshed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers that reach each other through wires, of each transaction version."""
    directory = tmp_path_factory.mktemp("meshed")
    with KafkaCluster(directory, brokers=3, transaction_version=request.param, heap_mb=192, between=True) as cluster:
        yield cluster


@pytest.fixture
def judge(meshed: KafkaCluster) -> Iterator[Cluster]:
    found = Cluster(cast(EmbeddedBroker, meshed))
    yield found
    found.close()


def topic_of(cluster: KafkaCluster, judge: Cluster) -> tuple[str, Node]:
    """A topic of one partition with three replicas, and who leads it."""
    name = judge.unique("isolated")
    judge.admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    cluster.wait_until_healthy()
    return name, cluster.leader(name, 0)


def another_leads(cluster: KafkaCluster, topic: str, old: Node) -> bool:
    """As those see it who are not cut off."""
    other = cluster.others(old)[0]
    try:
        return placement.view(cluster.client, other.id, topics=[topic]).partitions[topic, 0].leader not in (-1, old.id)
    except Again:
        return False


def beginning_with(node: Node, way: Way, cluster: KafkaCluster) -> Random:
    """A source of chances whose first choices are these."""
    for seed in range(1000):
        random = Random(seed)
        if (random.choice(cluster.nodes), random.choice(list(Way))) == (node, way):
            return Random(seed)
    raise AssertionError(node)


WHO: dict[str, Callable[[KafkaCluster, SteadyDriver], Node]] = {
    "leader": lambda cluster, driver: cluster.leader(driver.name, 0),
    "coordinator": lambda cluster, driver: cluster.transaction_coordinator(f"onceflow-{driver.name}"),
}


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("way", Way, ids=lambda way: way.name.lower())
@pytest.mark.in_turn(3)
def test_a_driver_goes_on_and_writes_once(
    meshed: KafkaCluster, judge: Cluster, tmp_path: Path, way: Way, who: str
) -> None:
    driver = SteadyDriver(meshed, tmp_path)
    driver.goes_on()
    node, world = WHO[who](meshed, driver), BareWorld(meshed, driver)
    IsolateBroker().inject(world.as_world(), beginning_with(node, way, meshed))
    assert world.notes[-1].startswith(f"node {node.id} {way}: ")
    assert not world.misses
    driver.goes_on()
    judge.check_exactly(driver.name, driver.end())


@pytest.mark.parametrize("way", GONE, ids=lambda way: way.name.lower())
def test_a_writer_s_events_are_there_once(meshed: KafkaCluster, judge: Cluster, way: Way) -> None:
    """Nothing is acknowledged that the isolated leader has alone."""
    topic, leader = topic_of(meshed, judge)
    with Writer(bootstrap_servers=meshed.bootstrap_servers, source="shop") as writer:
        writer.send(topic, b"before", id="before").result()
        with meshed.peer_rules.during(*cut_off(meshed, leader, way)):
            sent = [writer.send(topic, text.encode(), id=text) for text in EVENTS]
            eventually(lambda: another_leads(meshed, topic, leader), bool, "another leader", PATIENCE_S)
        for delivery in sent:
            delivery.result()
    meshed.wait_until_healthy()
    assert [value for _, _, value in judge.read(topic)] == ["before", *EVENTS]


@pytest.mark.parametrize("way", GONE, ids=lambda way: way.name.lower())
def test_control_with_acks_of_the_leader_alone_they_are_lost(meshed: KafkaCluster, judge: Cluster, way: Way) -> None:
    """It acknowledges what it takes while nobody follows, and drops it when it follows."""
    topic, leader = topic_of(meshed, judge)
    lost = Producer({"bootstrap.servers": meshed.bootstrap_servers, "acks": 1, "log_level": 0})
    lost.produce(topic, "before")  # it knows the leader, and is connected to it
    assert lost.flush(TIMEOUT_S) == 0
    eventually(lambda: judge.read(topic), bool, "the event is with all of them", PATIENCE_S)
    with meshed.peer_rules.during(*cut_off(meshed, leader, way)):
        for text in EVENTS:
            lost.produce(topic, text)
        assert lost.flush(TIMEOUT_S) == 0, "all of them are acknowledged"
        eventually(lambda: another_leads(meshed, topic, leader), bool, "another leader", PATIENCE_S)
    meshed.wait_until_healthy()
    assert [value for _, _, value in judge.read(topic)] == ["before"]


# ------------------------------------------------------------------------- a leader that freezes, and wakes as none


@contextmanager
def nobody_follows(cluster: KafkaCluster, leader: Node) -> Iterator[None]:
    """Followers ask the leader for its records, and nothing arrives of what it answers; all else does, so nobody misses them."""
    lost = Rule(Do.DROP, frozenset({apis.FETCH}), Direction.ANSWER, nodes=frozenset({leader.id}), client="^broker-")
    with cluster.peer_rules.during(lost):
        yield


def freeze(cluster: KafkaCluster, leader: Node) -> None:
    """Until another one leads; then it wakes, and hears of that."""
    seed = next(seed for seed in range(1000) if Random(seed).choice(cluster.nodes) is leader)
    world = BareWorld(cluster)
    PauseBroker().inject(world.as_world(), Random(seed))
    assert world.notes == [f"node {leader.id} frozen"]


def is_written(node: Node, topic: str, text: str) -> bool:
    """Whether a node has it in its log."""
    return any(text.encode() in file.read_bytes() for file in node.directory.rglob(f"{topic}-0/*.log"))


def test_a_writer_s_events_are_there_once_though_the_leader_froze_that_alone_had_them(
    meshed: KafkaCluster, judge: Cluster
) -> None:
    topic, leader = topic_of(meshed, judge)
    events = [f"event {text}" for text in EVENTS]
    with Writer(bootstrap_servers=meshed.bootstrap_servers, source="shop") as writer:
        writer.send(topic, b"before", id="before").result()
        with nobody_follows(meshed, leader):
            sent = [writer.send(topic, text.encode(), id=text) for text in events]
            eventually(lambda: is_written(leader, topic, events[-1]), bool, "it has them", PATIENCE_S)
            assert not any(is_written(node, topic, events[0]) for node in meshed.others(leader))
            freeze(meshed, leader)
        for delivery in sent:
            delivery.result()
    assert [value for _, _, value in judge.read(topic)] == ["before", *events]


def test_control_with_acks_of_the_leader_alone_what_it_freezes_with_is_lost(
    meshed: KafkaCluster, judge: Cluster
) -> None:
    """It acknowledged what nobody had followed, and drops it when it wakes and hears that another one leads."""
    topic, leader = topic_of(meshed, judge)
    lost = Producer({"bootstrap.servers": meshed.bootstrap_servers, "acks": 1, "log_level": 0})
    lost.list_topics(topic, TIMEOUT_S)
    with nobody_follows(meshed, leader):
        for text in EVENTS:
            lost.produce(topic, text)
        assert lost.flush(TIMEOUT_S) == 0, "all of them are acknowledged"
        freeze(meshed, leader)
    assert not judge.read(topic)


# ------------------------------------------------------------------------- markers that do not come to the leaders

TIMES = 8  # that the next driver asks in vain


class Unheard(Dying):
    """Its commit is answered, and it ends; the leaders do not hear of it."""

    def __init__(self, job: Job, lose_markers: Callable[[], object]) -> None:
        super().__init__(job, "DONE")
        self._lose_markers = lose_markers

    def step(self, step: str, batch_id: int) -> None:
        if (step, batch_id) == ("COMMIT", 0):
            self._lose_markers()
        super().step(step, batch_id)


def test_who_takes_over_asks_again_as_long_as_the_markers_of_the_one_before_are_not_written(
    meshed: KafkaCluster, judge: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CONCURRENT_TRANSACTIONS each time, at which franz-go gave up. See ``tests/faults/test_known_bugs.py`` for who gives up."""
    topic, _ = topic_of(meshed, judge)
    job = Job(meshed.bootstrap_servers, topic, topic, str(tmp_path / topic), patience_s=PATIENCE_S)
    markers = Rule(Do.DROP, frozenset({apis.WRITE_TXN_MARKERS}))
    lost: list[ActiveRule] = []
    told: list[int] = []
    with ExitStack() as losing:

        def hear(code: int) -> None:
            told.append(code)
            if told.count(codes.CONCURRENT_TRANSACTIONS) == TIMES:
                losing.close()  # the coordinator finds the connection broken, and sends them again

        Unheard(job, lambda: lost.extend(losing.enter_context(meshed.peer_rules.during(markers)))).run()
        assert lost[0].wait_applied()
        listen(monkeypatch, hear)
        driver = LightDriver(job)
        driver.run()
    in_vain = told[: told.index(codes.NONE)]
    assert in_vain.count(codes.CONCURRENT_TRANSACTIONS) >= TIMES
    assert driver.done() == 2
    judge.check_exactly(topic, expected_records(2))


# ------------------------------------------------------------------------- a group coordinator that has been replaced


class DiesUnnoted(LightDriver):
    """Commits the batch, and is killed before its checkpoint knows."""

    def __init__(self, job: Job, last: int) -> None:
        super().__init__(job)
        self._last = last

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        if (step, batch_id) == ("DONE", self._last):
            raise Died


class ToldByTheOld(KafkaClient):
    """The first one that it asks for the group's coordinator is the old one, which takes itself for it; the next is any node."""

    def __init__(self, old: Node, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._old: int | None = old.id

    def ask(self, node_id: int | None, request: Any) -> Any:
        if isinstance(request, FindCoordinatorRequest) and request.key_type == GROUP and self._old is not None:
            node_id, self._old = self._old, None
        return super().ask(node_id, request)


def alone_with_the_group(cluster: KafkaCluster, name: str, topic: str) -> Node:
    """Makes a node coordinate the name's group that neither coordinates its transactions nor leads the topic."""
    node, other = cluster.others(cluster.transaction_coordinator(f"onceflow-{name}"))
    cluster.move_group_coordinator(f"onceflow-{name}", node)
    cluster.move_leader(topic, 0, other)
    cluster.wait_until_healthy()
    return node


def taken_over_from_the_old(
    cluster: KafkaCluster, judge: Cluster, directory: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The topic into which two drivers wrote three batches, the second of them while the old coordinator was cut off."""
    topic, _ = topic_of(cluster, judge)
    name = judge.unique("replaced")
    group = alone_with_the_group(cluster, name, topic)
    options = {"request_timeout_ms": 5_000}
    job = Job(cluster.bootstrap_servers, name, topic, str(directory / name), 1, patience_s=PATIENCE_S, options=options)
    first = LightDriver(job)
    first.run_batch(first.open(), 0)
    assert first.requests.read_committed().progress, "its markers are written, and with all replicas"
    first.close()
    with cluster.peer_rules.during(*cut_off(cluster, group, way)):
        eventually(lambda: cluster.is_fenced(group), bool, "the others miss it", PATIENCE_S)
        others = ",".join(node.address for node in cluster.others(group))
        with pytest.raises(Died):
            DiesUnnoted(replace(job, batches=2, bootstrap_servers=others), 1).run()
        monkeypatch.setattr(tests.faults.light, "KafkaClient", partial(ToldByTheOld, group))
        LightDriver(replace(job, batches=3, bootstrap_servers=group.address)).run()
    cluster.wait_until_healthy()
    return topic


@pytest.mark.parametrize("way", GONE, ids=lambda way: way.name.lower())
def test_who_takes_over_believes_no_group_coordinator_that_has_been_replaced(
    meshed: KafkaCluster, judge: Cluster, tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not heard that another one took over, and answers with what it knows: not with the batch that came since."""
    topic = taken_over_from_the_old(meshed, judge, tmp_path, way, monkeypatch)
    judge.check_exactly(topic, expected_records(3))


def test_control_who_believes_it_writes_the_batch_a_second_time(
    meshed: KafkaCluster, judge: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As onceflow did: KIP-447's stable read is answered by whoever takes itself for the coordinator."""
    store = Asking.store
    monkeypatch.setattr(
        Asking, "store", lambda asking, identity, progress, source, read: store(asking, identity, progress, source)
    )
    topic = taken_over_from_the_old(meshed, judge, tmp_path, Way.BOTH, monkeypatch)
    first, second, third = (records_of(batch) for batch in range(3))
    assert sorted((key, value) for _, key, value in judge.read(topic)) == sorted(first + second + second + third)
