"""Two drivers with one name: the older stops and says why, the newer goes on, wherever the older was when it was overtaken."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from tests.faults.support import Cluster, LightDrivers, expected_records

pytestmark = [pytest.mark.faults, pytest.mark.in_turn(2)]

STOP = int(signal.SIGSTOP)
PLACES = ["REFRESH", "WRITE", "HALF", "AUDIT", "STORE", "COMMIT", "DONE"]


def places(cluster: Cluster) -> list[str]:
    return PLACES[1:] if cluster.broker.status().transaction_version == 2 else PLACES


def test_the_older_wakes_up_when_the_newer_has_finished(cluster: Cluster, light: LightDrivers) -> None:
    for place in places(cluster):
        job = light.job(cluster, cluster.make_topic())
        older = light.start(replace(job, interrupt=(place, 0, STOP)))
        light.wait_until_stopped(older)
        newer = light.run(job)
        light.go_on(older)
        ended = light.wait(older)
        assert newer.error == "", newer.text
        assert ended.error == "FENCED", f"{place}: {ended}"
        assert "another driver took over" in ended.text
        cluster.check_exactly(job.topic, expected_records(2))


def test_the_older_wakes_up_when_the_newer_has_just_claimed(v1: Cluster, light: LightDrivers) -> None:
    """Version 1: nothing is open, and the epoch is one that a timeout could have left, but for the commit under it."""
    job = light.job(v1, v1.make_topic())
    older = light.start(replace(job, interrupt=("REFRESH", 0, STOP)))
    light.wait_until_stopped(older)
    newer = light.start(replace(job, interrupt=("REFRESH", 0, STOP)))
    light.wait_until_stopped(newer)
    light.go_on(older)
    ended = light.wait(older)
    assert ended.error == "FENCED", ended
    assert "holds the transactional id" in ended.text
    light.go_on(newer)
    survivor = light.wait(newer)
    assert (survivor.signal, survivor.error) == (0, ""), survivor
    v1.check_exactly(job.topic, expected_records(2))


@pytest.mark.parametrize("busy", [("CLAIM_COMMIT", -1), ("HALF", 0), ("COMMIT", 0), ("HALF", 1)])
def test_the_older_wakes_up_while_the_newer_has_a_transaction_open(
    cluster: Cluster, light: LightDrivers, busy: tuple[str, int]
) -> None:
    """The older may abort it once (an InitProducerId compares only the producer id then), but never stops the newer."""
    for place in places(cluster):
        if place == "DONE" and busy[1] == 0:
            continue  # batch 0 is committed: the newer has nothing to write there
        job = light.job(cluster, cluster.make_topic())
        older = light.start(replace(job, interrupt=(place, 0, STOP)))
        light.wait_until_stopped(older)
        newer = light.start(replace(job, interrupt=(*busy, STOP)))
        light.wait_until_stopped(newer)
        light.go_on(older)
        ended = light.wait(older)
        assert ended.error == "FENCED", f"{place}: {ended}"
        light.go_on(newer)
        survivor = light.wait(newer)
        assert (survivor.signal, survivor.error) == (0, ""), f"{place}: {survivor}"
        cluster.check_exactly(job.topic, expected_records(2))


def test_many_starts_at_once_leave_one_driver(cluster: Cluster, light: LightDrivers) -> None:
    job = light.job(cluster, cluster.make_topic(), batches=5)
    racers = [light.wait(pid) for pid in [light.start(job) for _ in range(4)]]
    assert {racer.error for racer in racers} <= {"", "FENCED"}, racers
    assert any(racer.error == "" for racer in racers)
    cluster.check_exactly(job.topic, expected_records(5))
