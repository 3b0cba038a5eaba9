"""A standby that takes over: the supervisor with scripted drivers, and the real thing with Spark and a broker."""

from __future__ import annotations

import errno
import gc
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.command_line import Running, Slow, onceflow_says
from tests.faults.support import eventually
from tests.open_transaction import OpenTransaction

from onceflow.broker import EmbeddedBroker
from onceflow.cli.progress import as_line
from onceflow.config import PlanFile, load
from onceflow.errors import BrokerUnreachable, Fenced, RestartsExhausted
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline import (
    BatchCommitted,
    Control,
    DriverLost,
    Event,
    Finished,
    Mode,
    Note,
    StandbyReady,
    TookOver,
    early_fence,
    limits,
    rehearsal,
    standby,
    supervisor,
)
from onceflow.pipeline.cluster import connect
from onceflow.pipeline.driver_process import _still_to_do
from onceflow.pipeline.last_driver import LOCK
from onceflow.pipeline.local_checkpoint import local_path
from onceflow.pipeline.standby import Failed, Go, Gone, Prepare, Pulse, Ready, Said, WarmDriver
from onceflow.pipeline.supervisor import Limits, run_with_standby
from onceflow.transaction.coordinator import TransactionCoordinator
from onceflow.transaction.messages import Ended, Refused
from onceflow.transaction.protocol import Protocol, Settings
from onceflow.transaction.requests import Requests
from onceflow.verify.wire import Direction, Do, Rule, Wire, apis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import Fill, TopicFactory

PATIENCE_S = 400.0
SCRIPTED = (sys.executable, str(Path(__file__).with_name("scripted_driver.py")))

# ------------------------------------------------------------------------------------------------------- scripted drivers


def a_plan(directory: Path, bootstrap_servers: str = "127.0.0.1:9", name: str = "p") -> PlanFile:
    """The smallest plan, in a file."""
    plan = directory / "pipeline.toml"
    plan.write_text(
        f'name = "{name}"\n[kafka]\nbootstrap_servers = "{bootstrap_servers}"\n'
        '[[source]]\nname = "s"\ntopics = ["in"]\nformat = "raw"\n'
        '[[sink]]\nfrom = "s"\ntopic = "out"\nvalue = "value"\n'
    )
    return load(plan, {})


def _ignore(_: object) -> None: ...


def _ignore_driver(_driver: object, _said: object) -> None: ...


class Supervised:
    """A supervisor in a thread of this process, with scripted drivers."""

    def __init__(
        self,
        directory: Path,
        script: str,
        limits: Limits | None = None,
        mode: Mode = Mode.REFUSE,
        standbys: int = 1,
        tell: Callable[[Event], None] = _ignore,
    ) -> None:
        (directory / "script").write_text(script)
        self.told = directory / "told"
        self.control = Control()
        self.events: list[Event] = []
        self._news: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._limits = limits or Limits()
        self._mode = mode
        self._standbys = standbys
        self._told = tell
        self._file = a_plan(directory)
        self.result: Finished | BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = run_with_standby(
                self._file,
                tell=self._tell,
                control=self.control,
                mode=self._mode,
                limits=self._limits,
                standbys=self._standbys,
                program=SCRIPTED,
            )
        except BaseException as error:  # noqa: BLE001  for the test to look at
            self.result = error
        self._news.put(None)

    def _tell(self, event: Event) -> None:
        self._told(event)
        self._news.put(event)

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

    def wait_for_looks(self, clock: PausedClock) -> None:
        """Until it has looked at its clock again and again, and done what is due."""
        asked = clock.asked
        eventually(lambda: clock.asked, lambda now: now > asked + 50, "looks at the clock", PATIENCE_S)

    def drivers(self) -> set[int]:
        """Those that there are, and what else of this process is called so."""
        return {each.pid for each in _drivers_among(psutil.Process())}

    def lost(self) -> list[DriverLost]:
        return [event for event in self.events if isinstance(event, DriverLost)]


class PausedClock:
    """The clock of somebody who was paused for ``paused_s``."""

    def __init__(self) -> None:
        self.paused_s = 0.0
        self.asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        return time.monotonic() + self.paused_s


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Supervised]]:
    """Starts a supervisor; afterwards no process and no scratch directory may be left."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    started: list[Supervised] = []
    before = psutil.Process().children()  # the Spark session of other tests has a driver too

    def begin(script: str, **options: Any) -> Supervised:
        started.append(Supervised(tmp_path, script, **options))
        return started[-1]

    yield begin
    for each in started:
        each.control.stop("the test is over")
        each.end() if each.result is None else None
    assert [each for each in _drivers_among(psutil.Process()) if each not in before] == []
    assert list(scratch.iterdir()) == []


def _drivers_among(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if any("driver" in word for word in words_of(child))]


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; none if it has ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def name_of(process: psutil.Process) -> str:
    """Empty if it has ended meanwhile, as those do with which shell scripts find the JVM."""
    with suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


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


def test_of_two_standbys_the_second_takes_over_where_the_first_one_is_lost_as_well(
    supervise: Callable[..., Supervised],
) -> None:
    run = supervise("start commit run_on\nstart die\nstart commit run_on", standbys=2)
    warm = [run.wait_for(StandbyReady) for _ in range(2)]
    os.killpg(int(run.told.read_text().split()[0]), signal.SIGKILL)
    took = run.wait_for(TookOver)
    pids = [int(line.split()[0]) for line in run.told.read_text().splitlines()]
    assert isinstance(took, TookOver)
    assert pids[1:] == [standby.pid for standby in warm if isinstance(standby, StandbyReady)]
    assert took.pid == pids[2]
    for _ in range(2):
        run.wait_for(StandbyReady)  # the next ones
    assert run.stop() == Finished("p", 2, 2, "enough")


def test_a_paused_driver_is_killed_and_replaced(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit pause\nstart commit run_on", limits=Limits(silence_s=2))
    run.wait_for(TookOver)
    assert {event.reason for event in run.lost()} == {
        "gave no sign of life for 2 s and was killed"
    }  # on a busy machine more


def test_a_supervisor_that_was_paused_kills_nobody(
    supervise: Callable[..., Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-Z and fg: it looks before it has heard what its drivers said meanwhile."""
    clock = PausedClock()
    monkeypatch.setattr(supervisor, "time", clock)
    monkeypatch.setattr(limits, "time", clock)
    run = supervise("start commit run_on")
    run.wait_for(StandbyReady)
    clock.paused_s = 10 * Limits().silence_s
    run.wait_for_looks(clock)
    assert run.stop() == Finished("p", 1, 1, "enough")
    assert run.lost() == []
    assert [event for event in run.events if isinstance(event, Note)] == []


def test_a_driver_that_cannot_be_started_is_tried_again(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    """No room for its scratch, no memory: the moment that a supervisor is for."""
    (tmp_path / "scratch").rmdir()
    run = supervise("start commit run_on")
    note = run.wait_for(Note)
    assert isinstance(note, Note)
    assert note.text.startswith("the driver could not be started (")
    (tmp_path / "scratch").mkdir()
    run.wait_for(StandbyReady)
    assert run.stop() == Finished("p", 1, 1, "enough")


def test_drivers_that_cannot_be_started_are_given_up(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "scratch").rmdir()
    error = supervise("start commit run_on", limits=Limits(tries=1)).end()
    (tmp_path / "scratch").mkdir()
    assert isinstance(error, RestartsExhausted)
    assert "1 drivers in a row, last: it could not be started" in error.message


def test_a_driver_that_stalls_is_killed_and_replaced(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit stall\nstart commit run_on", limits=Limits(stall_s=2))
    run.wait_for(TookOver)
    assert {event.reason for event in run.lost()} == {"ended no trigger for 2 s and was killed"}  # likewise


def test_an_error_for_the_user_ends_it(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit fenced")
    assert isinstance(run.end(), Fenced)
    assert run.lost() == []


def test_a_driver_that_nobody_took_over_from_is_followed_by_the_standby(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit displaced stall\nstart commit run_on")
    run.wait_for(TookOver)
    assert [event.reason for event in run.lost()] == ["failed: [DISPLACED] nobody took over"]


def test_an_error_that_may_pass_does_not(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit unreachable\nstart commit run_on")
    run.wait_for(TookOver)
    assert [event.reason for event in run.lost()] == ["failed: [BROKER_UNREACHABLE] no broker"]


def test_nobody_waits_for_the_end_of_a_driver_whose_run_has_failed(
    supervise: Callable[..., Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Spark takes its time."""
    monkeypatch.setattr(limits, "END_S", math.inf)
    run = supervise("start commit unreachable stall\nstart commit run_on")
    run.wait_for(TookOver)
    assert [event.reason for event in run.lost()] == ["failed: [BROKER_UNREACHABLE] no broker"]


def test_an_error_before_any_query_ran_is_told_at_once(supervise: Callable[..., Supervised]) -> None:
    assert isinstance(supervise("unreachable").end(), BrokerUnreachable)


def test_a_driver_that_is_lost_while_it_ends_is_told_as_that(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit stall die")
    run.wait_for(BatchCommitted)
    error = run.stop()
    assert isinstance(error, RestartsExhausted)
    assert error.message == "pipeline 'p': while it ended, the driver was killed by SIGKILL"


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


def test_no_standby_starts_beside_a_driver_that_takes_over(
    supervise: Callable[..., Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take half of the processors from it. The standby is lost a moment before its driver, and another one soon due."""
    clock = PausedClock()
    monkeypatch.setattr(supervisor, "time", clock)
    monkeypatch.setattr(limits, "time", clock)
    run = supervise("start commit run_on\nwait start commit run_on")
    before = run.drivers()
    first = run.wait_for(StandbyReady)
    assert isinstance(first, StandbyReady)
    os.killpg(first.pid, signal.SIGKILL)
    run.wait_for(Note)
    os.killpg(int(run.told.read_text().split()[0]), signal.SIGKILL)
    eventually(run.told.read_text, lambda told: len(told.splitlines()) == 2, "another one takes over", PATIENCE_S)
    clock.paused_s = 2 * limits.LONGEST_PAUSE_S
    run.wait_for_looks(clock)
    assert len(run.drivers() - before) == 1, "the one that takes over"
    (run.told.parent / "go-on").touch()
    run.wait_for(TookOver)
    run.wait_for(StandbyReady)


def test_the_pause_before_another_standby_is_kept_though_batches_are_committed(
    supervise: Callable[..., Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a standby that is lost again and again, by want of memory say, would be started with each batch."""
    clock = PausedClock()
    monkeypatch.setattr(supervisor, "time", clock)
    monkeypatch.setattr(supervisor, "growing_pause_s", lambda _: math.inf)
    run = supervise("start commit wait commit run_on")
    first = run.wait_for(StandbyReady)
    assert isinstance(first, StandbyReady)
    os.killpg(first.pid, signal.SIGKILL)
    run.wait_for(Note)
    before = run.drivers()
    (run.told.parent / "go-on").touch()
    run.wait_for(BatchCommitted)
    run.wait_for_looks(clock)
    assert run.drivers() == before


def test_a_standby_that_does_not_get_warm_is_killed_and_replaced(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "never-ready").write_text("stall")
    run = supervise("start commit run_on", limits=Limits(warm_s=8))
    note = run.wait_for(Note)
    assert isinstance(note, Note)
    assert note.text == "the standby was not warm after 8 s and was killed; another one is started in 2 s"
    run.wait_for(StandbyReady)
    assert run.lost() == []


def test_a_standby_that_is_killed_and_not_gone_yet_takes_nothing_over(
    supervise: Callable[..., Supervised], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "DEATH_S", math.inf)
    never_ready, others = tmp_path / "never-ready", _drivers_among(psutil.Process())
    never_ready.write_text("outlive")
    run = supervise("start commit run_on", limits=Limits(silence_s=5))
    try:
        eventually(never_ready.exists, lambda there: not there, "the standby", PATIENCE_S)
        driver = int(run.told.read_text().split()[0])
        alone = {driver, *(each.pid for each in others)}
        eventually(run.drivers, alone.__eq__, "the standby is killed", PATIENCE_S)
        os.killpg(driver, signal.SIGKILL)
        run.wait_for(TookOver)
        assert [event.reason for event in run.lost()] == ["was killed by SIGKILL"]
    finally:
        (tmp_path / "answered").touch()


def test_a_takeover_resumes_only_while_nothing_is_committed(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start die\nstart commit die\nstart commit run_on", mode=Mode.RESUME)
    run.wait_for(TookOver)
    run.wait_for(TookOver)
    words = [line.split()[1:] for line in run.told.read_text().splitlines()]
    assert words == [["resume"], ["resume", "query"], ["refuse", "query"]]


def test_a_driver_that_does_not_begin_is_killed_and_replaced(supervise: Callable[..., Supervised]) -> None:
    run = supervise("stall\nstart commit run_on", limits=Limits(start_s=8))
    run.wait_for(TookOver)
    # On a machine that has much to do the one that replaces it may not begin in time either.
    assert {event.reason for event in run.lost()} == {"started no query for 8 s and was killed"}


def test_a_start_may_take_as_long_as_a_batch_may() -> None:
    assert Limits(start_s=2, stall_s=5).longest_start_s == 5
    assert Limits(start_s=5, stall_s=2).longest_start_s == 5
    assert Limits().longest_start_s == Limits().start_s


def test_a_driver_that_sigkill_does_not_end_is_replaced_all_the_same(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit outlive\nstart commit run_on", limits=Limits(silence_s=2))
    try:
        run.wait_for(TookOver)
        assert {event.reason for event in run.lost()} == {
            "gave no sign of life for 2 s and was killed"
        }  # on a busy machine more
        run.wait_for(StandbyReady)
    finally:
        (run.told.parent / "answered").touch()
    assert isinstance(run.stop(), Finished), "its end, when it comes, means nothing any more"


def test_a_driver_that_cannot_be_understood_is_lost(supervise: Callable[..., Supervised]) -> None:
    run = supervise("start commit babble\nstart commit run_on")
    run.wait_for(TookOver)
    assert [event.reason for event in run.lost()] == ["was killed by SIGKILL"]


def test_a_takeover_waits_for_nobody_who_takes_no_output(supervise: Callable[..., Supervised]) -> None:
    """Ctrl-S, ``| less``: from the first batch on."""
    waits, reads_on = threading.Event(), threading.Event()

    def tell(event: Event) -> None:
        if isinstance(event, BatchCommitted):
            waits.set()
            assert reads_on.wait(PATIENCE_S)

    run = supervise("start commit run_on", tell=tell)
    try:
        assert waits.wait(PATIENCE_S)
        os.killpg(int(run.told.read_text().split()[0]), signal.SIGKILL)
        eventually(run.told.read_text, lambda told: len(told.splitlines()) == 2, "another one takes over", PATIENCE_S)
    finally:
        reads_on.set()
    run.wait_for(TookOver)
    assert run.stop() == Finished("p", 2, 2, "enough")


def test_who_cannot_be_told_ends_it(supervise: Callable[..., Supervised]) -> None:
    """``onceflow run --standby | head``."""

    def tell(event: Event) -> None:
        if isinstance(event, BatchCommitted):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    assert isinstance(supervise("start commit run_on", tell=tell).end(), BrokenPipeError)


# -------------------------------------------------------------------------------------------------------------- one driver


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where drivers have their scratch directories."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    return directory


def open_files() -> set[str]:
    """What this process has open: the descriptors, each with what it is. But for connections: a driver has none of ours.

    ::

        a test before has a Kafka client, which another one of its process may go on with
        its own threads connect again meanwhile: a socket that nobody here has opened
    """
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the list itself
            found.add(f"{descriptor.name} {descriptor.readlink()}")
    connections = {str(each.fd) for each in psutil.Process().net_connections("inet")}
    return {each for each in found if each.split()[0] not in connections}


def test_a_driver_that_cannot_be_started_leaves_nothing(tmp_path: Path, scratch: Path) -> None:
    gc.collect()
    before = open_files()
    file = a_plan(tmp_path)
    with pytest.raises(FileNotFoundError):
        WarmDriver(file, connect(file, _ignore), _ignore_driver, program=[str(tmp_path / "absent")])
    assert list(scratch.iterdir()) == []
    assert not open_files() - before


def test_a_driver_for_which_there_is_no_connection_leaves_nothing(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more_files() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(standby, "Pipe", no_more_files)
    file = a_plan(tmp_path)
    with pytest.raises(OSError, match="Too many open files"):
        WarmDriver(file, connect(file, _ignore), _ignore_driver, program=SCRIPTED)
    assert list(scratch.iterdir()) == []


class Threads:
    """``threading``, but for how many threads there can be."""

    Lock = staticmethod(threading.Lock)

    def __init__(self, most: int) -> None:
        self._left = most

    def Thread(self, **options: Any) -> threading.Thread:  # noqa: N802
        self._left -= 1
        return threading.Thread(**options) if self._left >= 0 else NoThread(**options)


class NoThread(threading.Thread):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def test_a_driver_to_which_nobody_can_listen_leaves_nothing(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process has taken the last thread that there was, and would run on, in nobody's list."""
    monkeypatch.setattr(standby, "threading", Threads(0))
    gc.collect()
    before, files = psutil.Process().children(), open_files()
    file = a_plan(tmp_path)
    with pytest.raises(RuntimeError, match="can't start new thread") as error:
        WarmDriver(file, connect(file, _ignore), _ignore_driver, program=SCRIPTED)
    assert error.tb is not None, "it holds the driver, so that no collection of garbage has closed anything"
    assert [each for each in psutil.Process().children() if each not in before] == []
    assert list(scratch.iterdir()) == []
    assert not open_files() - files


def test_where_there_is_no_thread_for_a_standby_the_driver_goes_on(
    supervise: Callable[..., Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "threading", Threads(1))
    run = supervise("start commit run_on")
    note = run.wait_for(Note)
    assert isinstance(note, Note)
    assert note.text == "no standby can be started (can't start new thread); tried again in 60 s"
    assert run.stop() == Finished("p", 1, 1, "enough")
    assert run.lost() == []


def test_without_a_thread_for_it_nobody_waits_for_an_early_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_fence, "threading", Threads(0))
    file = a_plan(tmp_path)
    fence = early_fence.EarlyFence(file.plan, connect(file, _ignore))
    fence.begin()
    fence.wait()


def test_nobody_waits_for_the_end_of_a_driver_to_kill_it(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection has ended, itself has not."""
    said: queue.SimpleQueue[Said] = queue.SimpleQueue()
    awaited = threading.Event()
    end, poll = os.killpg, subprocess.Popen.poll

    def polled(self: subprocess.Popen[bytes]) -> int | None:
        awaited.set()
        return poll(self)

    monkeypatch.setattr("os.killpg", _ignore_driver)
    monkeypatch.setattr("subprocess.Popen.poll", polled)
    file = a_plan(tmp_path)
    mute = [sys.executable, "-c", "import os, sys, time; os.close(int(sys.argv[1])); time.sleep(1000)"]
    driver = WarmDriver(file, connect(file, _ignore), lambda _, message: said.put(message), program=mute)
    assert awaited.wait(PATIENCE_S)
    killing = threading.Thread(target=driver.kill, daemon=True)
    killing.start()
    killing.join(10)
    was_held_up = killing.is_alive()
    end(driver.pid, signal.SIGKILL)
    monkeypatch.undo()
    assert said.get(timeout=PATIENCE_S) == Gone(-signal.SIGKILL)
    driver.close()
    assert not was_held_up


ORPHAN = """
import subprocess, sys
from multiprocessing.connection import Connection
from onceflow.pipeline.driver_process import _Parent

parent = _Parent(Connection(int(sys.argv[1])))
jvm = subprocess.Popen([sys.executable, "-c", sys.argv[2], str(parent.prepared.scratch)])
parent.say(jvm.pid)
jvm.wait()
"""
JVM = """
import os, sys
while len(os.listdir(sys.argv[1])) == 3000:
    open(sys.argv[1] + ".looks", "w").close()
open(sys.argv[1] + ".seen", "w")
"""


def test_no_jvm_sees_its_scratch_disappear(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for number in range(3000):
        (scratch / str(number)).touch()
    ours, theirs = Pipe()
    with theirs:
        command = [sys.executable, "-c", ORPHAN, str(theirs.fileno()), JVM]
        driver = subprocess.Popen(command, pass_fds=(theirs.fileno(),), start_new_session=True)
    file = a_plan(tmp_path)
    ours.send(Prepare(file, connect(file, _ignore), "off", scratch))
    while not isinstance(jvm := ours.recv(), int):
        pass
    eventually((tmp_path / "scratch.looks").exists, bool, "it looks", PATIENCE_S)
    ours.close()
    assert driver.wait(PATIENCE_S) == -signal.SIGKILL
    eventually(lambda: scratch.exists() or psutil.pid_exists(jvm), lambda left: not left, "both are gone", PATIENCE_S)
    assert not (tmp_path / "scratch.seen").exists()


def test_whether_to_restart_is_asked_when_nothing_can_change_it(tmp_path: Path, broker: EmbeddedBroker) -> None:
    file = a_plan(tmp_path, broker.bootstrap_servers, "asked-at-last")
    settings = connect(file, _ignore)
    with KafkaClient(settings.for_protocol()) as client:
        left = OpenTransaction(client, file.plan.name)
        go, prepared = Go(Mode.RESTART, "query"), Prepare(file, settings, "off", tmp_path)
        assert _still_to_do(go, prepared) is Mode.RESTART
        assert isinstance(left.commit(), Refused), "a commit that comes later is none"


# --------------------------------------------------------------------------------------------------- a driver that starts

# A driver whose Spark is up as soon as the file "up" is there, and which then has nothing to run.
SLOW_START = """
import sys, time, types
from pathlib import Path
from onceflow.errors import SetupError
from onceflow.pipeline import driver_process, rehearsal, runner
def session(*_):
    while not Path(sys.argv[1]).exists():
        time.sleep(0.01)
    return types.SimpleNamespace(stop=lambda: None)
def run(*_, **__):
    raise SetupError("it came as far as running", action="")
runner.session, runner.run = session, run
rehearsal.Rehearsal = lambda *_: types.SimpleNamespace(run=lambda: None, keep=lambda *_: None)
sys.exit(driver_process.main(int(sys.argv[2])))
"""


class Starting:
    """A driver whose Spark is up when the test says so. ``before`` is done in its process first of all."""

    def __init__(self, directory: Path, file: PlanFile, before: str = "") -> None:
        self._up = directory / "up"
        self._said: queue.SimpleQueue[Said] = queue.SimpleQueue()
        program = (sys.executable, "-c", before + SLOW_START, str(self._up))
        self.driver = WarmDriver(file, connect(file, _ignore), lambda _, said: self._said.put(said), program=program)

    def let_spark_start(self) -> None:
        self._up.touch()

    def wait_for(self, kind: type[Said]) -> None:
        self._next(lambda said: isinstance(said, kind))

    def next_word(self) -> Said:
        """But for its pulse, which goes on whatever it does."""
        return self._next(lambda said: said != Pulse())

    def _next(self, is_meant: Callable[[Said], bool]) -> Said:
        deadline = time.monotonic() + PATIENCE_S
        while not is_meant(said := self._said.get(timeout=PATIENCE_S)):
            assert time.monotonic() < deadline, "nothing but its pulse"
        return said


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Callable[..., Starting]]:
    """Starts drivers of a plan whose cluster is not there."""
    started: list[Starting] = []

    def start(before: str = "") -> Starting:
        started.append(Starting(tmp_path, a_plan(tmp_path), before))
        return started[-1]

    yield start
    for each in started:
        each.driver.close()


SPARK_DOES_NOT_END = """
import threading
from onceflow.pipeline import runner
runner.end_session = lambda _: threading.Event().wait()
"""


def test_an_error_is_told_before_the_end_of_spark_is_waited_for(starting: Callable[..., Starting]) -> None:
    one = starting(SPARK_DOES_NOT_END)
    one.driver.go()
    one.let_spark_start()
    one.wait_for(Failed)


def test_what_lies_beside_a_plan_is_no_module_of_a_driver(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text('raise SystemExit("not Python\'s own")')
    done = subprocess.run([*standby.PROGRAM, "no number"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "invalid literal for int()" in done.stderr, "it came as far as looking for its connection"


DEAF = """
from onceflow.pipeline.driver_process import _Parent
def fails(*_):
    raise RuntimeError("whatever it is")
_Parent._take_over = fails
"""


def test_a_driver_that_cannot_do_what_it_is_told_ends(starting: Callable[..., Starting]) -> None:
    """And does not wait, deaf, until its supervisor's patience has ended, or for ever where that has died."""
    one = starting(DEAF)
    one.driver.go()
    assert one.next_word() == Gone(-signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_all_processes_get_is_left_to_the_supervisor(
    starting: Callable[..., Starting], number: signal.Signals
) -> None:
    one = starting()
    one.wait_for(Pulse)
    os.kill(one.driver.pid, number)
    one.let_spark_start()
    assert one.next_word() == Ready()


# -------------------------------------------------------------------------------------------------------- the early fence


class Lost(Starting):
    """What a driver left open that was killed, and the one that follows."""

    def __init__(self, directory: Path, broker: EmbeddedBroker, client: KafkaClient, name: str) -> None:
        self._left = OpenTransaction(client, name)
        super().__init__(directory, a_plan(directory, broker.bootstrap_servers, name))

    def wait_until_ended(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._left.is_open():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def can_still_commit(self) -> bool:
        return isinstance(self._left.commit(), Ended)


@pytest.fixture
def lost(tmp_path: Path, broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[Lost]:
    with KafkaClient(connect(a_plan(tmp_path, broker.bootstrap_servers), _ignore).for_protocol()) as client:
        found = Lost(tmp_path, broker, client, request.node.name)
        yield found
        found.driver.close()


def test_a_cold_driver_that_takes_over_ends_what_is_open_before_its_spark_is_up(lost: Lost) -> None:
    lost.driver.go(begun="the query")
    lost.wait_until_ended()
    assert not lost.can_still_commit()
    lost.let_spark_start()
    lost.wait_for(Failed)


# A driver that holds its lock until it is killed.
DIES = """
import sys
from pathlib import Path
from onceflow.config import load
from onceflow.pipeline.cluster import connect
from onceflow.pipeline.last_driver import lock_of
file = load(Path(sys.argv[1]), {})
with lock_of(file, connect(file, lambda event: None)) as lock:
    lock.take()
    sys.stdin.read()
"""


def test_a_first_driver_ends_what_is_open_of_one_that_died_with_its_supervisor(
    tmp_path: Path, broker: EmbeddedBroker, request: pytest.FixtureRequest
) -> None:
    """Memory or power is gone, and with it all processes; a service manager starts them again."""
    file = a_plan(tmp_path, broker.bootstrap_servers, request.node.name)
    checkpoint = local_path(file.checkpoint)
    assert checkpoint is not None
    checkpoint.mkdir(parents=True)
    died = subprocess.Popen(
        [sys.executable, "-c", DIES, str(tmp_path / "pipeline.toml")], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    with died:
        eventually(lambda: (checkpoint / LOCK).exists() and (checkpoint / LOCK).read_bytes(), bool, "it holds the lock")
        died.kill()
    with KafkaClient(connect(file, _ignore).for_protocol()) as client:
        lost = Lost(tmp_path, broker, client, request.node.name)
        try:
            lost.driver.go()
            lost.wait_until_ended()
            assert not lost.can_still_commit()
            lost.let_spark_start()
            lost.wait_for(Failed)
        finally:
            lost.driver.close()


def test_a_first_driver_fences_nobody_before_it_runs(lost: Lost) -> None:
    """It may be a mistake, of which nobody would want the pipeline that runs elsewhere to die."""
    lost.driver.go()
    lost.let_spark_start()
    lost.wait_for(Failed)
    assert lost.can_still_commit()


def test_a_broker_that_freezes_holds_the_run_up_for_one_patience(
    tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers at first, and no more when it is asked who coordinates; a request alone could wait for ten minutes."""
    file = a_plan(tmp_path, broker.bootstrap_servers)
    monkeypatch.setattr(early_fence, "_PATIENCE_S", 3.0)
    with Wire() as wire, wire.rules.during(Rule(Do.HOLD, frozenset({apis.FIND_COORDINATOR}), Direction.ANSWER)):
        usual = connect(file, _ignore).for_protocol()
        wired = {**usual, "proxy_url": wire.url, "request_timeout_ms": 600_000}
        monkeypatch.setattr(ClusterSettings, "for_protocol", lambda settings: wired)
        fence = early_fence.EarlyFence(file.plan, connect(file, _ignore))
        fence.begin()
        fence.wait()
        assert not wire.seen[apis.INIT_PRODUCER_ID]


def test_a_warm_driver_leaves_the_fencing_to_its_run(lost: Lost) -> None:
    lost.let_spark_start()
    lost.wait_for(Ready)
    lost.driver.go(begun="the query")
    lost.wait_for(Failed)
    assert lost.can_still_commit()


# ----------------------------------------------------------------------------------------------------------- the rehearsal


@pytest.fixture
def lines(tmp_path: Path, spark: SparkSession) -> DataFrame:
    """A stream of one record."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one").write_text("a line\n")
    return spark.readStream.text(f"file://{tmp_path}/in")


def test_a_rehearsal_writes_to_its_own_disk_only(tmp_path: Path, spark: SparkSession, lines: DataFrame) -> None:
    checkpoint = tmp_path / "a directory" / "rehearsal-0"
    spark.conf.set("fs.defaultFS", "nowhere://at-all")
    try:
        rehearsal._run(lines, rehearsal._collect, "append", f"file://{checkpoint}", threading.Event(), math.inf)
    finally:
        spark.conf.unset("fs.defaultFS")
    assert (checkpoint / "commits" / "0").exists()


def test_the_more_partitions_there_are_the_fewer_records_of_each_are_rehearsed(
    tmp_path: Path, broker: EmbeddedBroker, topic: TopicFactory, fill: Fill
) -> None:
    """All that comes of them is collected, so that it is bounded for all of them together."""
    many, few = topic(24), topic(1)
    fill(many, [(str(number), "x") for number in range(24 * 600)])
    fill(few, [("k", "x")] * 600)
    path = tmp_path / "pipeline.toml"

    def begins(*topics: str) -> dict[str, list[int]]:
        """How many offsets of each partition."""
        sources = [f'[[source]]\nname = "s{at}"\ntopics = ["{name}"]\nformat = "raw"' for at, name in enumerate(topics)]
        head = f'name = "many"\ncheckpoint = "state"\n[kafka]\nbootstrap_servers = "{broker.bootstrap_servers}"\n'
        path.write_text("\n".join([head, *sources, '[[sink]]\nfrom = "s0"\ntopic = "out"\nvalue = "value"']))
        settings = ClusterSettings.of(broker.bootstrap_servers)
        ends = ClusterAdmin(settings).end_offsets([(many, partition) for partition in range(24)] + [(few, 0)])
        starting = rehearsal._newest(load(path, {}), settings, threading.Event())
        return {
            source: [
                ends[name, int(partition)] - start
                for name, parts in found.items()
                for partition, start in parts.items()
            ]
            for source, found in starting.items()
        }

    assert begins(few) == {"s0": [rehearsal.NEWEST]}
    assert begins(many, few) == {"s0": [400] * 24, "s1": [400]}


def test_who_is_told_to_run_before_it_rehearses_asks_kafka_nothing(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(rehearsal, "ClusterAdmin", lambda *_: asked.append("Kafka"))
    monkeypatch.setattr(rehearsal, "check_plan", lambda *_: asked.append("the plan"))
    file, enough = a_plan(tmp_path), threading.Event()
    one = rehearsal.Rehearsal(file, spark, connect(file, _ignore), tmp_path, enough)
    enough.set()
    one.run()
    assert asked == []
    enough.clear()
    one.run()
    assert asked == ["Kafka"], "where it rehearses"


def test_who_is_told_to_run_while_it_asks_kafka_asks_nothing_more(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough, asked = threading.Event(), []

    class Admin:
        def __init__(self, _: object) -> None: ...

        def partitions(self) -> dict[str, tuple[int, ...]]:
            enough.set()
            return {"in": (0,)}

        def end_offsets(self, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
            asked.append("where it ends")
            return dict.fromkeys(partitions, 0)

    monkeypatch.setattr(rehearsal, "ClusterAdmin", Admin)
    monkeypatch.setattr(rehearsal, "check_plan", lambda *_: asked.append("the plan"))
    file = a_plan(tmp_path)
    rehearsal.Rehearsal(file, spark, connect(file, _ignore), tmp_path, enough).run()
    assert asked == []


@pytest.mark.parametrize("why", ["takeover", "too long"])
def test_a_rehearsal_that_does_not_end_is_told(
    tmp_path: Path, lines: DataFrame, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    running, enough, released = threading.Event(), threading.Event(), threading.Event()

    def held(*_: object) -> None:
        running.set()
        if why == "takeover":
            enough.set()
        released.wait(PATIENCE_S)

    monkeypatch.setattr(rehearsal, "_collect", held)
    monkeypatch.setattr(rehearsal, "STOP_S", 1.0)
    if why == "too long":
        monkeypatch.setattr(rehearsal, "time", SimpleNamespace(monotonic=lambda: 2.0 if running.is_set() else 0.0))
    deadline = math.inf if why == "takeover" else 1.0
    try:
        with pytest.raises(rehearsal.Stuck, match="did not end within 1 s"):
            rehearsal._run(lines, rehearsal._collect, "append", f"file://{tmp_path}/rehearsal-0", enough, deadline)
        assert running.is_set()
    finally:
        released.set()


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


BOTH, PYTHON, JVM_ALONE = "Python and its JVM", "Python alone", "the JVM alone"


@pytest.mark.parametrize(
    ("whom", "reason"),
    [
        (BOTH, "was killed by SIGKILL"),
        (PYTHON, "was killed by SIGKILL"),
        (JVM_ALONE, "failed: [QUERY_FAILED] Spark's JVM has died or does not answer"),
    ],
    ids=(BOTH, PYTHON, JVM_ALONE),
)
def test_every_record_once_though_the_driver_is_killed_in_the_middle_of_a_batch(
    slow: Slow, running: Running, whom: str, reason: str
) -> None:
    sent = slow.send(5)
    ready = running.wait_for("standby_ready")["pid"]
    slow.link.unlink()  # left by the first batch, and by the rehearsal
    sent += slow.send(20)
    slow.wait_until_under_way(running)
    supervisor = psutil.Process(running.process.pid)
    (driver,) = [child.pid for child in supervisor.children() if child.pid != ready]
    of_the_driver = [psutil.Process(driver), *psutil.Process(driver).children(recursive=True)]
    kill_in_part(driver, whom)
    lost = running.wait_for("driver_lost")
    assert lost["pid"] == driver
    assert lost["reason"].startswith(reason)
    assert psutil.wait_procs(of_the_driver, PATIENCE_S)[1] == [], "whatever was left of it"
    assert running.wait_for("took_over")["pid"] == ready
    eventually(slow.written, sent.__eq__, "what was sent, in one batch or in two", PATIENCE_S)
    everything = supervisor.children(recursive=True)
    assert len(everything) >= 2, "the driver and its JVM"
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0
    assert running.events[-1]["event"] == "finished"
    assert psutil.wait_procs(everything, PATIENCE_S)[1] == []


def test_who_takes_the_transactional_id_alone_ends_nothing_and_who_claims_the_name_ends_it(
    slow: Slow, running: Running
) -> None:
    """First a stranger that initialises it in the middle of a batch, and no more; then a driver that starts."""
    sent = slow.send(5)
    ready = running.wait_for("standby_ready")["pid"]
    slow.link.unlink()  # left by the first batch, and by the rehearsal
    sent += slow.send(20)
    slow.wait_until_under_way(running)
    name = load(slow.directory / "pipeline.toml", {}).plan.name
    with KafkaClient(slow.settings.for_protocol()) as client:
        requests = Requests(client, name, client.transaction_version(), timeout_ms=60_000)
        requests.initialise(None)
        assert running.wait_for("driver_lost")["reason"].startswith("failed: [DISPLACED] ")
        assert running.wait_for("took_over")["pid"] == ready
        eventually(slow.written, sent.__eq__, "what was sent, each once", PATIENCE_S)
        TransactionCoordinator(requests, Protocol(Settings("a newer one", client.transaction_version() >= 2))).start()
        slow.send(5)
        assert running.end() == 1
    assert running.events[-1]["code"] == "FENCED"
    slow.check_written(sent)


def test_a_service_that_is_stopped_ends_in_order_though_all_of_its_processes_are_told(
    slow: Slow, running: Running
) -> None:
    sent = slow.send(5)
    running.wait_for("standby_ready")
    slow.link.unlink()  # left by the first batch, and by the rehearsal
    sent += slow.send(20)
    slow.wait_until_under_way(running)
    supervisor = psutil.Process(running.process.pid)
    for process in [*supervisor.children(recursive=True), supervisor]:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    assert running.end() == 0
    assert running.events[-1]["event"] == "finished"
    slow.check_written(sent)


@pytest.mark.long  # its twin is test_a_supervisor_that_was_paused_kills_nobody
def test_a_supervisor_that_is_frozen_and_wakes_has_the_same_driver_go_on(slow: Slow, running: Running) -> None:
    """For longer than a driver may be silent; what its drivers say meanwhile waits in the sockets."""
    sent = slow.send(5)
    running.wait_for("standby_ready")
    supervisor = psutil.Process(running.process.pid)
    drivers = supervisor.children()
    supervisor.suspend()
    frozen_at = time.monotonic()
    while time.monotonic() < frozen_at + 2 * Limits().silence_s:
        sent += slow.send(5)
        eventually(slow.written, sent.__eq__, "what was sent while it was frozen", PATIENCE_S)
    supervisor.resume()
    sent += slow.send(5)
    eventually(slow.written, sent.__eq__, "what was sent since", PATIENCE_S)
    assert supervisor.children() == drivers
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0
    assert not [event for event in running.events if event["event"] in ("driver_lost", "note")]
    slow.check_written(sent)


def kill_in_part(driver: int, whom: str) -> None:
    if whom == BOTH:
        os.killpg(driver, signal.SIGKILL)
    elif whom == PYTHON:
        os.kill(driver, signal.SIGKILL)
    else:
        (jvm,) = psutil.Process(driver).children()
        jvm.kill()


def test_drivers_end_with_their_supervisor(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = slow.directory / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    running = Running(slow.directory, "--standby")
    supervisor = psutil.Process(running.process.pid)
    deadline = time.monotonic() + PATIENCE_S
    while not any("java" in name_of(child) for child in supervisor.children(recursive=True)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    everything = supervisor.children(recursive=True)
    running.kill()
    assert psutil.wait_procs(everything, PATIENCE_S)[1] == []
    while list(scratch.glob("onceflow-*")):  # removed last, by a process outside of the group
        assert time.monotonic() < deadline
        time.sleep(0.05)


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
