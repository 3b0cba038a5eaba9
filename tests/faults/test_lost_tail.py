"""A broker loses what it had acknowledged but not written to its disk: the audit finds it before the commit.

The broker is killed, the newest batch is cut off its partitions' logs, and it is started again, as after a loss of power. (Of one
broker; what is in sync on three is lost with all three alone. What is lost after the commit is outside of the guarantee.)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tests.faults.light
from tests.faults.light import Job, LightDriver
from tests.faults.support import Cluster, expected_records

from onceflow.broker import EmbeddedBroker
from onceflow.verify.faults.disk import cut_tails
from onceflow.verify.simulator.variants import NoAudit

pytestmark = [pytest.mark.faults, pytest.mark.in_turn(2)]


class LosesPower(LightDriver):
    """Its cluster does, once, when both halves of batch 1 are acknowledged."""

    def __init__(self, job: Job, lose: Callable[[], None]) -> None:
        super().__init__(job)
        self._lose = lose

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        if (step, batch_id) == ("HALF", 1) and self.steps.count(("HALF", 1)) == 2:
            self._lose()


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def broker_that_loses(request: pytest.FixtureRequest, mortal: Callable[[int], EmbeddedBroker]) -> EmbeddedBroker:
    return mortal(request.param)


def run(broker: EmbeddedBroker, directory: Path) -> tuple[Cluster, Job, list[tuple[str, int]]]:
    cluster = Cluster(broker)
    name = cluster.unique("power")
    job = Job(cluster.servers, name, cluster.make_topic(), str(directory / name), batches=3)

    def lose() -> None:
        broker.kill()
        assert cut_tails(broker.directory, [job.topic], markers_too=False) > 0
        broker.start()

    driver = LosesPower(job, lose)
    driver.run()
    return cluster, job, driver.steps


def test_what_is_lost_before_the_commit_is_written_again(broker_that_loses: EmbeddedBroker, tmp_path: Path) -> None:
    cluster, job, steps = run(broker_that_loses, tmp_path)
    assert ("ABORT", 1) in steps
    cluster.check_exactly(job.topic, expected_records(3))
    cluster.close()


def test_control_without_the_audit_it_stays_lost(
    broker_that_loses: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tests.faults.light, "Protocol", NoAudit)
    cluster, job, _ = run(broker_that_loses, tmp_path)
    found = {value for _, _, value in cluster.read(job.topic)}
    assert found < {value for _, value in expected_records(3)}
    cluster.close()
