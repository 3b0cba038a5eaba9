"""The cluster's ``transaction.version`` is changed while drivers are at work, as in a rolling upgrade, and back.

A driver keeps to the version that it found at its start: the version of its requests says to the broker which rules are meant.
Brokers of different releases in one cluster are not tried here; there is one release in the locked jars.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
import tests.faults.light
from kafka.protocol.admin import UpdateFeaturesRequest
from tests.faults.light import LightDriver, records_of
from tests.faults.support import Cluster, Ended, Job, LightDrivers, eventually, expected_records

import onceflow
from onceflow.broker import EmbeddedBroker
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.transaction.messages import Ended as TransactionEnded
from onceflow.transaction.messages import Event, Identity, Initialised, Refused
from onceflow.transaction.progress import Progress
from onceflow.transaction.requests import Requests
from onceflow.verify.simulator.variants import RefusedIsAborted

pytestmark = [pytest.mark.faults, pytest.mark.in_turn(2)]

KILL, STOP = int(signal.SIGKILL), int(signal.SIGSTOP)
START = [("FENCE", -1), ("CLAIM_STORE", -1), ("CLAIM_COMMIT", -1)]
BATCH = [(step, batch) for batch in (0, 1) for step in ("WRITE", "HALF", "AUDIT", "STORE", "COMMIT", "DONE")]
PLACES = [*START, *BATCH]
ASLEEP = [("HALF", 0), ("COMMIT", 0), ("DONE", 0), ("WRITE", 1), ("AUDIT", 1), ("COMMIT", 1)]
BATCHES = 3
UPGRADE, UNSAFE_DOWNGRADE = 1, 3
CHANGES = [(1, 2), (2, 1), (0, 2)]


class Changing:
    """A cluster whose transaction version changes."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.cluster = Cluster(broker)
        self.client = KafkaClient({"bootstrap_servers": [broker.bootstrap_servers]}, patience_s=60)
        self.client.open()
        self._version = 1

    def close(self) -> None:
        self.client.close()
        self.cluster.close()

    def become(self, version: int) -> None:
        """Of ``version`` from now on. Version 0: of no version, as a cluster that came from before 4.0."""
        if version == self._version:
            return
        kind = UpdateFeaturesRequest.FeatureUpdateKey
        update = kind(
            feature="transaction.version",
            max_version_level=version,
            upgrade_type=UPGRADE if version > self._version else UNSAFE_DOWNGRADE,
        )
        request = UpdateFeaturesRequest(timeout_ms=60_000, feature_updates=[update], validate_only=False, min_version=1)
        answer = self.client.repeat(lambda: self.client.ask(None, request), "the change of the version")
        assert answer.error_code == 0, answer
        eventually(self.client.transaction_version, lambda now: now == max(1, version), "the change of the version")
        self._version = version


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changing]:
    with (
        EmbeddedBroker(tmp_path_factory.mktemp("changing"), transaction_version=1, heap_mb=256) as broker,
        closing(Changing(broker)) as found,
    ):
        yield found


def check_went_on(ended: Ended, place: tuple[str, int]) -> None:
    assert (ended.signal, ended.error) == (0, ""), f"{place}: {ended}"


def jobs_of(changing: Changing, light: LightDrivers, count: int) -> list[Job]:
    return [light.job(changing.cluster, changing.cluster.make_topic(1), batches=BATCHES) for _ in range(count)]


def check_all(changing: Changing, jobs: list[Job]) -> None:
    changing.cluster.check_all_exactly([job.topic for job in jobs], expected_records(BATCHES))


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_drivers_at_every_step_go_on_when_the_version_changes(
    changing: Changing, light: LightDrivers, before: int, after: int
) -> None:
    """The version that they found holds for all their batches to come."""
    changing.become(before)
    jobs = jobs_of(changing, light, len(PLACES))
    stopped = [light.start_stopped(replace(job, interrupt=(*at, STOP))) for job, at in zip(jobs, PLACES, strict=True)]
    changing.become(after)
    for pid in stopped:
        light.go_on(pid)
    for pid, place in zip(stopped, PLACES, strict=True):
        check_went_on(light.wait(pid), place)
    check_all(changing, jobs)


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_driver_of_another_version_recovers_what_was_killed(
    changing: Changing, light: LightDrivers, before: int, after: int
) -> None:
    changing.become(before)
    jobs = jobs_of(changing, light, len(PLACES))
    for job, place in zip(jobs, PLACES, strict=True):
        assert light.run(replace(job, interrupt=(*place, KILL))).signal == KILL, place
    changing.become(after)
    for job, place in zip(jobs, PLACES, strict=True):
        check_went_on(light.run(job), place)
    check_all(changing, jobs)


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_driver_that_slept_over_the_change_and_its_successors_end_is_fenced(
    changing: Changing, light: LightDrivers, before: int, after: int
) -> None:
    changing.become(before)
    jobs = jobs_of(changing, light, len(ASLEEP))
    stopped = [light.start_stopped(replace(job, interrupt=(*at, STOP))) for job, at in zip(jobs, ASLEEP, strict=True)]
    changing.become(after)
    for pid, job, place in zip(stopped, jobs, ASLEEP, strict=True):
        check_went_on(light.run(job), place)
        woken = light.wake(pid)
        assert woken.error == "FENCED", f"{place}: {woken}"
    check_all(changing, jobs)


@pytest.mark.parametrize("before", [1, 2])
def test_who_slept_before_its_claim_takes_the_claim_of_a_driver_of_version_1_not_for_its_own(
    changing: Changing, light: LightDrivers, before: int
) -> None:
    """That is committed under the epoch behind its own, where on version 2 its own commit would be, had it sent one."""
    changing.become(before)
    (job,) = jobs_of(changing, light, 1)
    older = light.start_stopped(replace(job, interrupt=("CLAIM_STORE", -1, STOP)))
    changing.become(1)
    newer = light.start_stopped(replace(job, interrupt=("REFRESH", 0, STOP)))
    woken = light.wake(older)
    assert woken.error == "FENCED", woken
    light.go_on(newer)
    check_went_on(light.wait(newer), ("REFRESH", 0))
    check_all(changing, [job])


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_writer_goes_on_when_the_version_changes_inside_of_a_block(
    changing: Changing, before: int, after: int
) -> None:
    changing.become(before)
    topic = changing.cluster.make_topic(1)
    with onceflow.Writer(bootstrap_servers=changing.cluster.servers, source="shop", transactional_id=topic) as writer:
        for block in range(3):
            with writer.transaction():
                writer.send(topic, f"{block} a".encode(), key="k", id=f"{block} a").result()
                if block == 1:
                    changing.become(after)
                writer.send(topic, f"{block} b".encode(), key="k", id=f"{block} b")
    changing.cluster.check_exactly(topic, [("k", f"{block} {part}") for block in range(3) for part in "ab"])


def test_control_a_commit_that_is_asked_again_by_the_rules_of_another_version_looks_like_a_refusal(
    changing: Changing,
) -> None:
    """Version 2 gave the next epoch with the commit, which version 1 does not know. Who takes that for an abort writes twice."""
    changing.become(2)
    ensure_anchor_topic(changing.client)
    name = changing.cluster.unique("mixed")
    newer, older = (Requests(changing.client, name, version, 60_000) for version in (2, 1))
    began = newer.initialise(None)
    assert isinstance(began, Initialised)
    identity = began.identity
    newer.store(identity, Progress.empty("me"), {})
    assert isinstance(newer.end(identity, commit=True), TransactionEnded)
    assert newer.end(identity, commit=True) == TransactionEnded(Identity(identity.producer_id, identity.epoch + 1))
    assert isinstance(older.end(identity, commit=True), Refused)


def losing_an_answer(changing: Changing, *, follows: bool) -> type[Requests]:
    """The commit of the first batch is not answered before the cluster is of version 1. Then it is asked for again; where the
    requests ``follow``, by the rules that the cluster has by now.
    """
    commits = 0

    class Losing(Requests):
        def end(self, identity: Identity, commit: bool) -> Event:
            nonlocal commits
            answer = super().end(identity, commit)
            commits += commit
            if not commit or commits != FIRST_BATCH:
                return answer
            changing.become(1)
            version = self.client.transaction_version() if follows else self.version
            return Requests(self.client, self.name, version, self.timeout_ms).end(identity, commit)

    return Losing


FIRST_BATCH = 2
"""The first commit is that of the claim."""


@pytest.mark.parametrize("follows", [False, True])
def test_control_who_follows_the_version_of_the_cluster_and_takes_a_refusal_for_an_abort_writes_twice(
    changing: Changing, light: LightDrivers, monkeypatch: pytest.MonkeyPatch, *, follows: bool
) -> None:
    monkeypatch.setattr(tests.faults.light, "Protocol", RefusedIsAborted)
    monkeypatch.setattr(tests.faults.light, "Requests", losing_an_answer(changing, follows=follows))
    changing.become(2)
    (job,) = jobs_of(changing, light, 1)
    LightDriver(job).run()
    found = sorted((key, value) for _, key, value in changing.cluster.read(job.topic))
    assert found == sorted([*expected_records(BATCHES), *(records_of(0) if follows else [])])


def test_a_downgrade_that_the_broker_itself_cannot_follow_is_told_and_once_undone_all_goes_on(
    changing: Changing, light: LightDrivers
) -> None:
    """From 2 to 0: the coordinator cannot keep in the older form what it knows of a transaction that version 2 has ended.

    It refuses, and then says CONCURRENT_TRANSACTIONS to all, until it reads its log again.
    """
    changing.become(2)
    (job,) = jobs_of(changing, light, 1)
    assert light.run(replace(job, interrupt=("DONE", 0, KILL))).signal == KILL
    Requests(changing.client, job.name, 2, 60_000).describe(
        settle=True
    )  # the commit is complete: it is answered before
    changing.become(0)
    refused = light.run(job)
    assert refused.error == "REQUEST_FAILED", refused
    assert "UnsupportedVersion" in refused.text
    changing.become(2)
    changing.cluster.broker.restart()
    check_went_on(light.run(job), ("DONE", 0))
    check_all(changing, [job])
