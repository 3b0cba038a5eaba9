"""A pipeline that is deployed anew in another size: an instance of the size before wakes up, and must find itself fenced.

An id that holds a worker's number does not do that (Materialize #23363): after a resize nobody has the old one's number, so its
transaction stays open, and is committed beside that of the new ones.
"""

from __future__ import annotations

import inspect
import signal
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from tests.faults.support import TIMEOUT_S, Cluster, LightDrivers, expected_records

from onceflow.transaction.questions import transactional_id

pytestmark = pytest.mark.faults

VALUES = [str(number) for number in range(20)]


def test_the_id_of_a_pipeline_is_made_of_its_name_alone() -> None:
    """Of no worker, no number of workers, no place."""
    assert [*inspect.signature(transactional_id).parameters] == ["name"]
    assert transactional_id("retail") == "onceflow-retail"


@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("place", [("HALF", 0), ("STORE", 0), ("COMMIT", 0), ("COMMIT", 1)])
def test_an_instance_of_the_size_before_is_fenced(
    cluster: Cluster, light: LightDrivers, place: tuple[str, int], partitions: int
) -> None:
    """The new deployment has a writer for each of its partitions, whatever the old one had."""
    job = light.job(cluster, cluster.make_topic(partitions), batches=3)
    stopped = light.start_stopped(replace(job, interrupt=(*place, int(signal.SIGSTOP))))
    redeployed = light.run(replace(job, max_attempts=2, timeout_ms=30_000))
    assert (redeployed.signal, redeployed.error) == (0, ""), redeployed
    woken = light.wake(stopped)
    assert woken.error == "FENCED", woken
    cluster.check_exactly(job.topic, expected_records(3))


def test_control_ids_that_hold_a_workers_number_repeat_records_after_a_resize(cluster: Cluster) -> None:
    app, topic = cluster.unique("resized"), cluster.make_topic(1)
    before = [worker(cluster, f"{app}-{number}-of-2", topic, VALUES[number::2]) for number in range(2)]
    # All workers are stopped here. Nothing is committed, so the deployment of the new size begins at the same place.
    worker(cluster, f"{app}-0-of-1", topic, VALUES).commit_transaction(TIMEOUT_S)
    for woken in before:
        woken.commit_transaction(TIMEOUT_S)
    assert sorted(value or "" for _, _, value in cluster.read(topic)) == sorted(VALUES * 2)


def worker(cluster: Cluster, transactional_id: str, topic: str, values: list[str]) -> Producer:
    """A worker with an open transaction of which all is written."""
    producer = Producer({"bootstrap.servers": cluster.servers, "transactional.id": transactional_id, "log_level": 0})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0
    return producer
