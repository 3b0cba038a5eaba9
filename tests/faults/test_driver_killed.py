"""A driver killed at every step of the protocol, and once more in every step of its recovery; then a fresh one finishes."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from tests.faults.support import Cluster, Job, LightDrivers, expected_records

pytestmark = [pytest.mark.faults, pytest.mark.in_turn(2)]

START = [(step, -1) for step in ("INSPECT", "FENCE", "READ", "CONFIRM", "CLAIM_STORE", "CLAIM_COMMIT")]
BATCH = ["WRITE", "HALF", "AUDIT", "STORE", "COMMIT", "DONE"]
REFRESH = [("REFRESH", 0), ("REFRESH", 1)]
POINTS = [*START, *[(step, batch) for batch in (0, 1) for step in BATCH]]
KILL = int(signal.SIGKILL)


def points(cluster: Cluster) -> list[tuple[str, int]]:
    return POINTS + ([] if cluster.broker.status().transaction_version == 2 else REFRESH)


def killed_at(light: LightDrivers, job: Job, point: tuple[str, int]) -> bool:
    """Whether it was killed there; a driver that had nothing to do there any more has finished."""
    ended = light.run(replace(job, interrupt=(*point, KILL)))
    assert ended.error == "", ended.text
    return ended.signal == KILL


def finish(cluster: Cluster, light: LightDrivers, job: Job) -> None:
    ended = light.run(job)
    assert (ended.signal, ended.error) == (0, ""), ended.text
    cluster.check_exactly(job.topic, expected_records(2))


def test_the_steps_are_those_of_a_whole_run(cluster: Cluster, light: LightDrivers) -> None:
    """So that no step is forgotten below."""
    ended = light.run(light.job(cluster, cluster.make_topic()))
    assert ended.error == "", ended.text
    assert set(ended.steps) == set(points(cluster))


def test_killed_at_every_step(cluster: Cluster, light: LightDrivers) -> None:
    for point in points(cluster):
        job = light.job(cluster, cluster.make_topic())
        assert killed_at(light, job, point), f"it did not come to {point}"
        finish(cluster, light, job)


AGAIN = [("FENCE", -1), ("CLAIM_COMMIT", -1), ("HALF", 0), ("COMMIT", 0), ("DONE", 0)]


def test_killed_at_every_step_and_again_in_the_recovery(cluster: Cluster, light: LightDrivers) -> None:
    killed_twice(cluster, light, AGAIN)


@pytest.mark.long
def test_killed_at_every_step_and_again_at_every_step_of_the_recovery(cluster: Cluster, light: LightDrivers) -> None:
    killed_twice(cluster, light, [point for point in points(cluster) if point[1] < 1])


def killed_twice(cluster: Cluster, light: LightDrivers, again: list[tuple[str, int]]) -> None:
    jobs = []
    for first in [point for point in points(cluster) if point[1] < 1]:
        for second in again:
            job = light.job(cluster, cluster.make_topic(1), batches=1)
            assert killed_at(light, job, first)
            killed_at(light, job, second)
            ended = light.run(job)
            assert (ended.signal, ended.error) == (0, ""), ended.text
            jobs.append(job)
    cluster.check_all_exactly([job.topic for job in jobs], expected_records(1))
