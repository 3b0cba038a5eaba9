"""Killed drivers on a real broker: what a kill breaks of one that begins where its notes end, and not of one that asks Kafka.

Both note that a batch is done when they have committed the next one, so a kill at any moment finds the note a batch behind; or
both have a log whose newest entry is cut off meanwhile. The undefended one differs in nothing but its name: each start takes one
of its own, under which Kafka knows no progress.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.faults.light import RECORDS_PER_BATCH
from tests.verify.faults.light_engine import BY_LOG, BY_NOTES, KEEPS_LOG, NOTES_LATE
from tests.verify.faults.light_history import judged
from tests.verify.faults.light_world import at_work, engine_for, make_tests_importable

from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.faults.checkpoint import TornCheckpointWrite
from onceflow.verify.faults.driver import KillDriver, KillDriverPython, KillDriverTwice, KillJvm

pytestmark = pytest.mark.faults

KILLS = pytest.mark.parametrize(
    "fault",
    [
        KillDriver(),
        *(pytest.param(fault, marks=pytest.mark.long) for fault in (KillDriverTwice(), KillJvm(), KillDriverPython())),
    ],
    ids=lambda fault: fault.name,
)


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.long), 2], ids=["v1", "v2"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("kills"), transaction_version=request.param, heap_mb=192) as running:
        yield running


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    make_tests_importable(monkeypatch)


@KILLS
def test_a_driver_that_asks_kafka_repeats_nothing(cluster: KafkaCluster, tmp_path: Path, fault: Fault) -> None:
    with at_work(cluster, tmp_path, NOTES_LATE, engine=engine_for(fault)) as world:
        fault.inject(world, Random(1))
        found = judged(world)
        assert world.driver.generation > 1
    assert (found.violations, found.lack, found.not_judged) == ({}, "", ())


@KILLS
def test_control_a_driver_that_begins_where_its_notes_end_repeats_what_it_had_committed(
    cluster: KafkaCluster, tmp_path: Path, fault: Fault
) -> None:
    with at_work(cluster, tmp_path, BY_NOTES, engine=engine_for(fault)) as world:
        fault.inject(world, Random(1))
        violations = judged(world).violations
    assert violations["duplicated"] >= RECORDS_PER_BATCH
    assert "lost" not in violations


@pytest.mark.parametrize("seed", [0, 1])  # half of the entry is left, or nothing of it
def test_a_driver_that_asks_kafka_repeats_nothing_of_a_torn_entry(
    cluster: KafkaCluster, tmp_path: Path, seed: int
) -> None:
    with at_work(cluster, tmp_path, KEEPS_LOG) as world:
        TornCheckpointWrite().inject(world, Random(seed))
        found = judged(world)
        assert world.driver.generation > 1
    assert (found.violations, found.lack, found.not_judged) == ({}, "", ())


@pytest.mark.parametrize("seed", [0, 1])
def test_control_a_driver_that_begins_where_its_log_can_be_read_repeats_the_batch_of_a_torn_entry(
    cluster: KafkaCluster, tmp_path: Path, seed: int
) -> None:
    with at_work(cluster, tmp_path, BY_LOG) as world:
        TornCheckpointWrite().inject(world, Random(seed))
        violations = judged(world).violations
    assert violations["duplicated"] >= RECORDS_PER_BATCH
    assert "lost" not in violations
