"""Wall clocks of brokers that are set while they work (F11); those of a pipeline: test_moved_pipeline_clocks.py.

By them a broker gives a transaction up, and forgets ids and committed offsets, after Kafka's own minutes, days and weeks.
What that does to a pipeline happens to it otherwise as well: a clock brings it about at once, or in the middle of something.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Consumer, Producer
from tests.faults.light import Job
from tests.faults.moved_clock import DAY_S, HOUR_S, NEEDS_A_COMPILER, MovedClock
from tests.faults.support import TIMEOUT_S, Cluster, LightDrivers, eventually, expected_records
from tests.faults.test_forgotten_ids import rest_until_forgotten
from tests.faults.test_forgotten_progress import after_its_first_batch, await_gone, job_of
from tests.faults.test_upgraded import PLACES, STOP, check_went_on

from onceflow.broker import EmbeddedBroker
from onceflow.broker.installation import Installation
from onceflow.errors import ProgressGone
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.messages import Coordinated, Described
from onceflow.transaction.requests import Requests
from onceflow.verify.cluster import KafkaCluster

pytestmark = [pytest.mark.faults, pytest.mark.long, NEEDS_A_COMPILER]

WEEK_MINUTES = "10080"  # for which Kafka keeps committed offsets; embedded brokers do for ever
LOOKS_OFTEN = {
    "offsets.retention.minutes": WEEK_MINUTES,
    "offsets.retention.check.interval.ms": "200",
    "producer.id.expiration.check.interval.ms": "200",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
}
WORDS = [str(number) for number in range(40)]


class Elsewhere(Cluster):
    """A cluster of one broker with a clock of its own."""

    def __init__(self, broker: EmbeddedBroker, clock: MovedClock) -> None:
        super().__init__(broker)
        self.clock = clock


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Elsewhere]:
    """Of each test its own. Its topics are made before its clock is moved, for a controller cannot stand every clock::

    controller  takes a change, to be written 25 ms later (controller.quorum.append.linger.ms), by its wall clock
    clock       is set back by 18 days
    controller  writes it 18 days later, and nothing before; nor does it let the broker end in order
    """
    with ExitStack() as left:
        clock = left.enter_context(closing(MovedClock(tmp_path / "clock")))
        broker = EmbeddedBroker(
            tmp_path / "broker",
            transaction_version=request.param,
            heap_mb=256,
            config=LOOKS_OFTEN,
            installation=Installation(environment=clock.environment),
        )
        left.callback(broker.kill)
        yield left.enter_context(closing(Elsewhere(broker.start(), clock)))


def test_the_clock_is_the_brokers(elsewhere: Elsewhere) -> None:
    topic = elsewhere.make_topic(1, message_timestamp_type="LogAppendTime")
    producer = Producer({"bootstrap.servers": elsewhere.servers, "log_level": 0})
    for moved_s in (0, 3 * DAY_S, -3 * DAY_S):
        elsewhere.clock.move(moved_s)
        producer.produce(topic, str(moved_s))
        assert producer.flush(TIMEOUT_S) == 0
    right, ahead, behind = (message.timestamp()[1] / 1000 for message in elsewhere.messages(topic))
    assert round((ahead - right) / DAY_S) == 3
    assert round((behind - right) / DAY_S) == -3


@pytest.mark.parametrize("moved_s", [HOUR_S, 2 * DAY_S, -400 * DAY_S])
def test_drivers_at_every_step_go_on(elsewhere: Elsewhere, light: LightDrivers, moved_s: int) -> None:
    """After an hour every open transaction has timed out, after a day leaders have forgotten every producer."""
    jobs = [light.job(elsewhere, elsewhere.make_topic(1), batches=3) for _ in PLACES]
    stopped = [light.start_stopped(replace(job, interrupt=(*at, STOP))) for job, at in zip(jobs, PLACES, strict=True)]
    elsewhere.clock.move(moved_s)
    if moved_s > 0:
        await_given_up(elsewhere, jobs)
    for pid in stopped:
        light.go_on(pid)
    for pid, place in zip(stopped, PLACES, strict=True):
        check_went_on(light.wait(pid), place)
    elsewhere.check_all_exactly([job.topic for job in jobs], expected_records(3))


def await_given_up(cluster: Cluster, jobs: list[Job]) -> None:
    """Until no transaction of theirs is open."""
    with KafkaClient({"bootstrap_servers": [cluster.servers]}) as client:

        def still_open() -> list[str]:
            described = [(job.name, Requests(client, job.name, 1, 60_000).describe(settle=True)) for job in jobs]
            assert all(isinstance(each, Described) for _, each in described), described
            return [name for name, each in described if cast(Described, each).snapshot.state is Coordinated.ONGOING]

        eventually(still_open, lambda names: not names, "the end of what was open")


def test_a_driver_that_rests_for_weeks_goes_on(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """Leaders forget a producer after a day. Progress would be gone after a week, and is renewed."""
    with ExitStack() as left:
        driver, held = after_its_first_batch(job_of(elsewhere, tmp_path, "rests"), left)
        elsewhere.clock.move(6 * DAY_S)
        assert held.renew()
        elsewhere.clock.move(12 * DAY_S)
        driver.requests.describe(settle=True)
        driver.run_batch(held, 1)
        elsewhere.clock.move(18 * DAY_S)
        driver.run_batch(held, 2)
    elsewhere.check_exactly(driver.topic, expected_records(3))


def test_progress_that_the_broker_has_dropped_is_told_and_nothing_is_written(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    with ExitStack() as left:
        driver, held = after_its_first_batch(job_of(elsewhere, tmp_path, "dropped"), left)
        driver.requests.describe(settle=True)
        elsewhere.clock.move(8 * DAY_S)
        await_gone(elsewhere, driver.job.name)
        rest_until_forgotten(driver.requests, driver.topic, elsewhere.partitions(driver.topic))
        with pytest.raises(ProgressGone):
            driver.run_batch(held, 1)
    elsewhere.check_exactly(driver.topic, expected_records(1))


def test_control_kafkas_own_exactly_once_loop_begins_anew_and_repeats_everything(elsewhere: Elsewhere) -> None:
    source, target = elsewhere.make_topic(1), elsewhere.make_topic(1)
    producer = Producer({"bootstrap.servers": elsewhere.servers, "log_level": 0})
    for word in WORDS:
        producer.produce(source, word)
    assert producer.flush(TIMEOUT_S) == 0
    assert copy_new(elsewhere, source, target) == len(WORDS)
    assert copy_new(elsewhere, source, target) == 0
    elsewhere.clock.move(8 * DAY_S)
    eventually(lambda: committed_by(elsewhere, target), lambda offset: offset is None, "the committed offset")
    assert copy_new(elsewhere, source, target) == len(WORDS)
    assert [value for _, _, value in elsewhere.read(target)] == WORDS * 2


def copy_new(cluster: Cluster, source: str, target: str) -> int:
    """As in the documentation of Kafka's transactions; the group has the target's name. How many records it copied."""
    options = {"bootstrap.servers": cluster.servers, "log_level": 0}
    reading = {
        "group.id": target,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    consumer = Consumer({**options, **reading, "isolation.level": "read_committed"})
    producer = Producer({**options, "transactional.id": target})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    consumer.subscribe([source])
    copied = 0
    with closing(consumer):
        while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
            producer.produce(target, message.value())
            copied += 1
        assert message is not None
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)
    return copied


def committed_by(cluster: Cluster, group: str) -> int | None:
    """What a group has committed; None if that is nothing, or gone."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = cluster.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    partitions = asked[group].result(TIMEOUT_S).topic_partitions
    return partitions[0].offset if partitions else None


@pytest.mark.parametrize("version", [1, 2])
def test_drivers_go_on_while_the_clock_of_one_broker_after_the_other_is_set_ahead(
    tmp_path: Path, light: LightDrivers, version: int
) -> None:
    """For a controller its session with the others is over then, for a leader its followers lag, for a coordinator it is late."""
    kafka = KafkaCluster(tmp_path / "kafka", brokers=3, transaction_version=version)
    with ExitStack() as left:
        clocks = [left.enter_context(closing(MovedClock(tmp_path / f"clock-{node.id}"))) for node in kafka.nodes]
        for node, clock in zip(kafka.nodes, clocks, strict=True):
            node.install(Installation(environment=clock.environment))
        left.enter_context(kafka)
        cluster = left.enter_context(closing(Cluster(kafka)))
        for clock in clocks:
            jobs = [light.job(cluster, cluster.make_topic(1), batches=3, patience_s=90) for _ in PLACES]
            stopped = [
                light.start_stopped(replace(job, interrupt=(*at, STOP))) for job, at in zip(jobs, PLACES, strict=True)
            ]
            clock.move(2 * DAY_S)
            for pid in stopped:
                light.go_on(pid)
            for pid, place in zip(stopped, PLACES, strict=True):
                check_went_on(light.wait(pid), place)
            cluster.check_all_exactly([job.topic for job in jobs], expected_records(3))
            kafka.wait_until_healthy()
