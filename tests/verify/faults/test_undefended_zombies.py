"""Zombies on a real broker: what they break of a driver that nobody can fence, and not of one that the next one fences.

The undefended one differs in nothing but its name: each start takes one of its own, and so a transactional id that nobody else
asks for. Batches, transactions and the checkpoint are as ever, and one that wakes, or was there before, writes what the other one
writes::

    old   batch 7 is under way: SIGSTOP
    new   begins where the checkpoint ends, with batch 7, and commits 7, 8, 9, …
    old   SIGCONT: commits batch 7, or what timed out once more; then 8, 9, …
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.faults.light import RECORDS_PER_BATCH
from tests.faults.support import PUNCTUAL
from tests.verify.faults.light_engine import UNFENCED
from tests.verify.faults.light_history import judged
from tests.verify.faults.light_world import LIGHT_IN_TWO, PATIENCE_S, at_work, engine_for, make_tests_importable

from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.engines.lines import Do, Order
from onceflow.verify.faults import driver as driver_faults
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.faults.driver import PauseDriver, PauseDriverPython, PauseJvm, SecondDriver
from onceflow.verify.faults.standbys import PauseStandby
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.life import Life

pytestmark = pytest.mark.faults

TIMEOUT_S = 1
BOTH = 2  # batches that both have committed: one of them a kill could repeat as well
ZOMBIES = pytest.mark.parametrize(
    "fault",
    [
        PauseDriver(),
        *(
            pytest.param(fault, marks=pytest.mark.long)
            for fault in (PauseJvm(), PauseDriverPython(), PauseStandby(), SecondDriver())
        ),
    ],
    ids=lambda fault: fault.name,
)


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.long), 2], ids=["v1", "v2"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One broker, which aborts a transaction soon after its timeout, and not up to 10 s later."""
    directory = tmp_path_factory.mktemp("zombies")
    with KafkaCluster(directory, transaction_version=request.param, heap_mb=192, config=PUNCTUAL) as running:
        yield running


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    make_tests_importable(monkeypatch)
    monkeypatch.setattr(driver_faults, "_BEYOND_TIMEOUT_S", 1.0)


@ZOMBIES
def test_a_driver_that_the_next_one_fences_repeats_nothing(cluster: KafkaCluster, tmp_path: Path, fault: Fault) -> None:
    with at_work(cluster, tmp_path, engine=engine_for(fault), timeout_s=TIMEOUT_S) as world:
        fault.inject(world, Random(1))
        (old,) = world.driver._replaced
        assert old.failure is not None
        assert old.failure.code == "FENCED"
        found = judged(world)
    assert (found.violations, found.lack, found.not_judged) == ({}, "", ())


@ZOMBIES
def test_control_a_driver_that_nobody_fences_repeats_what_the_next_one_writes(
    cluster: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
) -> None:
    monkeypatch.setattr(DriverProcess, "await_end", end_when_both_have_written)
    with at_work(cluster, tmp_path, UNFENCED, engine=engine_for(fault), timeout_s=TIMEOUT_S) as world:
        fault.inject(world, Random(1))
        (old,) = world.driver._replaced
        assert old.finished, "it went on until it was asked to end"
        violations = judged(world).violations
    assert violations["duplicated"] >= BOTH * RECORDS_PER_BATCH
    assert "lost" not in violations


@pytest.mark.long
def test_without_a_zombie_a_driver_that_nobody_fences_repeats_nothing(cluster: KafkaCluster, tmp_path: Path) -> None:
    """Where one begins when the other has ended: so it is the zombie that breaks it."""
    with at_work(cluster, tmp_path, UNFENCED, engine=LIGHT_IN_TWO, timeout_s=TIMEOUT_S) as world:
        world.driver.end_in_order()
        found = judged(world)
        assert world.driver.generation > 1
    assert (found.violations, found.lack, found.not_judged) == ({}, "", ())


def end_when_both_have_written(driver: DriverProcess, old: Life, patience_s: float) -> bool:
    """In ``await_end``'s place, for one that nobody ends: it is asked to end once it has committed what the other has, too."""

    def both_have_written() -> bool:
        new = driver._current
        if new is None or new.batches < BOTH:
            return old.ended
        first = new.committed - new.batches + 1
        return old.ended or (old.batches >= BOTH and old.committed >= first + BOTH - 1)

    assert driver._await(both_have_written, PATIENCE_S)
    by_itself = old.ended
    old.running.order(Order(Do.STOP))
    assert driver._await(lambda: old.ended, PATIENCE_S)
    old.running.reap()
    return by_itself
