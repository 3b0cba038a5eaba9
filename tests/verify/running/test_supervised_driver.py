"""Drivers of the production supervisor are struck by their pids, and nobody but that supervisor has others follow them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from tests.faults.support import eventually
from tests.test_standby import a_plan
from tests.verify.faults.light_world import make_tests_importable
from tests.verify.running.supervised import (
    BESIDE_JAVA,
    ENGINE,
    await_standby,
    end_by_itself,
    notes_of,
    output,
    processes_of,
    repeated,
    world_of,
)
from tests.verify.running.test_watch import watch_over, watched

from onceflow.errors import VerificationError
from onceflow.pipeline.standby import PROGRAM
from onceflow.verify.cluster import processes
from onceflow.verify.engines import Engine, supervised_driver
from onceflow.verify.engines.lines import Message
from onceflow.verify.engines.supervised import DRIVER as DRIVER_OF_THE_ENGINE
from onceflow.verify.faults.catalog import FAULTS
from onceflow.verify.result import Lane
from onceflow.verify.running import driver as driver_module
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.life import Life
from onceflow.verify.running.process import EngineProcess
from onceflow.verify.running.supervised import SupervisedDriver
from onceflow.verify.running.timeline import Timeline
from onceflow.verify.running.users_words import in_the_users_words

HERE = Path(__file__).parent
DRIVER = (sys.executable, str(HERE / "reporting.py"))
BESIDE = (*BESIDE_JAVA, str(HERE / "reporting.py"))
"""The driver in the first of two processes; the second one, called ``java``, ends behind it."""
PATIENT_S, SHORT_S = (
    120.0,
    10.0,
)  # how long a driver may be silent; the short one is the usual one, for machines are loaded


@pytest.fixture(autouse=True)
def _drivers_import_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    make_tests_importable(monkeypatch)


@contextmanager
def led(
    directory: Path,
    *,
    standbys: int = 1,
    driver: tuple[str, ...] = DRIVER,
    silence_s: float = PATIENT_S,
    engine: Engine = ENGINE,
) -> Iterator[SupervisedDriver]:
    """Afterwards nothing may be left of it."""
    (directory / "checkpoint").mkdir()
    plan = a_plan(directory).path
    words: Any = {"private": plan, "pipeline": "the user's own"}
    leader = (sys.executable, str(HERE / "leading.py"), str(silence_s), *driver)

    def launch(number: int, heard: Callable[[Message | None], None], arguments: tuple[str, ...]) -> EngineProcess:
        place = directory / f"scratch-{number}"
        return EngineProcess((*leader, *arguments), plan, place, directory / f"log-{number}", heard, leads=True)

    with (
        patch.object(driver_module, "_PASSED_BATCHES", 50),
        SupervisedDriver(engine, launch, Timeline(), standbys, partial(in_the_users_words, **words)) as supervised,
    ):
        supervised.start()
        yield supervised
        address = supervised._door.address
    assert not processes_of(plan)
    assert not [each for each in psutil.process_iter(["cmdline"]) if address in (each.info["cmdline"] or ())]
    assert not list(directory.glob("scratch-*"))


def leader_of(driver: SupervisedDriver) -> Life:
    assert driver._leader is not None
    return driver._leader


def at_work(driver: SupervisedDriver) -> list[Life]:
    return [each for each in driver._reported if not each.ended and each.generation]


def recovered(driver: DriverProcess) -> None:
    commits = driver.course.commits
    assert driver._await(lambda: driver.has_recovered(commits), 60)


def log_of(directory: Path, number: int = 1) -> str:
    return (directory / f"log-{number}").read_text()


# --------------------------------------------------------------------------------------------------------------- struck


def test_a_killed_driver_is_followed_by_the_standby_of_its_supervisor(tmp_path: Path) -> None:
    with led(tmp_path) as driver:
        recovered(driver)
        leader, first = leader_of(driver), driver.pid
        (standby,) = driver._standbys
        assert driver.kill()
        assert driver.await_batches(2, 60)
        assert (driver.pid, driver.generation) == (standby.running.pid, 2)
        assert driver._leader is leader
        assert (len(driver.course.strikes), driver.course.outages) == (1, [])
        recovered(driver)
        assert driver._standbys[0] is not standby
        assert driver.stop() == ""
    # What the supervisor itself saw of it.
    assert f"DriverLost(pid={first}, reason='was killed by SIGKILL'" in log_of(tmp_path)
    assert f"TookOver(pid={standby.running.pid}," in log_of(tmp_path)


def test_a_driver_is_killed_where_it_waits_right_before_a_step(tmp_path: Path) -> None:
    with led(tmp_path) as driver:
        recovered(driver)
        assert driver.kill_at("COMMIT") is True
        assert driver.await_batches(1, 60)
        (struck,) = driver.course.struck
        assert (struck.step, struck.is_held) == ("COMMIT", True)
        assert driver.stop() == ""
    assert repeated(tmp_path) == {3 * struck.batch + number for number in range(3)}, "it is an engine without defence"


def test_who_takes_over_is_held_in_its_recovery_whichever_it_is_and_the_others_are_not(tmp_path: Path) -> None:
    with led(tmp_path, standbys=2) as driver:
        recovered(driver)
        first, second = driver._standbys
        assert driver.kill_in_recovery("CLAIM") is True
        assert first.ended
        assert [each.step for each in driver.course.struck][1:] == ["CLAIM"]
        assert driver.await_batches(2, 60), "the second one was let go on"
        assert driver._current is second
        assert (driver.generation, len(driver.course.strikes)) == (3, 2)


def test_who_takes_over_from_cold_is_held_in_its_recovery_as_well(tmp_path: Path) -> None:
    with led(tmp_path) as driver:
        recovered(driver)
        leader_of(driver).asked_to_end = True  # so that nobody tells of the standby's end
        os.killpg(driver._standbys[0].running.pid, signal.SIGKILL)
        assert driver._await(lambda: not driver._standbys, 60)
        assert driver.kill_in_recovery("CLAIM") is True
        assert driver.await_batches(1, 60)


@pytest.mark.parametrize("fault", ["kill-driver-python", "pause-driver-python", "pause-driver"])
def test_one_of_two_processes_is_struck_and_the_supervisor_replaces_both(tmp_path: Path, fault: str) -> None:
    """But for faults of the JVM alone, which the scripted driver does not miss."""
    with led(tmp_path, driver=BESIDE, silence_s=SHORT_S) as driver:
        recovered(driver)
        old = driver._alive()
        jvm = old.running.jvm
        assert jvm is not None
        FAULTS[fault].inject(world_of(driver, tmp_path), Random(1))
        assert old.ended
        assert not processes.is_there(jvm)
        assert driver.await_batches(1, 60)
        assert (driver.generation, driver.course.outages) == (2, [])
        kills = fault.startswith("kill")
        assert (len(driver.course.strikes), len(driver.course.pauses)) == (kills, not kills)
    if not kills:
        assert f"gave no sign of life for {SHORT_S:.0f} s and was killed" in log_of(tmp_path)


def test_a_standby_is_killed_and_its_supervisor_starts_another(tmp_path: Path) -> None:
    with led(tmp_path, standbys=2) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        killed, other = driver._standbys
        world = world_of(driver, tmp_path)
        FAULTS["kill-standby"].inject(world, Random(1))
        assert (world.said.beside, killed.ended, driver._standbys[0]) == ("a warm standby killed", True, other)
        assert (driver.generation, driver.course.strikes, driver.course.outages) == (1, [], [])


def test_a_standby_that_is_frozen_is_told_to_run_and_is_given_up_by_its_supervisor(tmp_path: Path) -> None:
    with led(tmp_path, standbys=2, silence_s=SHORT_S) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        frozen, other = driver._standbys
        FAULTS["pause-standby"].inject(world_of(driver, tmp_path), Random(1))
        assert (frozen.ended, driver._current) == (True, other)
        assert (len(driver.course.strikes), driver.course.outages) == (1, [])


def test_the_end_of_a_driver_by_itself_is_an_outage(tmp_path: Path) -> None:
    with led(tmp_path) as driver:
        recovered(driver)
        end_by_itself(driver)
        assert driver.await_batches(1, 60)
        assert (driver.course.strikes, len(driver.course.outages)) == ([], 1)


def test_the_end_of_a_driver_that_was_stopped_is_none(tmp_path: Path) -> None:
    with led(tmp_path, silence_s=SHORT_S) as driver:
        recovered(driver)
        old = driver.pause()
        assert old is not None
        driver.replace(old)
        assert driver._await(lambda: old.ended, 60)
        assert driver.course.outages == []
        old.running.resume()


# ------------------------------------------------------------------------------------------------- kept down, at rest


def test_while_it_is_kept_down_no_standby_runs_and_behind_that_one_does(tmp_path: Path) -> None:
    with led(tmp_path) as driver:
        recovered(driver)
        (standby,) = driver._standbys
        with driver.down():
            assert not driver._runs()
            assert at_work(driver) == []
            before = output(tmp_path)
            assert psutil.Process(leader_of(driver).running.pid).status() == psutil.STATUS_STOPPED
            assert standby.running.is_running
        assert driver.await_batches(1, 60)
        assert output(tmp_path)[len(before)][1] == standby.running.pid
        assert (driver._current, len(driver.course.strikes)) == (standby, 1)


def test_it_is_kept_down_behind_a_kill_too(tmp_path: Path) -> None:
    """Its supervisor has told a standby to run by then, which has not begun."""
    with led(tmp_path) as driver:
        recovered(driver)
        (standby,) = driver._standbys
        driver.kill()
        with driver.down():
            assert standby.ended
            assert at_work(driver) == []
        assert driver.await_batches(1, 60)
        assert (driver.generation, len(driver.course.strikes)) == (3, 2)


def test_it_is_kept_down_where_who_was_told_to_run_has_not_begun(tmp_path: Path) -> None:
    with led(tmp_path) as driver:
        recovered(driver)
        frozen, await_ = driver.pause_standby(), driver._await
        assert frozen is not None
        driver.kill()

        def wakes(*given: Any) -> bool:
            frozen.running.resume()
            return await_(*given)

        with patch.object(driver, "_await", wakes), driver.down():
            assert frozen.ended, "it was waited for, and killed"
        assert len(driver.course.strikes) == 2
        frozen.running.resume()


@pytest.mark.parametrize(
    ("spares", "how"), [("java", "and tells why"), ("java", "without a word"), ("all", "and tells why")]
)
def test_it_is_kept_down_where_one_has_failed_and_something_of_it_lives_on(
    tmp_path: Path, spares: str, how: str
) -> None:
    """Its supervisor has told a standby to run by then, which stands still until somebody waits for it."""
    (tmp_path / "spares").write_text(spares)
    with led(tmp_path) as driver:
        recovered(driver)
        frozen, await_, failed = driver.pause_standby(), driver._await, driver._alive()
        assert frozen is not None
        (tmp_path / "breaks").write_text(how)
        eventually(lambda: f"DriverLost(pid={failed.running.pid}," in log_of(tmp_path), bool, "that it is missed")
        assert (failed.failure is None) == (how == "without a word")
        assert processes.is_there(failed.running.pid) == (spares == "all")

        def wakes(condition: Callable[[], bool], *given: Any) -> bool:
            if not condition():
                frozen.running.resume()
            return await_(condition, *given)

        with patch.object(driver, "_await", wakes), driver.down():
            assert not failed.ended, "it is not the one that was to be waited for"
            assert frozen.ended, "it was waited for, and killed"
            assert at_work(driver) == [failed]
        assert len(driver.course.strikes) == 1
        frozen.running.resume()


def test_it_is_kept_down_where_one_ends_before_it_is_killed(tmp_path: Path) -> None:
    """Nothing has struck that one, so it is another one that is."""
    with led(tmp_path) as driver:
        recovered(driver)
        first, kill = driver._alive(), driver._kill

        def ends_before(life: Life) -> bool:
            if life is first:
                end_by_itself(driver)
            return kill(life)

        with patch.object(driver, "_kill", ends_before), driver.down():
            assert (driver.generation, driver._runs(), at_work(driver)) == (2, False, [])
        assert driver.await_batches(1, 60)
        assert len(driver.course.strikes) == 1


def test_at_rest_all_of_it_has_ended_in_order_and_goes_on_behind_that(tmp_path: Path) -> None:
    with led(tmp_path) as driver:
        recovered(driver)
        leader = leader_of(driver)
        with driver.resting():
            assert (leader.ended, leader.finished, driver._reported) == (True, True, [])
        assert driver.await_batches(1, 60)
        assert driver._leader is not leader
        assert (driver.course.strikes, driver.course.outages, notes_of(driver)) == ([], [], [])
        assert driver.stop() == ""
    numbers = [number for number, _ in output(tmp_path)]
    assert numbers == list(range(len(numbers)))


def test_one_that_does_not_come_to_rest_is_killed(tmp_path: Path) -> None:
    with led(tmp_path) as driver:
        recovered(driver)
        held = driver.hold("COMMIT")
        assert held is not None
        with patch.object(driver, "go"), driver.resting(0.2):
            assert held.ended
            assert driver._reported == []
        assert driver.await_batches(1, 60)


# --------------------------------------------------------------------------------------- a supervisor that is none


def test_a_supervisor_that_does_not_take_over_is_found_out(tmp_path: Path) -> None:
    """The control: frozen, with a warm standby and a dead driver."""
    with led(tmp_path) as driver:
        recovered(driver)
        world = watched(world_of(driver, tmp_path))
        leader = leader_of(driver)
        assert leader.running.pause(alone=True)
        assert driver.kill()
        with watch_over(world, 1.0) as watch, pytest.raises(VerificationError, match="given up"):
            world.sleep(60)
        leader.running.resume()
        assert (watch.stuck, watch.is_still) == ("[STUCK] no batch for 1 s, though no fault was in its way", True)


def test_a_supervisor_that_asks_for_a_resume_is_given_it(tmp_path: Path) -> None:
    (tmp_path / "fails").write_text("ProgressConflict")
    with led(tmp_path) as driver:
        assert driver.await_batches(1, 60)
        assert (driver.conflicts, driver._processes, driver.generation) == (1, 2, 2)
    (note,) = notes_of(driver)
    assert note.startswith("the supervisor ended with PROGRESS_CONFLICT: ")
    assert driver.unexplained == [], "it is judged with the faults that there were"


def test_a_supervisor_that_ends_with_an_error_of_no_fault_has_failed(tmp_path: Path) -> None:
    """And the next one goes on."""
    with led(tmp_path) as driver:
        recovered(driver)
        (tmp_path / "fails").write_text("Fenced")
        driver.kill()
        assert driver._await(lambda: bool(driver.unexplained), 60)
        (tmp_path / "fails").unlink()
        assert driver.await_batches(1, 60)
    assert driver.unexplained[0].startswith("the supervisor ended with FENCED: [FENCED] as the script says")


def test_a_supervisor_that_gives_up_behind_a_row_of_kills_has_not_failed(tmp_path: Path) -> None:
    with led(tmp_path) as driver:
        recovered(driver)
        leader = leader_of(driver)
        for kills in range(5):
            if kills < 4:
                driver._hold_the_next("CLAIM")
            assert driver.kill()
            assert kills == 4 or driver._await(lambda: driver._runs() and driver._alive().is_held_at("CLAIM"), 60)
        assert driver._await(lambda: driver._leader is not leader, 60)
        assert driver.await_batches(1, 60)
    assert notes_of(driver)[0].startswith("the supervisor ended with RESTARTS_EXHAUSTED: ")
    assert driver.unexplained == []


@pytest.mark.parametrize("in_a_fault", [True, False])
def test_a_supervisor_that_gives_up_has_failed_where_drivers_end_and_nothing_befalls_them(
    tmp_path: Path, *, in_a_fault: bool
) -> None:
    with led(tmp_path) as driver:
        recovered(driver)
        leader = leader_of(driver)
        with ExitStack() as lasts:
            if in_a_fault:
                lasts.enter_context(driver._timeline.during(Lane.FAULT, "a broker is killed"))
            (tmp_path / "fails").write_text("QueryFailed")
            driver.kill()
            assert driver._await(lambda: driver._leader is not leader, 60)
            (tmp_path / "fails").unlink()
        assert driver.await_batches(1, 60)
    failed = [each.partition(": ")[0] for each in driver.unexplained]
    assert ("the supervisor ended with RESTARTS_EXHAUSTED" in failed) == (not in_a_fault)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("tells why", "driver 1 ended with QUERY_FAILED: [QUERY_FAILED] tells why"),
        ("without a word", "driver 1 ended with ENDED: its process ended by itself, without a word"),
    ],
)
def test_a_driver_that_ends_though_nothing_befell_it_is_a_failure_though_its_supervisor_goes_on(
    tmp_path: Path, how: str, told: str
) -> None:
    with led(tmp_path, engine=replace(ENGINE, is_ours=True)) as driver:
        recovered(driver)
        (tmp_path / "breaks").write_text(how)
        assert driver._await(lambda: driver.generation == 2, 60)
        assert driver.await_batches(1, 60)
        assert driver._await(lambda: bool(driver.unexplained), 60)
        assert driver.unexplained == [f"{told}, though nothing was done to it that ends it so"]
        assert driver.stop() == ""


def test_a_driver_that_its_supervisor_kills_for_its_silence_needs_no_last_word(tmp_path: Path) -> None:
    """It has too little of the machine, say: that is nobody's fault, and users see the same."""
    with led(tmp_path, engine=replace(ENGINE, is_ours=True), silence_s=SHORT_S) as driver:
        recovered(driver)
        silent = driver._alive()
        assert silent.running.pause()
        assert driver._await(lambda: silent.ended and driver.generation == 2, 60)
        assert driver.await_batches(1, 60)
        assert driver._await(lambda: not driver._gone, 60), "all is heard of it"
        assert driver.unexplained == []
        silent.running.resume()


def test_what_a_driver_and_its_supervisor_say_is_told_in_the_users_words(tmp_path: Path) -> None:
    (tmp_path / "fails").write_text("ProgressConflict")
    with led(tmp_path) as driver:
        assert driver.await_batches(1, 60)
        (failed,) = driver.course.failed
        assert failed.error.endswith("as the script says, with the user's own")
        assert "with the user's own" in notes_of(driver)[0]


def test_a_drivers_spark_puts_its_files_where_its_supervisor_removes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "of the user"))
    with led(tmp_path) as driver:
        assert driver.await_batches(1, 60)
        assert processes.variable(driver.pid, "SPARK_LOCAL_DIRS") is None
        scratch = processes.variable(driver.pid, "TMPDIR")
        assert scratch is not None
        assert Path(scratch).parent == tmp_path / "scratch-1"


def test_a_driver_is_started_by_the_command_of_onceflow_run() -> None:
    assert DRIVER_OF_THE_ENGINE[:-1] == PROGRAM[:-1]
    assert DRIVER_OF_THE_ENGINE[-1] == supervised_driver.__name__


def test_a_plan_that_no_start_can_run_is_given_up_at_once(tmp_path: Path) -> None:
    (tmp_path / "fails").write_text("ConfigurationError")
    with led(tmp_path) as driver, pytest.raises(VerificationError, match="every start would end the same way"):
        driver.await_batches(1)
    assert driver.is_refused


def test_a_supervisor_that_ends_without_a_word_is_told_of_and_started_again(tmp_path: Path) -> None:
    with led(tmp_path) as driver:
        recovered(driver)
        leader = leader_of(driver)
        os.killpg(leader.running.pid, signal.SIGKILL)
        assert driver._await(lambda: driver._leader is not leader, 60)
        assert driver.await_batches(1, 60)
        told = "the supervisor ended with ENDED: its process ended by itself, without a word"
        assert notes_of(driver) == [told]
        assert driver.unexplained == [f"{told}, though nothing was done to it that ends it so"]


def test_a_supervisor_that_dies_at_its_end_has_not_ended_in_order(tmp_path: Path) -> None:
    (tmp_path / "dies").touch()
    with led(tmp_path) as driver:
        recovered(driver)
        assert driver.stop() == "the supervisor ended, and not in order"
        assert driver._current is not None
        assert driver._current.finished


def test_what_is_left_is_killed_what_stands_still_too(tmp_path: Path) -> None:
    with led(tmp_path, standbys=2) as driver:
        recovered(driver)
        await_standby(driver)
        assert driver.pause() is not None
        assert leader_of(driver).running.pause(alone=True)
        driver.close()
        assert driver._reported == []
