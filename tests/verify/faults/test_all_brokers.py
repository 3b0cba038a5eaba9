"""All brokers are killed at once, while the markers of a transaction are under way: what was decided is so everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import cast

import pytest
from tests.faults.support import Cluster
from tests.verify.faults.bare import BareWorld, SteadyDriver

from onceflow.broker import EmbeddedBroker
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.faults.brokers import KillAllBrokers

pytestmark = pytest.mark.faults


@pytest.fixture(params=[1, 2], ids=lambda version: f"v{version}")
def meshed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KafkaCluster]:
    """Three brokers that reach each other through wires."""
    version = request.param
    with KafkaCluster(tmp_path, brokers=3, heap_mb=192, between=True, transaction_version=version) as cluster:
        yield cluster


def test_a_driver_goes_on_and_writes_once(meshed: KafkaCluster, tmp_path: Path) -> None:
    driver = SteadyDriver(meshed, tmp_path)
    driver.goes_on()
    world, before = BareWorld(meshed, driver), {node.pid for node in meshed.nodes}
    KillAllBrokers().inject(world.as_world(), Random(1))
    assert before.isdisjoint({node.pid for node in meshed.nodes})
    assert "all nodes killed, 0 requests" not in world.notes[0]
    driver.goes_on()
    with closing(Cluster(cast(EmbeddedBroker, meshed))) as judge:
        judge.check_exactly(driver.name, driver.end())
    assert driver.fenced == 0, "nobody else was there"
