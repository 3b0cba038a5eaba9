"""A driver that stands still until its transaction is aborted, on a real broker, and wakes with nobody behind it (F15).

What it writes or commits then is refused by the errors that it would get if another driver had fenced it. The undefended one
takes a commit that is refused for one whose answer was lost, and goes on behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tests.faults.light import RECORDS_PER_BATCH
from tests.faults.support import PUNCTUAL
from tests.verify.faults.light_history import judged
from tests.verify.faults.light_world import LIGHT, LIGHT_IN_TWO, at_work, make_tests_importable

from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.engines import Engine
from onceflow.verify.engines.transaction import Transaction
from onceflow.verify.faults.driver import StallDriver

pytestmark = pytest.mark.faults

OPEN = [
    step for step in LIGHT.steps if step in LIGHT.transactions and LIGHT.transactions[step].before is Transaction.OPEN
]


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.long), 2], ids=["v1", "v2"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    directory = tmp_path_factory.mktemp("stalled")
    with KafkaCluster(directory, transaction_version=request.param, heap_mb=192, config=PUNCTUAL) as running:
        yield running


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    make_tests_importable(monkeypatch)


def open_at(step: str) -> Engine:
    """An engine that can be caught there alone."""
    return replace(LIGHT_IN_TWO, steps=(step,))


@pytest.mark.parametrize("step", OPEN)
def test_it_goes_on_and_neither_loses_nor_repeats_the_batch(cluster: KafkaCluster, tmp_path: Path, step: str) -> None:
    with at_work(cluster, tmp_path, engine=open_at(step), timeout_s=1) as world:
        StallDriver().inject(world, Random(1))
        assert world.said.met == f"it woke right before {step}, when its transaction had timed out"
        found = judged(world)
        assert world.driver.generation == 1, "it is the same driver that goes on"
        assert world.driver.course.pauses == [], "no dead one held the last stable offset"
    assert (found.violations, found.lack, found.not_judged) == ({}, "", ())


def test_control_a_driver_that_takes_a_refused_commit_for_done_loses_the_batch(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    with at_work(cluster, tmp_path, "unknown is committed", engine=open_at("COMMIT"), timeout_s=1) as world:
        StallDriver().inject(world, Random(1))
        violations = judged(world).violations
    assert violations == {"unseen": RECORDS_PER_BATCH}, "nobody has written it again"
