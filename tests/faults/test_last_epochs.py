"""The epochs of a producer id end at 32,767; the coordinator goes on with another producer id, and so does the pipeline.

A batch takes one epoch, so this comes after some hours of small batches. Here the transaction log is written so that the
coordinator finds the pipeline near the end of its epochs.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.faults.light import FailsOnce, LightDriver
from tests.faults.support import PUNCTUAL, Cluster, Job, LightDrivers, expected_records
from tests.faults.test_timed_out import wait_for_the_abort
from tests.verify.simulator.real import RealBroker

from onceflow.broker import EmbeddedBroker
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.transaction.messages import Counts, Described, Identity
from onceflow.transaction.questions import transactional_id
from onceflow.transaction.requests import Requests
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.cluster.transaction_log import Entry, entry_of, replace_entry, write_entries
from onceflow.verify.simulator.requests import UNKNOWN_SERVER_ERROR, InitProducerId
from onceflow.verify.wire import Do, Rule, apis

pytestmark = [pytest.mark.faults, pytest.mark.in_turn(2)]

LAST = 32_766  # the largest epoch that a producer is given; 32,767 is the broker's own
BATCHES = 8
PID_FROM_THE_LOG = 9_000_000  # far from those that the broker gives
FIRST_EPOCHS = (LAST - 6, LAST - 5, LAST - 4, LAST - 3, LAST - 1, LAST)
PLACES = [("FENCE", -1), ("CLAIM_COMMIT", -1), ("HALF", 0), ("COMMIT", 0), ("HALF", 1), ("COMMIT", 1), ("COMMIT", 2)]

CONTROL = len(PLACES) + 1  # the number of the pipelines that are the control's
FAILING = CONTROL + 1  # of those whose first attempt fails
LATE = FAILING + 1  # of those that outlast their transaction


@dataclass(frozen=True, slots=True)
class Aged:
    """A cluster on which the pipelines named ``aged-<epoch>-<n>`` are near the end of their epochs."""

    cluster: Cluster
    version: int

    def identity(self, name: str) -> Identity:
        with KafkaClient({"bootstrap_servers": [self.cluster.servers]}) as client:
            described = Requests(client, name, self.version, 60_000).describe(settle=True)
        assert isinstance(described, Described)
        assert described.snapshot.identity is not None
        return described.snapshot.identity


def aged(epoch: int, number: int = 0) -> str:
    return f"aged-{epoch}-{number}"


def producer_id(epoch: int, number: int = 0) -> int:
    return PID_FROM_THE_LOG + 100 * number + LAST - epoch


def write_transaction_log(broker: EmbeddedBroker) -> None:
    """Empty transactions of the pipelines, as the coordinator writes them; it reads them at its next start."""
    pipelines = itertools.product(FIRST_EPOCHS, range(LATE + 1))
    entries = {
        transactional_id(aged(epoch, number)): Entry(producer_id(epoch, number), epoch, timeout_ms=60_000)
        for epoch, number in pipelines
    }
    write_entries(broker.bootstrap_servers, 0, entries)


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aged]:
    config = {"transaction.state.log.num.partitions": "1", **PUNCTUAL}
    broker = EmbeddedBroker(
        tmp_path_factory.mktemp("old"), transaction_version=request.param, heap_mb=256, config=config
    )
    with broker:
        with KafkaClient({"bootstrap_servers": [broker.bootstrap_servers]}, patience_s=60) as client:
            ensure_anchor_topic(client)
            Requests(client, "any", request.param, 60_000).initialise(None)  # makes the transaction log
        write_transaction_log(broker)
        broker.restart()
        with closing(Cluster(broker)) as cluster:
            yield Aged(cluster, request.param)


def job_of(old: Aged, light: LightDrivers, name: str) -> Job:
    return replace(light.job(old.cluster, old.cluster.make_topic(1), batches=BATCHES), name=name)


@pytest.mark.parametrize("epoch", FIRST_EPOCHS)
def test_a_driver_goes_on_over_the_end_of_the_epochs(old: Aged, light: LightDrivers, epoch: int) -> None:
    job = job_of(old, light, aged(epoch))
    assert old.identity(job.name) == Identity(producer_id(epoch), epoch)
    ended = light.run(job)
    assert (ended.signal, ended.error) == (0, ""), ended.text
    assert old.identity(job.name).producer_id != producer_id(epoch), "the epochs did not come to their end"
    old.cluster.check_exactly(job.topic, expected_records(BATCHES))


@pytest.mark.parametrize("epoch", FIRST_EPOCHS)
def test_killed_near_the_end_of_the_epochs(old: Aged, light: LightDrivers, epoch: int) -> None:
    jobs = [job_of(old, light, aged(epoch, number)) for number in range(1, CONTROL)]
    for job, place in zip(jobs, PLACES, strict=True):
        killed = light.run(replace(job, interrupt=(*place, int(signal.SIGKILL))))
        assert killed.signal == signal.SIGKILL, f"{place}: {killed}"
        ended = light.run(job)
        assert (ended.signal, ended.error) == (0, ""), f"{place}: {ended}"
    old.cluster.check_all_exactly([job.topic for job in jobs], expected_records(BATCHES))


@pytest.mark.parametrize("epoch", FIRST_EPOCHS)
def test_an_attempt_that_fails_near_the_end_of_the_epochs(old: Aged, light: LightDrivers, epoch: int) -> None:
    """On version 1 its abort takes an epoch, and so does what is asked behind that."""
    driver = FailsOnce(job_of(old, light, aged(epoch, FAILING)))
    driver.run()
    steps = [step for step, _ in driver.steps]
    assert (steps.count("ABORT"), steps.count("WRITE")) == (1, BATCHES + 1)
    old.cluster.check_exactly(driver.topic, expected_records(BATCHES))


class TooLate(LightDriver):
    """The first attempt of each batch outlasts its transaction; ``tried`` are all of them, by batch and identity."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.tried: list[tuple[int, Identity]] = []

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        if step == "AUDIT" and self.steps.count((step, batch_id)) == 1:
            wait_for_the_abort(self.requests)

    def _write(self, identity: Identity, batch_id: int) -> Counts:
        self.tried.append((batch_id, identity))
        return super()._write(identity, batch_id)


def test_a_transaction_that_times_out_in_the_last_epoch(old: Aged, light: LightDrivers) -> None:
    """KAFKA-20090, on version 2 and before Kafka 4.3.

    ::

        the last epoch is 32766; the coordinator aborts what has timed out under 32767
        ABORT is answered as one that was asked for again, with that epoch
        what is opened under it is neither committed nor aborted, by nobody
    """
    epoch = LAST - 4  # the claim takes two, and each batch two
    driver = TooLate(replace(job_of(old, light, aged(epoch, LATE)), batches=2, timeout_ms=4000))
    driver.run()
    old.cluster.check_exactly(driver.topic, expected_records(2))
    if old.version == 2:
        ours, (again, then) = Identity(producer_id(epoch, LATE), LAST), driver.tried[-1]
        assert (driver.tried[2:-1], again) == ([(1, ours)], 1)
        assert then.producer_id != ours.producer_id


class Moved(LightDriver):
    """Right behind a commit, and before its markers are written, the coordinator moves."""

    def __init__(self, job: Job, kafka: KafkaCluster) -> None:
        super().__init__(job)
        self._kafka = kafka
        self._held = ExitStack()
        self.left: Entry | None = None

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        if (step, batch_id) == ("COMMIT", 0):
            self._held.enter_context(self._kafka.peer_rules.during(Rule(Do.HOLD, frozenset({apis.WRITE_TXN_MARKERS}))))
        elif (step, batch_id) == ("DONE", 0):
            self.left = entry_of(self._kafka.client, self.requests.id)
            others = self._kafka.others(self._kafka.transaction_coordinator(self.requests.id))
            self._kafka.move_transaction_coordinator(self.requests.id, others[0])
            self._held.close()


def test_a_coordinator_that_moves_behind_a_commit_of_the_last_epoch(tmp_path: Path, light: LightDrivers) -> None:
    """Version 2: the answer was the producer id that follows, and brokers before 4.3 have not written it down."""
    with (
        KafkaCluster(tmp_path, brokers=3, between=True) as kafka,
        closing(Cluster(kafka)) as cluster,
    ):
        job = light.job(cluster, cluster.make_topic(), batches=3)
        Requests(kafka.client, job.name, 2, 60_000).initialise(None)
        replace_entry(kafka, transactional_id(job.name), Entry(PID_FROM_THE_LOG, LAST - 2, timeout_ms=60_000))
        driver = Moved(job, kafka)
        driver.run()
        assert driver.left is not None
        assert (driver.left.producer_id, driver.left.epoch) == (PID_FROM_THE_LOG, LAST + 1), "its markers were written"
        assert "LOOK" in [step for step, _ in driver.steps], "the new coordinator knew which producer id follows"
        cluster.check_exactly(job.topic, expected_records(3))


def test_control_the_last_epoch_is_given_once_and_cannot_be_asked_for_again(old: Aged) -> None:
    """Its answer was lost, so the one before is compared again: it fails each time, and who only asks again stands still."""
    name, epoch, topic = aged(LAST - 1, CONTROL), LAST - 1, old.cluster.make_topic(1)
    expected = Identity(producer_id(epoch, CONTROL), epoch)
    with KafkaClient({"bootstrap_servers": [old.cluster.servers]}, patience_s=60) as client:
        real = RealBroker(client, name, old.version, topic)
        assert real.ask(InitProducerId(expected)).identity == Identity(expected.producer_id, LAST)
        assert [real.ask(InitProducerId(expected)) for _ in range(3)] == [UNKNOWN_SERVER_ERROR] * 3
