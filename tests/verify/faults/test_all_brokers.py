"""All brokers are killed at once, while the markers of a transaction are under way: what was decided is so everywhere."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from tests.faults.newer import NEWER
from tests.faults.support import Cluster
from tests.verify.faults.bare import BareWorld, SteadyDriver

from onceflow.broker.installation import LOCKED, Installation
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.faults.brokers import KillAllBrokers
from onceflow.verify.running.world import World

pytestmark = pytest.mark.faults


ROUNDS = 12
SKIPPED = "these partitions are likely deleted already and hence can be skipped"


def meshed(directory: Path, version: int, installation: Installation = LOCKED) -> KafkaCluster:
    """Three brokers that reach each other through wires."""
    return KafkaCluster(
        directory, brokers=3, heap_mb=192, between=True, transaction_version=version, installation=installation
    )


@pytest.mark.parametrize("version", [1, 2])
def test_a_driver_goes_on_and_writes_once(version: int, tmp_path: Path) -> None:
    with meshed(tmp_path, version) as kafka, closing(Cluster(kafka)) as judge:
        driver = SteadyDriver(kafka, tmp_path)
        driver.goes_on()
        world, before = BareWorld(kafka, driver), {node.pid for node in kafka.nodes}
        KillAllBrokers().inject(world.as_world(), Random(1))
        assert not world.misses
        assert before.isdisjoint({node.pid for node in kafka.nodes})
        driver.goes_on()
        judge.check_exactly(driver.name, driver.end())
        assert driver.fenced == 0, "nobody else was there"
        assert not has_skipped(kafka)


@pytest.mark.long
def test_control_newer_brokers_skip_the_markers_of_partitions_without_a_leader(tmp_path: Path) -> None:
    """KAFKA-20734. Not each time: who is back first, and what it coordinates, is chance."""
    with meshed(tmp_path, 1, NEWER) as kafka:
        driver = SteadyDriver(kafka, tmp_path)
        driver.goes_on()
        world = BareWorld(kafka, driver).as_world()
        assert any(skips(kafka, world, seed) for seed in range(ROUNDS))


def skips(kafka: KafkaCluster, world: World, seed: int) -> bool:
    KillAllBrokers().inject(world, Random(seed))
    return has_skipped(kafka)


def has_skipped(kafka: KafkaCluster) -> bool:
    return any(SKIPPED in (node.directory / "broker.log").read_text() for node in kafka.nodes)
