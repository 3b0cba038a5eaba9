"""A driver that dies is started again, at once and in the right mode, by one that waits warm; and not for ever."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.faults.support import eventually
from tests.verify.running.supervised import (
    ENGINE,
    await_standby,
    end_by_itself,
    notes_of,
    processes_of,
    supervised,
    world_of,
)

from onceflow.errors import VerificationError
from onceflow.verify.engines.lines import Do, Message, Order, Told
from onceflow.verify.faults import limits
from onceflow.verify.running import supervisor as supervisor_module
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.life import Life
from onceflow.verify.running.process import EngineProcess
from onceflow.verify.running.timeline import Timeline


def test_a_standby_that_grew_cold_is_waited_for(tmp_path: Path) -> None:
    """Its executors were replaced, say."""
    with supervised(tmp_path) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        (standby,) = driver._standbys
        driver._heard(standby, Message(Told.COLD))
        assert driver.awaited(0) == "the standby to be warm"
        driver._heard(standby, Message(Told.READY))
        assert driver.awaited(0) == ""


def test_drivers_killed_in_a_row_are_followed_by_those_that_wait(tmp_path: Path) -> None:
    with supervised(tmp_path, standbys=3) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        assert driver._processes == 4
        waiting = [standby.running.pid for standby in driver._standbys]
        followed = []
        for generation in (2, 3, 4):
            driver.kill()
            assert driver._await(lambda wanted=generation: driver.generation == wanted, 60)  # type: ignore[misc]
            followed.append(driver.pid)
        assert followed == waiting
        assert driver._await(lambda: driver.has_recovered(driver.course._commits_at_end), 60), (
            "all of them are warm again"
        )
        assert driver._processes == 7


def test_a_standby_that_is_about_to_be_killed_does_not_take_over(tmp_path: Path) -> None:
    with supervised(tmp_path, standbys=2) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        first, second = driver._standbys
        with driver._changed:
            first.killed = True  # and the signal takes its time
        end_by_itself(driver)
        assert driver._await(lambda: driver.generation == 2, 60)
        assert driver._current is second
        first.running.kill()


def test_a_standby_that_is_killed_is_told_as_none_that_ended_by_itself(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        (dead,) = driver._standbys
        assert driver.kill_standby() is True
        assert dead.ended
        assert driver._await(lambda: not driver.lacking_standbys, 60)
        assert dead not in driver._standbys
        assert (notes_of(driver), driver.generation) == ([], 1)


def test_an_end_is_learned_of_once_also_where_the_next_one_may_not_start_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with supervised(tmp_path) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)

        def comes_meanwhile(times: int) -> float:
            driver._down = int(not came)
            came.append(driver._down)
            return 0.0

        came: list[int] = []

        monkeypatch.setattr(supervisor_module, "_backoff_s", comes_meanwhile)
        end_by_itself(driver)
        eventually(lambda: driver._down, bool, "a fault that wants it down")
        with driver._changed:
            driver._down = 0
            driver._changed.notify_all()
        assert driver.await_batches(1)
        assert driver.generation == 2
        assert notes_of(driver) == ["driver 1 ended with ENDED: its process ended by itself, without a word"]


def test_none_is_started_behind_an_end_that_is_learned_of_while_the_supervisor_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closes_meanwhile(self: DriverProcess, life: Life) -> None:
        learn(self, life)
        self._closing = True
        closed.set()

    learn, closed = DriverProcess._learn, threading.Event()
    monkeypatch.setattr(DriverProcess, "_learn", closes_meanwhile)
    with supervised(tmp_path, standbys=0) as driver:
        assert driver.await_batches(1)
        end_by_itself(driver)
        assert closed.wait(60)
        driver._thread.join(60)
        assert not driver._thread.is_alive()
        assert [path.name for path in tmp_path.glob("log-*")] == ["log-1"]


def test_a_progress_conflict_is_followed_by_a_resume(tmp_path: Path) -> None:
    with supervised(tmp_path, fails_in_mode="refuse", code="PROGRESS_CONFLICT") as driver:
        assert driver.await_batches(1)
        assert driver.generation == 2
    modes = {each.read_text() for each in (tmp_path / "checkpoint").glob("mode-*")}
    assert modes == {"refuse", "resume"}


@pytest.mark.parametrize(
    ("code", "is_ours", "is_told"),
    [
        ("FENCED", True, True),  # by nobody: no fault has come, and no other driver is there
        ("PROGRESS_CONFLICT", True, False),  # counted by itself
        ("TypeError", True, True),
        ("ENDED", True, True),
        ("TypeError", False, False),
        ("FENCED", False, False),
    ],
)
def test_an_end_that_no_fault_brings_about_is_a_failure_though_the_next_one_goes_on(
    tmp_path: Path, code: str, *, is_ours: bool, is_told: bool
) -> None:
    """Of ours: a control may end as it likes."""
    with supervised(tmp_path, engine=replace(ENGINE, is_ours=is_ours), fails_in_mode="refuse", code=code) as driver:
        assert driver._await(lambda: bool(notes_of(driver)), 60)
    told = f"driver 1 ended with {code}: as the script says, though nothing was done to it that ends it so"
    assert driver.unexplained[:1] == ([told] if is_told else [])


@pytest.mark.parametrize("killed", [True, False])
def test_a_jvm_that_was_killed_explains_any_end_of_its_driver(*, killed: bool) -> None:
    launch: Any = None
    driver = DriverProcess(replace(ENGINE, is_ours=True), launch, Timeline())
    failure = Message(Told.FAILED, code="Py4JNetworkError", error="as the test says")
    driver._learn(Life(1, jvm_killed=killed, ended=True, failure=failure))
    assert len(driver.unexplained) == (not killed)


def test_a_driver_that_fails_again_and_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "MOST_FAILURES", 3)
    with supervised(tmp_path, fails_in_mode="refuse", code="INPUT") as driver:
        with pytest.raises(VerificationError, match="3 times in a row without a batch, last with INPUT"):
            driver.await_failure(("nothing like it",), 1, 60)
        with pytest.raises(VerificationError, match="3 times in a row"):
            driver.await_batches(1)
        assert "no driver ran at the end: the driver failed" in driver.stop()


def test_who_waits_is_woken_when_it_is_given_up(tmp_path: Path) -> None:
    waits = threading.Event()

    def never() -> bool:
        waits.set()
        return False

    with supervised(tmp_path) as driver, ThreadPoolExecutor(1) as pool:
        assert driver.await_batches(1)
        driver.pause()
        waiting = pool.submit(driver._await, never, 240)
        assert waits.wait(60)
        driver.give_up("no input comes any more")
        with pytest.raises(VerificationError, match="no input comes any more"):
            waiting.result(60)
        with pytest.raises(VerificationError, match="no input comes any more"):
            driver.pause()


def test_one_that_stops_is_not_given_up(tmp_path: Path) -> None:
    """It has no batch any more, which is nothing to be stuck at."""
    with supervised(tmp_path) as driver, ThreadPoolExecutor(1) as pool:
        assert driver.await_batches(1)
        paused = driver.pause()
        assert paused is not None
        stopping = pool.submit(driver.stop)
        eventually(lambda: driver._closing, bool, "the stop")
        driver.give_up("stuck")
        paused.running.resume()
        assert stopping.result(60) == ""


@pytest.mark.parametrize("judged", [False, True])
def test_a_control_that_hangs_is_ended_and_what_is_judged_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, judged: bool
) -> None:
    monkeypatch.setattr(limits, "_HANGS_S", 0.2)
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        monkeypatch.setattr(driver.course, "engine", replace(driver.engine, judged=judged))
        current = driver._current
        assert current is not None
        current.running.order(Order(Do.HOLD, step="WRITE"))
        assert driver._await(lambda: driver.under_way.is_held, 60)
        limits.end_if_it_hangs(world_of(driver, tmp_path))
        assert driver.under_way.is_held == judged
        if not judged:
            assert driver.await_batches(1), "another one goes on"


def test_a_failure_that_every_start_would_meet_is_met_once_and_told_in_full(tmp_path: Path) -> None:
    with supervised(tmp_path, fails_in_mode="refuse", code="CONFIGURATION", lasting="yes") as driver:
        with pytest.raises(
            VerificationError, match="every start would end the same way: as the script says\nin two lines"
        ):
            driver.await_batches(1)
        assert driver.is_refused
        assert driver.generation == 1


def test_a_standby_that_dies_is_replaced_and_counts_as_none_meanwhile(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        (dead,) = driver._standbys
        os.killpg(dead.running.pid, signal.SIGKILL)
        assert driver._await(lambda: dead.ended, 60)
        assert dead not in driver._standbys or not driver.has_recovered(0)
        assert driver._await(lambda: dead not in driver._standbys and driver.has_recovered(0), 60)
        assert driver.generation == 1


def test_a_standby_that_died_is_told_also_where_it_was_to_take_over(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        (dead,) = driver._standbys
        with driver.down():
            os.killpg(dead.running.pid, signal.SIGKILL)
            assert driver._await(lambda: dead.ended, 60)
        assert driver.await_batches(1)
        assert driver._current is not dead
        notes = notes_of(driver)
    assert notes == ["the standby ended by itself"]


def test_standbys_that_are_lost_now_and_then_do_not_make_the_next_one_later(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        for losses in (1, 2, 3):
            assert driver._await(lambda: driver.has_recovered(0), 60)
            assert driver._standby_losses == 0
            os.killpg(driver._standbys[0].running.pid, signal.SIGKILL)
            assert driver._await(lambda lost=losses: driver._processes == 2 + lost, 60)  # type: ignore[misc]
        assert driver._await(lambda: driver.has_recovered(0), 60)
        assert driver._standby_losses == 0
        notes = notes_of(driver)
    assert notes == ["the standby ended by itself"] * 3


def test_the_pause_before_the_next_one_has_an_end() -> None:
    assert supervisor_module._backoff_s(1) < supervisor_module._backoff_s(2)
    assert supervisor_module._backoff_s(10_000) == supervisor_module._MOST_BACKOFF_S


def test_such_a_failure_after_a_batch_may_come_of_a_fault_and_is_met_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "MOST_FAILURES", 2)
    with supervised(tmp_path, fails_in_mode="again", code="CONFIGURATION", lasting="yes") as driver:
        assert driver.await_batches(1)
        driver._mode = "again"
        driver.kill()
        assert driver.await_batches(2)
        assert not driver.is_refused
        assert driver.generation == 3


def test_one_that_ends_without_a_word_is_not_started_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "MOST_FAILURES", 3)
    with supervised(tmp_path, dies="at once") as driver, pytest.raises(VerificationError, match="last with ENDED"):
        driver.await_batches(1)


def test_one_that_dies_at_its_end_has_not_ended_in_order(tmp_path: Path) -> None:
    """Its JVM crashed, say, or the system had no memory for it any more."""
    with supervised(tmp_path, dies_at_its_end="of a signal") as driver:
        assert driver.await_batches(1)
        told = (
            "the driver ended at its end, and not in order: without a word. The end of its log:\n  the last of its log"
        )
        assert driver.stop() == told


def test_who_says_what_is_no_message_is_given_up_with_what_was_wrong(tmp_path: Path) -> None:
    """Whoever hears it must live on, and whoever waits must hear of it."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        life = driver._alive()
        driver._heard(life, Message.of_line('{"told": "committed", "batch": "4"}'))
        told = 'the engine says what is no message: batch is "4", in {"told": "committed", "batch": "4"}'
        with pytest.raises(VerificationError, match=re.escape(told)):
            driver.await_batches(1000, 60)
        assert driver.stop() == f"the driver failed at its end: {told}"


def test_what_is_no_message_counts_at_the_end_as_well(tmp_path: Path) -> None:
    """A plain line of a process, heard as each of its lines is."""
    with supervised(tmp_path, says="{'told': 'finished', 'batches': 3}".replace("'", '\\"')) as driver:
        assert driver.await_batches(1)
        assert "what is no message: there is no field 'batches', in {" in driver.stop()


def test_one_that_cannot_be_started_is_not_waited_for(tmp_path: Path) -> None:
    """The supervising thread must not end in silence."""

    def launch(number: int, heard: Callable[[Message | None], None]) -> EngineProcess:
        raise OSError("no space left on device")

    with DriverProcess(ENGINE, launch, Timeline()) as driver:
        driver.start()
        with pytest.raises(VerificationError, match="no driver can be started any more: OSError: no space left"):
            driver.await_batches(1, 60)


def test_one_that_cannot_be_killed_leaves_no_other_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        await_standby(driver)
        running = driver._alive().running
        kill = running.kill

        def fail() -> None:
            kill()
            raise VerificationError("processes of the group are still there")

        monkeypatch.setattr(running, "kill", fail)
        with pytest.raises(VerificationError, match="still there"):
            driver.close()
        left = processes_of(tmp_path / "plan.toml")
        monkeypatch.undo()
    assert not left
