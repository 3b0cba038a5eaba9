"""The broker killed while drivers are in the middle of everything, and started again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.faults.support import Cluster, LightDrivers, expected_records

from onceflow.broker import EmbeddedBroker

pytestmark = [pytest.mark.faults, pytest.mark.in_turn(2)]

STOP = int(signal.SIGSTOP)
PLACES = [
    ("FENCE", -1),
    ("CLAIM_COMMIT", -1),
    ("REFRESH", 1),
    ("WRITE", 0),
    ("HALF", 0),
    ("AUDIT", 0),
    ("STORE", 0),
    ("COMMIT", 0),
    ("DONE", 0),
]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seen_down", [True, False], ids=["drivers see it down", "drivers see it up again"])
def test_drivers_at_every_step_go_on(
    mortal: Callable[[int], EmbeddedBroker], light: LightDrivers, version: int, seen_down: bool
) -> None:
    broker = mortal(version)
    cluster = Cluster(broker)
    places = [place for place in PLACES if version == 1 or place[0] != "REFRESH"]
    jobs = [light.job(cluster, cluster.make_topic(), patience_s=90) for _ in places]
    stopped = [light.start(replace(job, interrupt=(*place, STOP))) for job, place in zip(jobs, places, strict=True)]
    for pid in stopped:
        light.wait_until_stopped(pid)
    broker.kill()
    if seen_down:
        wake(light, stopped)
        broker.start()
    else:
        broker.start()
        wake(light, stopped)
    for pid, job, place in zip(stopped, jobs, places, strict=True):
        ended = light.wait(pid)
        assert (ended.signal, ended.error) == (0, ""), f"{place}: {ended}"
        cluster.check_exactly(job.topic, expected_records(2))
    cluster.close()


def wake(light: LightDrivers, stopped: list[int]) -> None:
    for pid in stopped:
        light.go_on(pid)
