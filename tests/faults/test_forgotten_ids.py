"""The cluster forgets a pipeline that rests: the coordinator its transactional id, the leaders its producer id.

``transactional.id.expiration.ms`` is 7 days and ``producer.id.expiration.ms`` one day by default; here both are a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.faults.light import LightDriver
from tests.faults.support import Cluster, Job, eventually, expected_records

from onceflow.broker import EmbeddedBroker
from onceflow.errors import Fenced
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.messages import Coordinated, Described
from onceflow.transaction.questions import describe_producers
from onceflow.transaction.requests import Requests

pytestmark = [pytest.mark.faults, pytest.mark.in_turn(2)]

FORGETFUL = {
    "transactional.id.expiration.ms": "1000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    "producer.id.expiration.ms": "1000",
    "producer.id.expiration.check.interval.ms": "200",
}


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def forgetful(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("forgetful")
    version: int = request.param
    with (
        EmbeddedBroker(directory, transaction_version=version, heap_mb=256, config=FORGETFUL) as broker,
        closing(Cluster(broker)) as cluster,
    ):
        yield cluster


@pytest.fixture
def job(forgetful: Cluster, tmp_path: Path) -> Job:
    name = forgetful.unique("resting")
    return Job(forgetful.servers, name, forgetful.make_topic(), str(tmp_path / name), batches=4)


def rest_until_forgotten(requests: Requests, topic: str, partitions: list[int]) -> None:
    """Until the coordinator does not know the id, and no leader any producer of the topic."""
    client = requests.client

    def states() -> tuple[Coordinated, int]:
        described = requests.describe(settle=True)
        assert isinstance(described, Described)
        return described.snapshot.state, active_producers(client, topic, partitions)

    eventually(states, lambda found: found == (Coordinated.ABSENT, 0), f"{requests.id} is forgotten")


def active_producers(client: KafkaClient, topic: str, partitions: list[int]) -> int:
    leader = client.topics([topic])[topic].leaders[0]
    answer = client.ask(leader, describe_producers({topic: partitions}))
    return sum(len(part.active_producers) for part in answer.topics[0].partitions)


def test_a_driver_that_rests_goes_on_when_all_have_forgotten_it(forgetful: Cluster, job: Job) -> None:
    driver = LightDriver(job)
    coordinator = driver.open()
    with closing(driver):
        for batch_id in range(job.batches):
            driver.run_batch(coordinator, batch_id)
            rest_until_forgotten(driver.requests, job.topic, forgetful.partitions(job.topic))
    forgetful.check_exactly(job.topic, expected_records(job.batches))


def test_a_driver_that_starts_when_all_have_forgotten_the_one_before_goes_on_where_that_ended(
    forgetful: Cluster, job: Job
) -> None:
    first = LightDriver(job)
    coordinator = first.open()
    with closing(first):
        first.run_batch(coordinator, 0)
        rest_until_forgotten(first.requests, job.topic, forgetful.partitions(job.topic))
    LightDriver(job).run()
    forgetful.check_exactly(job.topic, expected_records(job.batches))


def test_a_driver_that_slept_while_another_one_finished_writes_nothing_though_all_have_forgotten_both(
    forgetful: Cluster, job: Job
) -> None:
    """An InitProducerId that names the identity which is expected compares nothing by then: the coordinator knows none."""
    older = LightDriver(job)
    coordinator = older.open()
    with closing(older):
        older.run_batch(coordinator, 0)
        LightDriver(job).run()
        rest_until_forgotten(older.requests, job.topic, forgetful.partitions(job.topic))
        with pytest.raises(Fenced):
            older.run_batch(coordinator, 1)
    forgetful.check_exactly(job.topic, expected_records(job.batches))
