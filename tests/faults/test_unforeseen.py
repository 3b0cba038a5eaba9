"""What nobody foresaw in the middle of a batch: it is raised, and the next batch looks first, instead of a stuck driver."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.faults.light import Job, LightDriver
from tests.faults.support import Cluster, expected_records

from onceflow.transaction.messages import Counts, Event, Identity, Stored
from onceflow.transaction.protocol import IllegalMove
from onceflow.transaction.requests import Requests

pytestmark = pytest.mark.faults


@dataclass(frozen=True, slots=True)
class StrangeRequests(Requests):
    """Answers an audit with an event that no audit has."""

    def audit(self, identity: Identity, counts: Counts) -> Event:  # noqa: ARG002
        return Stored()


class InterruptedDriver(LightDriver):
    """Ctrl-C, in a program that goes on after it."""

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        if self.steps.count(("STORE", 0)) == 1 and step == "STORE":
            raise KeyboardInterrupt


def job(cluster: Cluster, directory: Path) -> Job:
    name = cluster.unique("unforeseen")
    return Job(cluster.servers, name, cluster.make_topic(), str(directory / name))


def check_goes_on(driver: LightDriver, cluster: Cluster, steps_before: int) -> None:
    assert driver.steps[steps_before] == ("LOOK", 0)
    driver.close()
    cluster.check_exactly(driver.topic, expected_records(2))


def test_an_answer_that_fits_no_state(cluster: Cluster, tmp_path: Path) -> None:
    driver = LightDriver(job(cluster, tmp_path))
    coordinator = driver.open()
    usual = driver.requests
    coordinator._requests = StrangeRequests(usual.client, usual.name, usual.version, usual.timeout_ms)
    with pytest.raises(IllegalMove, match="AUDIT has no transition for Stored"):
        driver.run_batch(coordinator, 0)
    coordinator._requests = usual
    steps_before = len(driver.steps)
    driver.run_batch(coordinator, 0)
    driver.run_batch(coordinator, 1)
    check_goes_on(driver, cluster, steps_before)


def test_an_interrupt(cluster: Cluster, tmp_path: Path) -> None:
    driver = InterruptedDriver(job(cluster, tmp_path))
    coordinator = driver.open()
    with pytest.raises(KeyboardInterrupt):
        driver.run_batch(coordinator, 0)
    steps_before = len(driver.steps)
    driver.run_batch(coordinator, 0)
    driver.run_batch(coordinator, 1)
    check_goes_on(driver, cluster, steps_before)
