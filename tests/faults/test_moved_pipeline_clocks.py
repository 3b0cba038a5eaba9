"""The wall clock of both processes of a pipeline, Python and Java, that is set while they work (F11).

Brokers have clocks of their own: test_moved_broker_clocks.py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.command_line import Running, await_markers
from tests.conftest import TopicFactory
from tests.faults.moved_clock import HOUR_S, NEEDS_A_COMPILER, MovedClock

from onceflow.broker import EmbeddedBroker
from onceflow.cli.records import read_committed, send_lines
from onceflow.kafka.settings import ClusterSettings

pytestmark = [pytest.mark.faults, pytest.mark.long, NEEDS_A_COMPILER]

SOON_TOO_LATE_S = HOUR_S - 600  # message.timestamp.after.max.ms is an hour
PLAN = """
name = "{target}"
[trigger]
{trigger}
[kafka]
bootstrap_servers = "{servers}"
[[source]]
name = "lines"
topics = ["{source}"]
format = "raw"
[[sink]]
from = "lines"
topic = "{target}"
value = "value"
"""


class Pipeline:
    """A pipeline in a process of its own, Python and Java, whose clock is not the machine's."""

    def __init__(self, directory: Path, broker: EmbeddedBroker, topic: TopicFactory, trigger: str) -> None:
        self.settings = ClusterSettings.of(broker.bootstrap_servers)
        self.source, self.target = topic(1), topic(1)
        self.sent: list[str] = []
        self._directory = directory
        plan = PLAN.format(servers=broker.bootstrap_servers, source=self.source, target=self.target, trigger=trigger)
        (directory / "pipeline.toml").write_text(plan)

    @contextmanager
    def running(self, clock: MovedClock) -> Iterator[Running]:
        running = Running(self._directory, environment=clock.environment)
        try:
            running.wait_for("started")
            yield running
        finally:
            running.kill()

    def send_and_await(self, running: Running, count: int) -> None:
        """Until so many new records are committed."""
        new = [str(len(self.sent) + number) for number in range(count)]
        send_lines(self.settings, self.source, new, key=None)
        self.sent += new
        while count > 0:
            count -= running.wait_for("batch_committed")["records"]

    def check(self) -> None:
        await_markers(self.settings, self.target)
        assert [record.value for record in read_committed(self.settings, self.target)] == self.sent


@pytest.fixture(params=["", 'processing_time = "100 ms"'], ids=["at once", "by the clock"])
def pipeline(request: pytest.FixtureRequest, broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path, broker, topic, request.param)


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[MovedClock]:
    with closing(MovedClock(tmp_path / "clock")) as found:
        yield found


def test_a_pipeline_whose_clock_is_set_goes_on(pipeline: Pipeline, clock: MovedClock) -> None:
    """Spark waits by its clock for the next trigger, an hour and 100 ms where that was set back by an hour.

    Not by more: a record whose timestamp is more than an hour ahead of the broker's clock is refused.
    """
    with pipeline.running(clock) as running:
        pipeline.send_and_await(running, 20)
        clock.move(SOON_TOO_LATE_S)
        for _ in range(20):
            pipeline.send_and_await(running, 1)
        for moved_s in (0, -HOUR_S):
            clock.move(moved_s)
            running.wait_for("note", lambda note: "the wall clock was set back" in note["text"])
            pipeline.send_and_await(running, 20)
        running.process.send_signal(signal.SIGTERM)
        assert running.end() == 0
    pipeline.check()
