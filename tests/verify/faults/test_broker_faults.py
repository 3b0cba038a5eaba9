"""Each fault of the brokers really happens, is healed, and costs a pipeline that commits all the time not one record."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Self

import pytest
from tests.faults.support import Cluster, eventually
from tests.verify.faults.bare import PATIENCE_S, BareWorld, SteadyDriver, leaders

from onceflow.verify.cluster import KafkaCluster, Node, placement
from onceflow.verify.faults.brokers import (
    KillBroker,
    KillCoordinator,
    MoveCoordinator,
    MoveLeader,
    PauseBroker,
    Role,
    RollBrokersClean,
    RollBrokersHard,
)
from onceflow.verify.faults.disk import FullDisk
from onceflow.verify.faults.foreign import AddOutputPartition, HijackTransactionalId
from onceflow.verify.matrix.bounces import BounceBroker
from onceflow.verify.matrix.cells import How

pytestmark = pytest.mark.faults

FAREWELL = "The controller has asked us to exit controlled shutdown"


@pytest.fixture
def world(three_brokers: KafkaCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BareWorld]:
    """With a driver that writes; at the end all it has committed is there exactly once."""
    driver = SteadyDriver(three_brokers, tmp_path)
    driver.goes_on()
    yield BareWorld(three_brokers, driver)
    driver.goes_on()
    three_brokers.wait_until_healthy()
    judge = Cluster(three_brokers)
    written = driver.end()
    assert driver.fenced == 0 or request.function is test_hijack, "nobody else was there"
    judge.check_exactly(driver.name, written)
    judge.close()


def pids(world: BareWorld) -> dict[int, int | None]:
    return {node.id: node.pid for node in world.kafka.nodes}


def changed(before: dict[int, int | None], after: dict[int, int | None]) -> set[int]:
    assert None not in after.values()
    return {node for node in before if before[node] != after[node]}


def is_missed(kafka: KafkaCluster, node: Node) -> bool:
    """Whether no other node lists it at this moment; a busy one is asked until it answers."""
    client = kafka.client

    def view_of(other: Node) -> placement.View:
        view: placement.View = client.repeat(lambda: placement.view(client, other.id, topics=[]), "who is there")
        return view

    return all(node.id not in view_of(other).nodes for other in kafka.others(node))


class LeastInSync:
    """Looks all the time how many replicas of the output's first partition are in sync."""

    def __init__(self, world: BareWorld) -> None:
        self._world = world
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.least = 3

    def _look(self) -> None:
        while not self._ending.wait(0.05):
            found = placement.replicas_of(self._world.kafka.client, self._world.topics_out[0], 0)
            self.least = min(self.least, len(found.in_sync))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        self._thread.join(PATIENCE_S)


def test_kill_broker(world: BareWorld) -> None:
    before = pids(world)
    KillBroker().inject(world.as_world(), Random(1))
    assert len(changed(before, pids(world))) == 1


def test_pause_broker(world: BareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lasts until the others miss the node, and not for a time alone: a new controller counts from its own beginning."""
    monkeypatch.setattr(world, "sleep", lambda seconds: None)
    before, heal = pids(world), KafkaCluster.heal
    missed: list[bool] = []

    def look_and_heal(self: KafkaCluster) -> None:
        missed.extend(is_missed(self, node) for node in self.nodes if node.is_paused)
        eventually(lambda: looking.least, lambda least: least < 3, "the frozen node leaves the set in sync", PATIENCE_S)
        heal(self)

    monkeypatch.setattr(KafkaCluster, "heal", look_and_heal)
    with LeastInSync(world) as looking:
        PauseBroker().inject(world.as_world(), Random(1))
    assert missed == [True]
    assert pids(world) == before


@pytest.mark.parametrize(
    "fault", [pytest.param(RollBrokersClean(), marks=pytest.mark.long), RollBrokersHard()], ids=lambda fault: fault.name
)
def test_roll_brokers(world: BareWorld, fault: RollBrokersClean | RollBrokersHard) -> None:
    before = pids(world)
    fault.inject(world.as_world(), Random(1))
    assert changed(before, pids(world)) == {1, 2, 3}


@pytest.mark.parametrize("how", How)
def test_bounce_broker(world: BareWorld, how: How, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hard bounce lasts until the others no longer know the node, a clean one lets it hand over what it leads."""
    before, node = pids(world), world.kafka.nodes[1]
    log = node.directory / "broker.log"
    farewells = log.read_text().count(FAREWELL)
    fenced: list[bool] = []
    start = Node.start

    def look_and_start(self: Node) -> None:
        fenced.append(is_missed(world.kafka, self))
        start(self)

    monkeypatch.setattr(Node, "start", look_and_start)
    assert not world.kafka.is_fenced(node)
    BounceBroker(how, 1).inject(world.as_world(), Random(1))
    assert changed(before, pids(world)) == {node.id}
    assert fenced == [True] or how is How.CLEAN
    assert not world.kafka.is_fenced(node)
    assert log.read_text().count(FAREWELL) - farewells == (how is How.CLEAN)


@pytest.mark.parametrize(
    ("fault", "find"),
    [
        (KillCoordinator("kill", Role.TRANSACTIONS), KafkaCluster.transaction_coordinator),
        pytest.param(KillCoordinator("kill", Role.OFFSETS), KafkaCluster.group_coordinator, marks=pytest.mark.long),
    ],
    ids=["transactions", "group"],
)
def test_kill_coordinator(
    world: BareWorld, fault: KillCoordinator, find: Callable[[KafkaCluster, str], object]
) -> None:
    before, old = pids(world), find(world.kafka, world.transactional_id)
    fault.inject(world.as_world(), Random(1))
    assert find(world.kafka, world.transactional_id) is not old
    assert len(changed(before, pids(world))) == 1
    assert world.struck_after == 1, "what came while it waited it has not met"


@pytest.mark.parametrize(
    ("fault", "find"),
    [
        (MoveCoordinator("move", Role.TRANSACTIONS), KafkaCluster.transaction_coordinator),
        (MoveCoordinator("move", Role.OFFSETS), KafkaCluster.group_coordinator),
    ],
    ids=["transactions", "group"],
)
def test_move_coordinator(
    world: BareWorld, fault: MoveCoordinator, find: Callable[[KafkaCluster, str], object]
) -> None:
    before = pids(world)
    for seed in range(3):
        old = find(world.kafka, world.transactional_id)
        fault.inject(world.as_world(), Random(seed))
        assert find(world.kafka, world.transactional_id) is not old
    assert pids(world) == before


def test_move_leader(world: BareWorld) -> None:
    for seed in range(3):
        before = leaders(world.kafka.client, world.topics_out[0])
        MoveLeader().inject(world.as_world(), Random(seed))
        after = leaders(world.kafka.client, world.topics_out[0])
        assert sum(before[partition] != after[partition] for partition in before) == 1


def test_full_disk(world: BareWorld) -> None:
    """Nobody ends the node but itself, and nothing was written beyond the limit."""
    before = pids(world)
    FullDisk().inject(world.as_world(), Random(1))
    assert len(changed(before, pids(world))) == 1
    limit, size = (int(re.findall(r"(\d+) bytes", note)[0]) for note in world.notes)
    assert 0 < size <= limit


def test_hijack(world: BareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a driver that tells no steps; for those that do see test_foreign_faults.py."""
    looks = world.driver_of_batches.steps.count("LOOK")
    with monkeypatch.context() as silent:
        silent.setattr(SteadyDriver, "steps", [])
        HijackTransactionalId().inject(world.as_world(), Random(1))
    assert world.struck_after == len(world.slept) == 1, "what came while it waited it has not met"
    driver = world.driver_of_batches
    eventually(lambda: driver.steps.count("LOOK") > looks or driver.failure, bool, "the epoch is refused", PATIENCE_S)


def test_a_partition_more_in_the_output(world: BareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = world.topics_out[0]
    with monkeypatch.context() as silent:
        silent.setattr(SteadyDriver, "steps", [])
        AddOutputPartition().inject(world.as_world(), Random(1))
    assert len(leaders(world.kafka.client, topic)) == 4
