"""Identities that expire and epochs that end: it really happens, and costs whoever commits all the time not one record."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.faults.support import eventually
from tests.verify.faults.light_world import PATIENCE_S, at_work, found, make_tests_importable, proved

from onceflow.config import load
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.cluster.producer_ids import FORGET_SOON, known_at_leaders
from onceflow.verify.cluster.transaction_log import Entry, entry_of
from onceflow.verify.faults import driver as driver_faults
from onceflow.verify.faults import expiry
from onceflow.verify.faults.expiry import EXPIRY_FAULTS, ExpireIds, ExpireIdsOfZombie, LastEpochs
from onceflow.verify.result import Lane
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.life import Life
from onceflow.verify.running.timeline import Timeline
from onceflow.verify.running.world import PrivateWorld
from onceflow.verify.workload import builtin_plan

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.long)], ids=["v1", "v2"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One broker, which reads its log again when it is started again."""
    directory = tmp_path_factory.mktemp("expiring")
    with KafkaCluster(directory, transaction_version=request.param, heap_mb=192, config=FORGET_SOON) as running:
        yield running


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    make_tests_importable(monkeypatch)


@pytest.fixture
def world(cluster: KafkaCluster, tmp_path: Path) -> Iterator[PrivateWorld]:
    with proved(cluster, tmp_path) as world:
        yield world


def entry(world: PrivateWorld) -> Entry:
    known = entry_of(world.kafka.client, world.transactional_id)
    assert known is not None
    return known


def notes(driver: DriverProcess) -> list[str]:
    return [each.name for each in driver._timeline.happenings() if each.lane is Lane.NOTE]


@pytest.mark.parametrize(
    "lives_on", [0.0, pytest.param(1.0, marks=pytest.mark.long)], ids=["another starts", "the same goes on"]
)
def test_expire_ids(world: PrivateWorld, monkeypatch: pytest.MonkeyPatch, lives_on: float) -> None:
    monkeypatch.setattr(expiry, "_LIVES_ON", lives_on)
    before = entry(world).producer_id
    ExpireIds().inject(world, Random(1))
    assert "when all had forgotten producer " in world.said.met
    assert world.said.met.endswith("a batch was committed")
    assert entry(world).producer_id != before
    assert before not in known_at_leaders(world.kafka.client, world.topics_out)
    assert world.driver.generation == (1 if lives_on else 2)
    assert (world.driver.course.strikes, world.driver.course.outages) == ([], [])


@pytest.mark.parametrize("step", [pytest.param("WRITE", marks=pytest.mark.long), "DONE"])
def test_expire_ids_of_zombie(world: PrivateWorld, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    monkeypatch.setattr(expiry, "_quiet_step", lambda world, random: step)
    ExpireIdsOfZombie().inject(world, Random(1))
    assert world.said.met.startswith(f"driver 1 woke right before {step}, when all had forgotten producer ")
    (old,) = world.driver._replaced
    assert old.failure is not None
    assert old.failure.code == "FENCED"
    assert (world.driver.course.strikes, world.driver.course.outages) == ([], [])


@pytest.mark.long
def test_a_zombie_whose_successor_has_committed_nothing_shows_nothing(
    cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes to a name that nobody else has used: what the fault is about did not come. So it goes on, and is killed."""
    monkeypatch.setattr(driver_faults, "_ZOMBIE_PATIENCE_S", 1.0)
    monkeypatch.setattr(expiry, "_quiet_step", lambda world, random: "DONE")
    with at_work(cluster, tmp_path) as world:
        monkeypatch.setattr(DriverProcess, "await_batches", lambda driver, count, patience_s: False)
        ExpireIdsOfZombie().inject(world, Random(1))
    assert world.said.missed == "the one that took over committed nothing within 120 s"


@pytest.mark.long
def test_last_epochs(world: PrivateWorld) -> None:
    for seed in range(2):
        before = entry(world).producer_id
        LastEpochs().inject(world, Random(seed))
        assert f" follows {before}, which began at epoch 327" in world.said.met
        assert entry(world).producer_id != before
    assert world.driver.course.strikes == []


@pytest.mark.long
def test_of_three_brokers_another_one_takes_the_log_over(three_brokers: KafkaCluster, tmp_path: Path) -> None:
    with proved(three_brokers, tmp_path) as world:
        before = three_brokers.transaction_coordinator(world.transactional_id)
        for fault in (ExpireIds(), LastEpochs()):
            fault.inject(world, Random(1))
            assert world.said.met
            after = three_brokers.transaction_coordinator(world.transactional_id)
            assert after is not before
            before = after


def until_it_has_written(driver: DriverProcess, life: Life, _: float) -> bool:
    """In ``await_end``'s place, for a zombie that goes on. The first batch that it tells was committed before it slept."""
    enough = life.batches + 2
    assert driver._await(lambda: life.ended or life.batches >= enough, PATIENCE_S)
    by_itself = life.ended
    life.running.kill()
    return by_itself


def test_control_who_trusts_a_new_identity_writes_again_what_another_has_committed(
    cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for its next epoch by the one that it has, and takes any answer for a yes: nobody is known who could say no."""
    if cluster.transaction_version == 2:
        pytest.skip("there the end of a transaction gives the next epoch")
    monkeypatch.setattr(expiry, "_quiet_step", lambda world, random: "DONE")
    monkeypatch.setattr(DriverProcess, "await_end", until_it_has_written)
    with at_work(cluster, tmp_path, variant="trusts a new identity") as world:
        ExpireIdsOfZombie().inject(world, Random(1))
        assert any(each.startswith("the zombie did not end by itself") for each in notes(world.driver))
    assert max(Counter(found(world)).values()) > 1


@pytest.mark.parametrize(
    "fault", [ExpireIds(), pytest.param(LastEpochs(), marks=pytest.mark.long)], ids=lambda fault: fault.name
)
def test_control_who_takes_another_producer_id_for_another_driver_stops_and_there_is_none(
    cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: ExpireIds | LastEpochs
) -> None:
    """The same faults as above, under which ours goes on."""
    monkeypatch.setattr(expiry, "_LIVES_ON", 1.0)
    with at_work(cluster, tmp_path, variant="takes another producer id for another driver") as world:
        before = world.driver.generation
        fault.inject(world, Random(1))
        first = before if isinstance(fault, ExpireIds) else before + 1  # that one has another start behind it
        told = f"driver {first} ended with FENCED"
        eventually(lambda: notes(world.driver), lambda found: any(each.startswith(told) for each in found), told)
        assert world.driver.course.strikes == [], "nobody has killed or replaced it"


@pytest.mark.parametrize("fault", EXPIRY_FAULTS, ids=lambda fault: fault.name)
def test_who_has_no_transactional_id_meets_none_of_them(
    cluster: KafkaCluster, tmp_path: Path, fault: ExpireIds | ExpireIdsOfZombie | LastEpochs
) -> None:
    """Spark's own sink, say, or an engine that has another id. Its driver is left alone."""
    plan = load(builtin_plan(), {}).plan.model_copy(update={"name": "nobody"})
    nobody: Any = None
    world = PrivateWorld(cluster, None, nobody, plan, tmp_path, (), (), Timeline(), threading.Event())
    fault.inject(world, Random(1))
    assert world.said.missed == "no coordinator knows onceflow-nobody"
