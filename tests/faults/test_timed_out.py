"""A driver that stood still for longer than its transaction may last: the broker aborts, the driver notices and goes on."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.light import Job, LightDriver
from tests.faults.support import Cluster, Ended, LightDrivers, eventually, expected_records

from onceflow.errors import AttemptsExhausted
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.messages import Coordinated, Described
from onceflow.transaction.requests import Requests

pytestmark = [pytest.mark.faults, pytest.mark.in_turn(2)]

STOP = int(signal.SIGSTOP)
PLACES = [("CLAIM_COMMIT", -1), ("HALF", 0), ("AUDIT", 0), ("STORE", 0), ("COMMIT", 0), ("COMMIT", 1)]


def wait_for_the_abort(requests: Requests) -> None:
    def look() -> Coordinated:
        described = requests.describe(settle=False)
        assert isinstance(described, Described)
        return described.snapshot.state

    eventually(look, lambda state: state is Coordinated.ABORTED, f"the abort of {requests.id}")


def test_it_goes_on_and_writes_the_batch_once(cluster: Cluster, light: LightDrivers) -> None:
    version = cluster.broker.status().transaction_version or 0
    jobs = [light.job(cluster, cluster.make_topic(), timeout_ms=1000) for _ in PLACES]
    stopped = [light.start(replace(job, interrupt=(*place, STOP))) for job, place in zip(jobs, PLACES, strict=True)]
    for pid in stopped:
        light.wait_until_stopped(pid)
    with KafkaClient({"bootstrap_servers": [cluster.servers]}) as client:
        for job in jobs:
            wait_for_the_abort(Requests(client, job.name, version, 1000))
    for pid in stopped:
        light.go_on(pid)
    for pid, job, place in zip(stopped, jobs, PLACES, strict=True):
        check_went_on(light.wait(pid), place)
        cluster.check_exactly(job.topic, expected_records(2))


def check_went_on(ended: Ended, place: tuple[str, int]) -> None:
    """It did the step again, after it had looked, or (version 2, in the audit) after an abort that was one already."""
    assert (ended.signal, ended.error) == (0, ""), f"{place}: {ended}"
    assert ended.steps.count(place) >= 2, f"{place}: {ended.steps}"
    steps = [step for step, _ in ended.steps]
    looked = "LOOK CHECK_CLAIM RETAKE RESOLVE" in " ".join(steps)
    assert looked or (place[0] == "AUDIT" and "ABORT" in steps), f"{place}: {ended.steps}"


class SlowDriver(LightDriver):
    """Its query computes for longer than a transaction may last, when a part of the records is written already."""

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        if step == "HALF":
            wait_for_the_abort(self.requests)


def test_a_batch_that_takes_longer_than_its_transaction_says_what_to_raise(cluster: Cluster, tmp_path: Path) -> None:
    target, name = cluster.make_topic(), cluster.unique("slow")
    job = Job(cluster.servers, name, target, str(tmp_path / name), timeout_ms=1000, max_attempts=1)
    with pytest.raises(AttemptsExhausted, match=r"the broker had ended the transaction.*raise that") as caught:
        SlowDriver(job).run()
    assert "transaction_timeout_ms" in caught.value.message
    LightDriver(replace(job, timeout_ms=60_000)).run()
    cluster.check_exactly(target, expected_records(2))
