"""A broker loses what it had acknowledged but not written to its disk: the audit finds it before the commit.

The broker is killed, the newest batch is cut off its partitions' logs, and it is started again, as after a loss of power. (Of one
broker; what is in sync on three is lost with all three alone. What is lost after the commit is outside of the guarantee.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import tests.faults.light
from tests.faults.light import Job, LightDriver
from tests.faults.support import Cluster, expected_records

from onceflow.broker import EmbeddedBroker
from onceflow.verify.simulator.variants import NoAudit

pytestmark = pytest.mark.faults

HEADER_BYTES = 12  # of a batch in a segment: its first offset, and how many bytes follow


class LosesPower(LightDriver):
    """Its cluster does, once, when both halves of batch 1 are acknowledged."""

    def __init__(self, job: Job, lose: Callable[[], None]) -> None:
        super().__init__(job)
        self._lose = lose

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        if (step, batch_id) == ("HALF", 1) and self.steps.count(("HALF", 1)) == 2:
            self._lose()


def newest_batch(log: bytes) -> int:
    """Where it begins."""
    at = last = 0
    while at + HEADER_BYTES <= len(log):
        (size,) = struct.unpack_from(">i", log, at + 8)
        if size <= 0:
            break  # the rest was reserved and not written
        last, at = at, at + HEADER_BYTES + size
    return last


def cut_logs(broker: EmbeddedBroker, topic: str) -> int:
    """Cuts the newest batch off each of the topic's logs; of how many. (A log has several segments: its markers are younger.)"""
    logs = [found for found in broker.directory.rglob(f"{topic}-*") if found.is_dir()]
    newest = [max(log.glob("*.log")) for log in logs]
    held = [file for file in newest if file.stat().st_size]
    for file in held:
        with file.open("r+b") as log:
            log.truncate(newest_batch(file.read_bytes()))
    return len(held)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def broker_that_loses(request: pytest.FixtureRequest, mortal: Callable[[int], EmbeddedBroker]) -> EmbeddedBroker:
    return mortal(request.param)


def run(broker: EmbeddedBroker, directory: Path) -> tuple[Cluster, Job, list[tuple[str, int]]]:
    cluster = Cluster(broker)
    name = cluster.unique("power")
    job = Job(cluster.servers, name, cluster.make_topic(), str(directory / name), batches=3)

    def lose() -> None:
        broker.kill()
        assert cut_logs(broker, job.topic) > 0
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
