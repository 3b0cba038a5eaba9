"""Services that copy a topic, with their consumed offsets: killed or stopped anywhere, each input is in the output once.

Who comes next has the same transactional id and fences the one before; or one of its own, as a second instance of a service has,
and only the group stands between the two. All steps are gone through at once, each by a process with a group and an output of its
own: most of the time goes into waiting for the broker's timeouts.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.conftest import Fill, Reader, TopicFactory
from tests.forkserver import Ended, ForkServer
from tests.writer.victim import BLOCKS, EVENTS, RECOVERY, SMALL_BYTES, SOURCE_PARTITIONS, STEPS, Job

from onceflow.broker import EmbeddedBroker

pytestmark = pytest.mark.faults

ALL = [str(n) for n in range(BLOCKS * EVENTS)]
KEYS = 4
IN_BLOCKS = ("begun", "sent", "consumed", "acknowledged", "marked", "ended")
TIMEOUT_S = 60
_numbers = itertools.count()


@dataclass
class Copies:
    """Services that each copy the same topic, each for a group of its own into a topic of its own."""

    broker: EmbeddedBroker
    victims: ForkServer
    read: Reader
    source: str

    def jobs(self, steps: tuple[str, ...], **options: Any) -> dict[str, Job]:
        """One for each step."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        prefix = f"copy-{next(_numbers)}"
        new = [NewTopic(f"{prefix}-{step}", 1, 1, config={"max.message.bytes": str(SMALL_BYTES)}) for step in steps]
        for future in admin.create_topics(new, operation_timeout=TIMEOUT_S).values():
            future.result(TIMEOUT_S)
        return {step: self._job(f"{prefix}-{step}", **options) for step in steps}

    def _job(self, name: str, consumer: dict[str, Any], **options: Any) -> Job:
        at = self.broker.bootstrap_servers
        return Job(at, name, name, copies=self.source, group=name, consumer=consumer, **options)

    def killed(self, jobs: dict[str, Job]) -> None:
        started = {step: self.victims.start(replace(job, step=step)) for step, job in jobs.items()}
        for step, pid in started.items():
            ended = self.victims.wait(pid)
            assert (ended.signal, ended.error) == (signal.SIGKILL, ""), f"it did not come to {step}: {ended.text}"

    def stopped(self, jobs: dict[str, Job]) -> dict[str, int]:
        at = {step: replace(job, step=step, signal=int(signal.SIGSTOP)) for step, job in jobs.items()}
        started = {step: self.victims.start(job) for step, job in at.items()}
        for pid in started.values():
            self.victims.wait_until_stopped(pid)
        return started

    def woken(self, stopped: dict[str, int]) -> dict[str, Ended]:
        for pid in stopped.values():
            self.victims.go_on(pid)
        return {step: self.victims.wait(pid) for step, pid in stopped.items()}

    def finish(self, jobs: dict[str, Job]) -> None:
        started = {step: self.victims.start(job) for step, job in jobs.items()}
        for step, pid in started.items():
            ended = self.victims.wait(pid)
            assert (ended.signal, ended.error) == (0, ""), f"after {step}: {ended.text}"

    def check(self, jobs: dict[str, Job]) -> None:
        """Each number once, those of a key in their order, and the group stands behind the last one."""
        committed = self.committed(jobs)
        for step, job in jobs.items():
            found = [(m.key(), int(m.value() or b"")) for m in self.read(job.topic, on=self.broker)]
            assert sorted(number for _, number in found) == list(range(len(ALL))), step
            for key in {key for key, _ in found}:
                numbers = [number for at, number in found if at == key]
                assert numbers == sorted(numbers), f"{step}, key {key!r}"
            assert sum(committed[step]) == len(ALL), step

    def committed(self, jobs: dict[str, Job]) -> dict[str, list[int]]:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        asked = {
            step: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(job.group)])[job.group]
            for step, job in jobs.items()
        }
        found = {step: future.result(TIMEOUT_S).topic_partitions for step, future in asked.items()}
        return {step: [at.offset for at in each if at.topic == self.source] for step, each in found.items()}


@pytest.fixture
def copies_on(victims: ForkServer, topic: TopicFactory, fill: Fill, read: Reader) -> Callable[[EmbeddedBroker], Copies]:
    def make(broker: EmbeddedBroker) -> Copies:
        source = topic(SOURCE_PARTITIONS, on=broker)
        fill(source, [(str(int(n) % KEYS), n) for n in ALL], on=broker)
        return Copies(broker, victims, read, source)

    return make


@pytest.fixture
def copies(request: pytest.FixtureRequest, copies_on: Callable[[EmbeddedBroker], Copies]) -> Copies:
    return copies_on(request.getfixturevalue(request.param))


STEADY = {"group.instance.id": "the only one"}
"""The next process takes the member's place at once, and does not wait until the group has given it up."""


EACH_WAY = pytest.mark.parametrize(
    ("copies", "on_a_loop"),
    [("broker", False), ("broker_v1", False), ("broker", True)],
    indirect=["copies"],
    ids=["version 2", "version 1", "AsyncWriter"],
)


@EACH_WAY
@pytest.mark.in_turn(3)
def test_a_service_killed_at_any_step_copies_each_event_once(copies: Copies, *, on_a_loop: bool) -> None:
    jobs = copies.jobs((*STEPS, "consumed", *RECOVERY), consumer=STEADY, on_a_loop=on_a_loop)
    copies.killed(jobs)
    copies.finish(jobs)
    copies.check(jobs)


@EACH_WAY
@pytest.mark.in_turn(3)
def test_a_stopped_service_whose_successor_has_finished_is_fenced_when_it_wakes(
    copies: Copies, *, on_a_loop: bool
) -> None:
    jobs = copies.jobs((*STEPS, "consumed", *RECOVERY), consumer=STEADY, on_a_loop=on_a_loop)
    stopped = copies.stopped(jobs)
    copies.finish(jobs)
    for step, ended in copies.woken(stopped).items():
        # Between two blocks it finds that all is done.
        expected = "" if step in ("claimed", "ended") else "FENCED"
        assert (ended.signal, ended.error) == (0, expected), f"stopped at {step}: {ended.text}"
    copies.check(jobs)


@pytest.mark.parametrize(
    ("copies", "number", "session_ms", "on_a_loop"),
    [
        ("punctual", signal.SIGKILL, 3000, False),
        ("punctual", signal.SIGSTOP, 3000, False),
        ("broker_v1", signal.SIGSTOP, 6000, False),
        ("punctual", signal.SIGSTOP, 3000, True),
    ],
    indirect=["copies"],
    ids=["SIGKILL", "SIGSTOP", "SIGSTOP on version 1", "SIGSTOP of an AsyncWriter"],
)
@pytest.mark.in_turn(3)
def test_another_instance_goes_on_where_the_group_is(
    copies: Copies, number: signal.Signals, session_ms: int, *, on_a_loop: bool
) -> None:
    """It has an id of its own, so nobody is fenced: one that wakes is out of the group, and finds that all is done.

    The session: how long the group waits for a member that stands still; what the coordinator waits for is its transaction.
    """
    consumer = {"session.timeout.ms": session_ms, "heartbeat.interval.ms": 500}
    jobs = copies.jobs(IN_BLOCKS, consumer=consumer, kafka={"transaction.timeout.ms": 10_000}, on_a_loop=on_a_loop)
    others = {step: replace(job, name=f"{job.name}-other") for step, job in jobs.items()}
    if number is signal.SIGKILL:
        copies.killed(jobs)
        copies.finish(others)
    else:
        stopped = copies.stopped(jobs)
        copies.finish(others)
        for step, ended in copies.woken(stopped).items():
            assert (ended.signal, ended.error) == (0, ""), f"stopped at {step}: {ended.text}"
    copies.check(jobs)


def test_control_offsets_that_are_committed_behind_the_transaction_repeat_it(
    broker: EmbeddedBroker, copies_on: Callable[[EmbeddedBroker], Copies]
) -> None:
    copies = copies_on(broker)
    jobs = copies.jobs(("ended",), consumer=STEADY, apart=True)
    copies.killed(jobs)
    copies.finish(jobs)
    values = [(message.value() or b"").decode() for message in copies.read(jobs["ended"].topic)]
    assert set(values) == set(ALL)
    assert len(values) == len(ALL) + EVENTS
