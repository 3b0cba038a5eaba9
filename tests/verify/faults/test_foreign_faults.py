"""Others disturb a driver on a real broker right before each step of a batch: it loses nothing, and repeats nothing.

What breaks a protocol that takes a refused commit for done is in test_undefended_drivers.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.verify.faults.light_history import judged
from tests.verify.faults.light_world import LIGHT, PATIENCE_S, at_work, make_tests_importable
from tests.verify.running.injected import injected

from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.faults.foreign import AddInputPartition, AddOutputPartition, HijackTransactionalId

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("foreign"), transaction_version=request.param, heap_mb=192) as running:
        yield running


@pytest.mark.parametrize(
    "fault", [HijackTransactionalId(), AddOutputPartition(), AddInputPartition()], ids=lambda fault: fault.name
)
def test_it_meets_a_batch_at_the_step_that_it_has_drawn_and_costs_no_record(
    cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    make_tests_importable(monkeypatch)
    with at_work(cluster, tmp_path) as working:
        world = replace(working, topics_in=working.topics_out)  # a driver without input
        for step in LIGHT.steps:
            world.driver.course.engine = replace(LIGHT, steps=(step,))
            met = injected(world, fault)
            assert (met.met, f"right before {step}" in met.found) == (True, True), met.found
            assert world.driver.await_batches(2, PATIENCE_S)
        found = judged(world)
    assert (found.violations, found.lack, found.not_judged) == ({}, "", ())
