"""How the demo drives its workers: kills where it is planned, and says so when the plan cannot be kept."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from onceflow.broker import EmbeddedBroker
from onceflow.demo import drive as drive_module
from onceflow.demo.assignment import Assignment, Hold, Message, Moment, Pipeline, Told
from onceflow.demo.drive import Drive
from onceflow.demo.faults import Fault, Target
from onceflow.demo.process import Worker
from onceflow.demo.progress import Progress
from onceflow.demo.standby import Standby
from onceflow.errors import DemoError

KILL = Fault("before the write", Target.DRIVER, Hold(Moment.WRITE, 1))
HALF = Fault("in the middle of the write", Target.DRIVER, Hold(Moment.PRODUCE, 1, nth=2), half_written=True)
BROKER = Fault("in the middle of the write", Target.BROKER, Hold(Moment.PRODUCE, 2))
DONE = Message(Told.DONE)


def committed(batch: int) -> Message:
    return Message(Told.STEP, Moment.COMMITTED, batch)


def held(fault: Fault) -> Message:
    return Message(Told.HELD, fault.hold.moment, fault.hold.batch)


class FakeWorker:
    pid = 7

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.assignment: Assignment | None = None
        self.exit_code: int | None = None
        self.went_on = False

    def assign(self, assignment: Assignment) -> None:
        self.assignment = assignment

    def listen(self) -> Message:
        return self.messages.pop(0)

    def kill(self) -> None:
        self.exit_code = -9

    def go(self) -> None:
        self.went_on = True


class FakeBroker:
    bootstrap_servers = "127.0.0.1:1"

    def __init__(self) -> None:
        self.done: list[str] = []

    def kill(self) -> None:
        self.done.append("kill")

    def start(self) -> None:
        self.done.append("start")


class FakeStandby:
    def __init__(self, workers: Sequence[FakeWorker]) -> None:
        self._workers = list(workers)

    def take(self) -> FakeWorker:
        return self._workers.pop(0)


class Stage:
    """A Drive over fakes, and what it tells."""

    def __init__(self, *workers: FakeWorker) -> None:
        self.broker = FakeBroker()
        self.output = io.StringIO()
        self.drive = Drive(
            Pipeline.ONCEFLOW,
            broker=cast(EmbeddedBroker, self.broker),
            standby=cast(Standby, FakeStandby(workers)),
            checkpoint=Path("/checkpoint"),
            progress=Progress(Console(file=self.output, width=200)),
        )


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each look at the topics finds uncommitted; the last answer stays."""
    answers = [0]
    monkeypatch.setattr(drive_module, "uncommitted", lambda *_: answers.pop(0) if len(answers) > 1 else answers[0])
    return answers


def test_a_driver_is_killed_at_the_planned_step_and_another_takes_over(hidden: list[int]) -> None:
    first, second = FakeWorker(committed(0), held(KILL)), FakeWorker(committed(1), committed(2), DONE)

    run = Stage(first, second).drive.through([KILL])

    assert first.assignment == Assignment(Pipeline.ONCEFLOW, "127.0.0.1:1", "/checkpoint", KILL.hold)
    assert second.assignment is not None
    assert second.assignment.hold is None
    assert run.batches == {0, 1, 2}
    assert [(each.fault, each.pid, each.exit_code) for each in run.injected] == [(KILL, 7, -9)]
    assert second.exit_code is None


def test_a_batch_that_comes_again_counts_once(hidden: list[int]) -> None:
    fault = Fault("committed", Target.DRIVER, Hold(Moment.COMMITTED, 1))

    run = Stage(FakeWorker(committed(0), held(fault)), FakeWorker(committed(1), DONE)).drive.through([fault])

    assert run.batches == {0, 1}


def test_the_driver_goes_on_while_the_broker_is_gone(hidden: list[int]) -> None:
    worker = FakeWorker(held(BROKER), committed(2), DONE)
    stage = Stage(worker)

    run = stage.drive.through([BROKER])

    assert stage.broker.done == ["kill", "start"]
    assert worker.went_on
    assert worker.exit_code is None
    assert (run.count(Target.BROKER), run.count(Target.DRIVER)) == (1, 0)


def test_half_written_means_that_the_broker_has_a_part(hidden: list[int]) -> None:
    hidden[:] = [0, 0, 31]

    run = Stage(FakeWorker(held(HALF)), FakeWorker(DONE)).drive.through([HALF])

    assert run.injected[0].uncommitted == 31


def test_half_written_is_not_claimed_when_nothing_came(hidden: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive_module, "_HALF_WRITTEN_TIMEOUT_S", 0)
    worker = FakeWorker(held(HALF))

    with pytest.raises(DemoError, match="nothing of it came"):
        Stage(worker).drive.through([HALF])
    assert worker.exit_code is None


def test_a_planned_step_that_never_comes_is_an_error(hidden: list[int]) -> None:
    with pytest.raises(DemoError, match="the planned step did not come: before the write"):
        Stage(FakeWorker(committed(0), DONE)).drive.through([KILL])


def test_kills_are_told(hidden: list[int]) -> None:
    hidden[:] = [31]
    stage = Stage(FakeWorker(held(HALF)), FakeWorker(held(BROKER), DONE))

    stage.drive.through([HALF, BROKER])

    told = stage.output.getvalue()
    assert "SIGKILL to the driver: in the middle of the write, batch 1 (31 records on the broker" in told
    assert "SIGKILL to the broker: in the middle of the write, batch 2" in told


def test_fakes_have_what_they_stand_for() -> None:
    for name in ("assign", "listen", "kill", "go", "pid", "exit_code"):
        assert hasattr(Worker, name)
