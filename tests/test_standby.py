"""A standby that takes over: the supervisor with scripted drivers, and the real thing with Spark and a broker."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.command_line import Running, Slow, onceflow_says

from onceflow.broker import EmbeddedBroker
from onceflow.cli.progress import as_line
from onceflow.config import load
from onceflow.errors import BrokerUnreachable, Fenced, RestartsExhausted
from onceflow.pipeline import Control, DriverLost, Event, Finished, Mode, Note, StandbyReady, TookOver
from onceflow.pipeline.supervisor import Limits, run_with_standby

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

PATIENCE_S = 400.0
SCRIPTED = (sys.executable, str(Path(__file__).with_name("scripted_driver.py")))

# ------------------------------------------------------------------------------------------------------- scripted drivers


class Supervised:
    """A supervisor in a thread of this process, with scripted drivers."""

    def __init__(self, directory: Path, script: str, limits: Limits | None = None, mode: Mode = Mode.REFUSE) -> None:
        (directory / "script").write_text(script)
        plan = directory / "pipeline.toml"
        plan.write_text(
            'name = "p"\n[kafka]\nbootstrap_servers = "127.0.0.1:9"\n'
            '[[source]]\nname = "s"\ntopics = ["in"]\nformat = "raw"\n'
            '[[sink]]\nfrom = "s"\ntopic = "out"\nvalue = "value"\n'
        )
        self.told = directory / "told"
        self.control = Control()
        self.events: list[Event] = []
        self._news: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._limits = limits or Limits()
        self._mode = mode
        self._file = load(plan, {})
        self.result: Finished | BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = run_with_standby(
                self._file,
                tell=self._news.put,
                control=self.control,
                mode=self._mode,
                limits=self._limits,
                program=SCRIPTED,
            )
        except BaseException as error:  # noqa: BLE001  for the test to look at
            self.result = error
        self._news.put(None)

    def wait_for(self, kind: type[Event]) -> Event:
        """The next event of a kind."""
        while (event := self._news.get(timeout=PATIENCE_S)) is not None:
            self.events.append(event)
            if isinstance(event, kind):
                return event
        raise AssertionError(f"no {kind.__name__}, but {self.events} and {self.result!r}")

    def end(self) -> Finished | BaseException | None:
        """What it came to."""
        while (event := self._news.get(timeout=PATIENCE_S)) is not None:
            self.events.append(event)
        self._thread.join()
        return self.result

    def stop(self) -> Finished | BaseException | None:
        self.control.stop("enough")
        return self.end()

    def lost(self) -> list[DriverLost]:
        return [event for event in self.events if isinstance(event, DriverLost)]


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Supervised]]:
    """Starts a supervisor; afterwards no process and no scratch directory may be left."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    started: list[Supervised] = []

    def begin(script: str, **options: Any) -> Supervised:
        started.append(Supervised(tmp_path, script, **options))
        return started[-1]

    yield begin
    for each in started:
        each.control.stop("the test is over")
        each.end() if each.result is None else None
    assert _drivers_among(psutil.Process()) == []
    assert list(scratch.iterdir()) == []


def _drivers_among(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if any("driver" in word for word in child.cmdline())]


def test_the_standby_takes_over_when_the_driver_is_killed(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit run_on")
    ready = run.wait_for(StandbyReady)
    assert isinstance(ready, StandbyReady)
    os.killpg(int(run.told.read_text().split()[0]), signal.SIGKILL)
    took = run.wait_for(TookOver)
    assert isinstance(took, TookOver)
    assert took.pid == ready.pid, "the one that was warm, not a new one"
    assert [event.reason for event in run.lost()] == ["was killed by SIGKILL"]
    run.wait_for(StandbyReady)  # the next standby
    assert run.stop() == Finished("p", 2, 2, "enough")
    assert run.told.read_text().splitlines()[1] == f"{ready.pid} refuse query"


def test_a_paused_driver_is_killed_and_replaced(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit pause\nstart commit run_on", limits=Limits(silence_s=2))
    run.wait_for(TookOver)
    assert [event.reason for event in run.lost()] == ["gave no sign of life for 2 s and was killed"]


def test_a_driver_that_stalls_is_killed_and_replaced(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit stall\nstart commit run_on", limits=Limits(stall_s=2))
    run.wait_for(TookOver)
    assert [event.reason for event in run.lost()] == ["ended no trigger for 2 s and was killed"]


def test_an_error_for_the_user_ends_it(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit fenced")
    assert isinstance(run.end(), Fenced)
    assert run.lost() == []


def test_an_error_that_may_pass_does_not(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit unreachable\nstart commit run_on")
    run.wait_for(TookOver)
    assert [event.reason for event in run.lost()] == ["failed: [BROKER_UNREACHABLE] no broker"]


def test_an_error_before_any_query_ran_is_told_at_once(supervise: Callable[..., Supervised]) -> None:
    assert isinstance(supervise("unreachable").end(), BrokerUnreachable)


def test_a_crash_loop_ends(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit exit\nstart exit", limits=Limits(tries=3))
    error = run.end()
    assert isinstance(error, RestartsExhausted)
    assert "3 drivers in a row, last: it ended by itself with exit code 7" in error.message
    assert len(run.told.read_text().splitlines()) == 3
    assert [event.pause_s for event in run.lost()] == [0, 0], "the first two are replaced at once"


def test_progress_makes_a_loss_the_first_again(supervise: Callable[..., Supervised]) -> None:
    run = supervise("\n".join(["start commit die"] * 4 + ["start commit run_on"]), limits=Limits(tries=2))
    for _ in range(4):
        run.wait_for(TookOver)
    assert isinstance(run.stop(), Finished)


def test_a_lost_standby_is_replaced_and_the_driver_goes_on(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit run_on")
    first = run.wait_for(StandbyReady)
    assert isinstance(first, StandbyReady)
    os.killpg(first.pid, signal.SIGKILL)
    note = run.wait_for(Note)
    assert isinstance(note, Note)
    assert note.text == "the standby was killed by SIGKILL; another one is started in 2 s"
    second = run.wait_for(StandbyReady)
    assert second != first
    assert run.lost() == []


def test_a_takeover_resumes_only_while_nothing_is_committed(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start die\nstart commit die\nstart commit run_on", mode=Mode.RESUME)
    run.wait_for(TookOver)
    run.wait_for(TookOver)
    words = [line.split()[1:] for line in run.told.read_text().splitlines()]
    assert words == [["resume"], ["resume", "query"], ["refuse", "query"]]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (StandbyReady(7), "standby ready (process 7)"),
        (DriverLost(7, "was killed by SIGKILL", 0), "driver (process 7) was killed by SIGKILL; another one takes over"),
        (DriverLost(7, "was lost", 4), "driver (process 7) was lost; another one takes over in 4 s"),
        (TookOver(8, 1.25), "process 8 took over: a batch is committed 1.2 s after the loss of the driver before"),
    ],
)
def test_what_is_told(event: Event, line: str) -> None:
    assert as_line(event) == line


# ----------------------------------------------------------------------------------------------------------- the real thing


@pytest.fixture
def slow(tmp_path: Path, broker: EmbeddedBroker, topic: TopicFactory) -> Slow:
    return Slow(tmp_path, broker, topic)


@pytest.fixture
def running(slow: Slow) -> Iterator[Running]:
    """``onceflow run --standby``, and at the end nothing of it."""
    process = Running(slow.directory, "--standby")
    yield process
    left = psutil.Process(process.process.pid).children(recursive=True) if process.process.poll() is None else []
    process.kill()
    psutil.wait_procs(left, PATIENCE_S)


def test_every_record_once_though_the_driver_is_killed_in_the_middle_of_a_batch(slow: Slow, running: Running) -> None:
    sent = slow.send(5)
    ready = running.wait_for("standby_ready")["pid"]
    slow.link.unlink()  # left by the first batch, and by the rehearsal
    sent += slow.send(20)
    slow.wait_until_under_way(running.process)
    supervisor = psutil.Process(running.process.pid)
    (driver,) = [child.pid for child in supervisor.children() if child.pid != ready]
    os.killpg(driver, signal.SIGKILL)
    lost = running.wait_for("driver_lost")
    assert (lost["pid"], lost["reason"]) == (driver, "was killed by SIGKILL")
    assert running.wait_for("took_over")["pid"] == ready
    assert slow.written() == sent
    everything = supervisor.children(recursive=True)
    assert len(everything) >= 2, "the driver and its JVM"
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0
    assert running.events[-1]["event"] == "finished"
    assert psutil.wait_procs(everything, PATIENCE_S)[1] == []


def test_drivers_end_with_their_supervisor(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = slow.directory / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    running = Running(slow.directory, "--standby")
    supervisor = psutil.Process(running.process.pid)
    deadline = time.monotonic() + PATIENCE_S
    while not any("java" in child.name() for child in supervisor.children(recursive=True)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    everything = supervisor.children(recursive=True)
    running.kill()
    assert psutil.wait_procs(everything, PATIENCE_S)[1] == []
    assert list(scratch.glob("onceflow-*")) == []


def test_a_refusal_ends_it_as_it_ends_a_plain_run(slow: Slow) -> None:
    plan = slow.directory / "pipeline.toml"
    plan.write_text(plan.read_text().replace(f'topic = "{slow.out}"', 'topic = "absent"'))
    assert "error TOPIC_MISSING" in onceflow_says(slow.directory, "run", "--standby", code=1)


def test_a_jvm_that_never_starts_ends_it(slow: Slow) -> None:
    with (slow.directory / "pipeline.toml").open("a") as plan:
        plan.write('[spark]\ndriver.extraJavaOptions = "-Xss1"\n')
    said = onceflow_says(slow.directory, "run", "--standby", code=1)
    assert "error RESTARTS_EXHAUSTED" in said
    assert "5 drivers in a row" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stall-timeout", "10 minutes"], "add --standby"),
        (["--standby", "--stall-timeout", "soon"], "a number and a unit"),
        (["--standby", "--stall-timeout", "5 s"], "5 seconds is less than 20 seconds"),
    ],
)
def test_a_stall_timeout_that_cannot_be_is_refused(slow: Slow, arguments: list[str], said: str) -> None:
    assert said in onceflow_says(slow.directory, "run", *arguments, code=2)
