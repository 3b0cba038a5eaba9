"""The supervisor: a driver that dies is started again, at once and in the right mode, and nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import psutil
import pytest
from tests.faults.support import eventually
from tests.verify.running.injected import injected
from tests.verify.running.supervised import (
    ENGINE,
    IN_THE_FIRST,
    IN_TWO,
    end_by_itself,
    ends_while_a_step_is_awaited,
    output,
    processes_of,
    repeated,
    supervised,
    world_of,
)

from onceflow.errors import PipelineStuck, VerificationError
from onceflow.verify.cluster import processes
from onceflow.verify.engines.lines import Do, Message, Order, Told
from onceflow.verify.faults import limits
from onceflow.verify.matrix.bounces import BounceClient
from onceflow.verify.matrix.cells import How
from onceflow.verify.result import Lane
from onceflow.verify.running import driver as driver_module
from onceflow.verify.running import process as process_module
from onceflow.verify.running.driver import DriverProcess, Effect, Life
from onceflow.verify.running.encounters import NOTHING
from onceflow.verify.running.process import EngineProcess
from onceflow.verify.running.recovery import Strike, recoveries
from onceflow.verify.running.timeline import Timeline


def writers(directory: Path) -> set[int]:
    return {pid for _, pid in output(directory)}


def await_standby(driver: DriverProcess) -> None:
    assert driver._await(lambda: bool(driver._standbys) and driver._standbys[0].is_warm, 60)


def test_a_killed_driver_is_followed_by_the_one_that_waits_ready(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        first = driver.pid
        await_standby(driver)
        (standby,) = driver._standbys
        driver.kill()
        assert driver.await_batches(3)
        assert driver.pid == standby.running.pid
        assert driver.generation == 2
        assert not psutil.pid_exists(first)
        assert driver.stop() == ""
    assert len(writers(tmp_path)) == 2
    assert set(range(9)) <= {number for number, _ in output(tmp_path)}


def test_a_standby_that_grew_cold_is_waited_for(tmp_path: Path) -> None:
    """Its executors were replaced, say."""
    with supervised(tmp_path) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        (standby,) = driver._standbys
        driver._heard(standby, Message(Told.COLD))
        assert driver.awaited(0) == "the standby to be warm"
        driver._heard(standby, Message(Told.READY))
        assert driver.awaited(0) == ""


def test_a_clean_bounce_comes_into_a_batch_and_lets_it_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounces come by progress, so most likely between two batches, where one shows nothing."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        monkeypatch.setattr(driver, "engine", replace(driver.engine, steps=("WRITE", "COMMIT")))
        for number in range(2):
            world = world_of(driver, tmp_path)
            BounceClient(How.CLEAN, number).inject(world, Random(1))
            assert re.match("asked to stop with batch [0-9]+ right before (WRITE|COMMIT)", world.said.met)
            assert driver.await_batches(1)
        assert driver.stop() == ""
    assert repeated(tmp_path) == set()


def test_a_clean_bounce_whose_step_does_not_come_has_met_nothing(tmp_path: Path) -> None:
    """It waits for that through some batches, and then asks between two, or anywhere."""
    with supervised(tmp_path) as driver:
        driver.engine = replace(driver.engine, steps=("NEVER",))
        driver._doing = lambda life: NOTHING  # type: ignore[method-assign]  # it is between two batches
        assert driver.await_batches(1)
        world = world_of(driver, tmp_path)
        found = injected(world, BounceClient(How.CLEAN, 0))
    assert not found.met
    assert found.found == "its moment did not come: NEVER did not come, asked to stop between two batches"


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
        assert driver._await(lambda: driver.has_recovered(driver._commits_at_end), 60), "all of them are warm again"
        assert driver._processes == 7


@pytest.mark.parametrize("step", ["WRITE", "COMMIT"])
def test_it_is_killed_right_before_a_step(tmp_path: Path, step: str) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(2)
        assert driver.kill_at(step)
        (met,) = driver.struck
        assert (met.step, met.is_held) == (step, True)
        assert met.batch not in driver.committed_batches
        assert driver.await_batches(1)
        assert met.batch in driver.committed_batches


def test_a_step_that_does_not_come_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        assert driver.kill_at("NEVER", patience_s=0.2) is False
        assert driver.await_batches(1)
        assert driver.generation == 2


def test_one_that_ends_by_itself_while_its_step_is_awaited_was_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts once, as an outage, and how the next one begins follows from why it ended."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        ends_while_a_step_is_awaited(driver, monkeypatch, "PROGRESS_CONFLICT")
        assert driver.kill_at("WRITE") is None
        assert (driver.strikes, driver.struck, len(driver.outages)) == ([], [], 1)
        assert driver.await_batches(1)
        assert notes_of(driver) == ["driver 1 ended with PROGRESS_CONFLICT: as the test says"]
        assert (tmp_path / "checkpoint" / f"mode-{driver.pid}").read_text() == "resume"


def test_one_that_does_nothing_while_its_step_is_awaited_is_stuck_and_not_rescued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        monkeypatch.setattr(driver_module, "_TAKE_OVER_S", 0.5)
        pid = driver.pid
        os.killpg(pid, signal.SIGSTOP)
        driver._alive(60).running.hear()
        with pytest.raises(PipelineStuck, match="no batch for 1 s, and WRITE did not come"):
            driver.kill_at("WRITE", 1.0)
        assert (driver.pid, driver.strikes) == (pid, [])
        os.killpg(pid, signal.SIGCONT)


@pytest.mark.parametrize("strike", ["kill_python", "pause_python", "pause"])
def test_one_that_has_just_ended_by_itself_is_not_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strike: str
) -> None:
    """In the moment between the look who runs and the signal. Its failure counts, and nothing is thrown away for it."""
    monkeypatch.setattr(driver_module, "_backoff_s", lambda times: 0.0)
    with supervised(tmp_path, engine=IN_THE_FIRST) as driver:
        assert driver.await_batches(1)
        alive = driver._alive

        def ends(patience_s: float) -> Life:
            life = alive(patience_s)
            monkeypatch.setattr(driver, "_alive", alive)
            monkeypatch.setattr(type(life.running), "jvm", life.running.jvm)  # as it was seen before
            end_by_itself(driver)
            return life

        monkeypatch.setattr(driver, "_alive", ends)
        assert getattr(driver, strike)() is None
        assert (driver.strikes, driver.pauses, driver.struck) == ([], [], [])
        assert driver.await_batches(1)
        assert notes_of(driver) == ["driver 1 ended with ENDED: its process ended by itself, without a word"]


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


def test_the_successor_is_killed_in_its_recovery(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        assert driver.kill_in_recovery("CLAIM")
        # Not merely one more batch: the first one's last words may be heard after its end.
        assert driver._await(lambda: len(writers(tmp_path)) == 2, 60)
        assert driver.generation == 3
        assert len(driver.strikes) == 2
    assert len(writers(tmp_path)) == 2  # the second one never came to a batch


def test_a_paused_driver_is_replaced_and_wakes(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        driver.pause()
        old = driver.replace()
        # A process that waits for a processor stops when it gets one.
        assert driver._await(lambda: psutil.Process(old.running.pid).status() == psutil.STATUS_STOPPED, 60)
        assert driver.await_batches(3)
        before = old.batches
        old.running.resume()
        assert driver._await(lambda: old.batches > before + 1, 60)
        assert not driver.await_end(old, 0.2)
        assert not psutil.pid_exists(old.running.pid)


def was_signalled(pid: int) -> bool:
    """Stopped; or killed, where nobody has waited for what it told."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_all_that_a_driver_told_before_it_was_paused_is_heard(tmp_path: Path) -> None:
    """The thread that hears it is held up from the beginning of a batch until the signal has come."""
    begun = threading.Event()

    def hold_up(message: Message | None) -> None:
        if message is not None and message.step == "WRITE" and message.batch == 2 and not begun.is_set():
            pid = driver.pid
            begun.set()
            eventually(lambda: was_signalled(pid), bool, "the signal")

    with supervised(tmp_path, before=hold_up) as driver:
        assert begun.wait(60)
        driver.pause()
        driver.kill()  # what it told is heard to its end then, whoever is late
        when_paused, to_its_end = driver.struck
    assert when_paused == to_its_end


@pytest.mark.parametrize("pause", ["pause", "pause_python"])
def test_who_is_paused_wakes_and_ends_when_the_supervisor_is_killed(tmp_path: Path, pause: str) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom tests.verify.running.supervised import IN_THE_FIRST, supervised\n"
        "with supervised(Path(sys.argv[1]), engine=IN_THE_FIRST) as driver:\n"
        f"    assert driver.await_batches(1)\n    driver.{pause}()\n    print('paused', flush=True)\n    time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    )
    assert parent.stdout is not None
    with parent:
        assert parent.stdout.readline() == "paused\n"
        left = processes_of(tmp_path / "plan.toml")
        assert left
        os.kill(parent.pid, signal.SIGKILL)
    psutil.wait_procs(left, timeout=60)
    assert not processes_of(tmp_path / "plan.toml")


def test_one_that_is_asked_to_end_is_followed_by_another_and_nothing_is_repeated(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        for generation in (2, 3):
            assert driver.await_batches(2)
            driver.end_in_order()
            assert driver.await_batches(1)
            assert driver.generation == generation
        assert driver.strikes == []
        assert driver.stop() == ""
        notes = [each.name for each in driver._timeline.happenings() if each.lane is Lane.NOTE]
    numbers = [number for number, _ in output(tmp_path)]
    assert numbers == list(range(len(numbers)))
    assert notes == [], "an end that was asked for is no failure"


def test_one_that_is_asked_to_end_and_does_not_is_told(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        driver.pause()
        with pytest.raises(VerificationError, match=r"the driver did not end in order within 0 s"):
            driver.end_in_order(0.2)
        life = driver._alive(60)
        life.asked_to_end = False
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(driver.end_in_order)
            eventually(lambda: life.asked_to_end, bool, "the order to end")
            os.killpg(life.running.pid, signal.SIGKILL)
            with pytest.raises(VerificationError, match=r"driver 1 was to end in order, and did not"):
                asked.result(60)


def test_it_stays_down_as_long_as_it_shall(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        with driver.down():
            before = output(tmp_path)
            assert not driver.await_batches(1, 0.5)
            assert output(tmp_path) == before
        assert driver.await_batches(1)


def notes_of(driver: DriverProcess) -> list[str]:
    return [each.name for each in driver._timeline.happenings() if each.lane is Lane.NOTE]


def jvm_of(driver: DriverProcess) -> int:
    jvm = driver._alive(60).running.jvm
    assert jvm is not None
    return jvm


def test_the_jvm_is_the_process_of_the_group_that_is_called_java(tmp_path: Path) -> None:
    with supervised(tmp_path, engine=IN_TWO) as driver:
        assert driver.await_batches(1)
        (child,) = psutil.Process(driver.pid).children()
        assert jvm_of(driver) == child.pid


def test_a_driver_whose_jvm_is_killed_ends_by_itself_and_is_followed(tmp_path: Path) -> None:
    with supervised(tmp_path, engine=IN_TWO) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        (standby,) = driver._standbys
        old = driver.kill_jvm()
        assert old is not None
        assert driver.await_end(old)
        assert old.failure is not None
        assert old.failure.error == "the JVM has died"
        assert driver.await_batches(1)
        assert (driver.generation, driver._current) == (2, standby)
        assert driver._await(lambda: bool(notes_of(driver)), 60)
        assert notes_of(driver) == ["driver 1 ended with QUERY_FAILED: the JVM has died"]
        assert (len(driver.strikes), len(driver.struck), driver.outages) == (1, 1, []), "the time counts from the kill"
        assert driver.stop() == ""


def test_the_end_of_a_driver_without_a_jvm_is_no_outage_of_its_own_whatever_it_has_still_committed(
    tmp_path: Path,
) -> None:
    with supervised(tmp_path, engine=IN_TWO, standbys=0) as driver:
        assert driver.await_batches(1)
        python = driver.pid
        os.kill(python, signal.SIGSTOP)  # it does not find out before it has told of one more batch
        old = driver.kill_jvm()
        assert old is not None
        driver._heard(old, Message(Told.COMMITTED, batch=old.committed + 1))
        os.kill(python, signal.SIGCONT)
        assert driver._await(lambda: old.ended, 60)
        assert (driver.outages, driver._commits_at_end) == ([], driver.commits)


def test_one_that_does_not_miss_its_jvm_is_killed(tmp_path: Path) -> None:
    with supervised(tmp_path, engine=IN_TWO) as driver:
        assert driver.await_batches(1)
        python = driver.pid
        os.kill(python, signal.SIGSTOP)
        old = driver.kill_jvm()
        assert old is not None
        assert not driver.await_end(old, 0.2)
        assert not psutil.pid_exists(python)
        assert driver.await_batches(1)


def test_a_jvm_whose_driver_is_killed_alone_is_beside_the_one_that_takes_over(tmp_path: Path) -> None:
    with supervised(tmp_path, engine=IN_TWO) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        (standby,) = driver._standbys
        python, jvm = driver.pid, psutil.Process(jvm_of(driver))
        assert processes.freeze(jvm.pid)  # so that it does not find out before we look
        old = driver.kill_python()
        assert old is not None
        assert not old.running.is_running
        assert driver.replace(old) is old
        assert driver.await_batches(1)
        assert driver._current is standby
        assert processes.is_there(jvm.pid)
        assert not old.ended
        assert python not in {each.running.pid for each in driver._standbys}
        jvm.resume()
        assert driver.await_end(old), "its input has ended"
        assert not processes.is_there(jvm.pid)
        assert (len(driver.strikes), len(driver.struck), driver.outages, notes_of(driver)) == (1, 1, [], [])
        assert driver.stop() == ""


def test_another_that_has_taken_over_already_is_not_replaced_with_the_one_before(tmp_path: Path) -> None:
    """A JVM that ends at once: the supervisor has found out before the fault goes on."""
    with supervised(tmp_path, engine=IN_TWO) as driver:
        assert driver.await_batches(1)
        old = driver.kill_python()
        assert old is not None
        assert driver._await(lambda: driver.generation == 2, 60)
        second = driver._current
        driver.replace(old)
        assert driver._current is second
        assert driver.await_end(old)
        assert driver.await_batches(1)
        assert driver.generation == 2


def test_a_jvm_is_paused_while_its_driver_is_not_and_wakes_beside_another(tmp_path: Path) -> None:
    with supervised(tmp_path, engine=IN_TWO) as driver:
        assert driver.await_batches(1)
        paused = driver.pause_jvm()
        assert paused is not None
        old, jvm = paused
        assert psutil.Process(jvm).status() == psutil.STATUS_STOPPED
        assert psutil.Process(old.running.pid).status() != psutil.STATUS_STOPPED
        assert (len(driver.pauses), len(driver.struck), driver.strikes) == (1, 1, [])
        driver.replace(old)
        before = old.batches
        os.kill(jvm, signal.SIGCONT)
        assert driver._await(lambda: old.batches > before, 60), "it goes on, and has no defence"
        assert not driver.await_end(old, 0.2)


def test_a_python_process_is_paused_while_its_jvm_is_not_and_wakes_beside_another(tmp_path: Path) -> None:
    with supervised(tmp_path, engine=IN_THE_FIRST) as driver:
        assert driver.await_batches(1)
        old = driver.pause_python()
        assert old is not None
        jvm = old.running.jvm
        assert jvm is not None
        assert psutil.Process(old.running.pid).status() == psutil.STATUS_STOPPED
        assert psutil.Process(jvm).status() != psutil.STATUS_STOPPED
        assert (len(driver.pauses), len(driver.struck), driver.strikes) == (1, 1, [])
        driver.replace(old)
        before = old.batches
        old.running.resume()
        assert driver._await(lambda: old.batches > before, 60), "it goes on, and has no defence"
        assert not driver.await_end(old, 0.2)


def test_a_standby_that_is_killed_is_told_as_none_that_ended_by_itself(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        (dead,) = driver._standbys
        assert driver.kill_standby() is True
        assert dead.ended
        assert driver._await(lambda: not driver.lacking_standbys, 60)
        assert dead not in driver._standbys
        assert (notes_of(driver), driver.generation) == ([], 1)


def test_one_that_has_just_ended_by_itself_is_down_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault may want it down in the moment before the next one is started; then there is none to wait for."""
    monkeypatch.setattr(driver_module, "_backoff_s", lambda times: 3600.0)
    monkeypatch.setattr(driver_module, "_TAKE_OVER_S", 1.0)
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1, 60)
        end_by_itself(driver)
        for block in (driver.down, driver.resting):
            with block():
                assert driver.generation == 1
        assert driver.strikes == []


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

        monkeypatch.setattr(driver_module, "_backoff_s", comes_meanwhile)
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
        driver._supervisor.join(60)
        assert not driver._supervisor.is_alive()
        assert [path.name for path in tmp_path.glob("log-*")] == ["log-1"]


def test_it_rests_and_another_goes_on_without_a_recovery_to_be_measured(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        with driver.resting():
            before = output(tmp_path)
            assert not driver.await_batches(1, 0.5)
            assert output(tmp_path) == before
        assert driver.await_batches(1)
        assert driver.generation == 2
        assert (driver.strikes, driver.outages, notes_of(driver)) == ([], [], [])
        assert driver.stop() == ""
    numbers = [number for number, _ in output(tmp_path)]
    assert numbers == list(range(len(numbers)))


def test_one_that_does_not_end_when_it_shall_rest_is_killed(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        driver.pause()
        with driver.resting(0.2):
            assert len(driver.strikes) == 1
        assert driver.await_batches(1)


def test_nobody_misses_a_zombie_that_ends_while_none_shall_run(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        old = driver.replace()
        assert driver._await(lambda: driver._current is not None and driver._current.batches > 0, 60)
        with driver.resting():
            os.killpg(old.running.pid, signal.SIGKILL)
            assert driver._await(lambda: old.ended, 60)
        assert driver.await_batches(1)
        assert driver.outages == []


def test_one_that_is_told_to_hold_waits_until_it_may_go_on(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        life = driver.hold("WRITE")
        assert life is not None
        assert driver.under_way.is_held
        before = output(tmp_path)
        assert not driver.await_batches(1, 0.5)
        assert output(tmp_path) == before
        driver.go(life)
        assert driver.await_batches(1)
        assert driver.hold("NEVER", 0.2) is None
        assert driver.await_batches(1)
        assert driver.generation == 1


def test_batches_that_nobody_had_heard_of_yet_do_not_stand_for_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three and more are committed before the order; what the engine told of them is heard behind it."""
    deaf, ordered = threading.Event(), threading.Event()

    def hears_late(_: Message | None) -> None:
        if deaf.is_set():
            ordered.wait(300)

    def orders(self: EngineProcess, order: Order) -> None:
        order_it(self, order)
        if order.do is Do.HOLD:
            ordered.set()

    order_it = EngineProcess.order
    monkeypatch.setattr(EngineProcess, "order", orders)
    with supervised(tmp_path, before=hears_late, standbys=0) as driver:
        assert driver.await_batches(1)
        deaf.set()
        commits = tmp_path / "checkpoint" / "commits"
        unheard = driver.commits + driver_module._PASSED_BATCHES + 1
        eventually(lambda: len(list(commits.iterdir())), lambda there: there > unheard, "batches that nobody hears of")
        life = driver.hold("COMMIT")
        assert life is not None
        driver.go(life)


def test_one_that_was_let_go_is_waited_for_anew(tmp_path: Path) -> None:
    """Faults in a row: the second one comes before the driver has told the next step."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        life = driver.hold("WRITE")
        assert life is not None
        assert life.held is not None
        first = life.held.batch
        driver.go(life)
        assert not driver.under_way.is_held
        assert driver.hold("WRITE") is life
        assert life.held.batch > first
        driver.go(life)
        assert driver.kill_at("COMMIT")
        (struck,) = driver.struck
    assert (struck.step, struck.is_held) == ("COMMIT", True)


def effects_of(driver: DriverProcess, batch: int) -> list[Effect]:
    return [each for each in driver.effects if each.batch == batch]


def test_a_batch_whose_driver_is_killed_before_its_commit_was_not_committed(tmp_path: Path) -> None:
    """So it is what the successor makes visible first, and that ends the recovery."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        assert driver.kill_at("COMMIT")
        (met,), (strike,) = driver.struck, driver.strikes
        batch = met.batch
        assert driver._await(lambda: batch in driver.committed_batches, 60)
        (effect,) = effects_of(driver, batch)
        (recovery,) = recoveries([Strike("kill", strike)], driver.effects, 0.0, [each.at for each in driver.effects])
    assert effect.generation == 2
    assert recovery.seconds == effect.at - strike


def test_a_commit_begins_when_the_driver_is_let_go(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        life = driver.hold("COMMIT")
        assert life is not None
        assert life.held is not None
        held = life.held
        assert effects_of(driver, held.batch) == []
        driver.go(life)
        assert driver._await(lambda: held.batch in driver.committed_batches, 60)
        (effect,) = effects_of(driver, held.batch)
        assert effect.at > held.at


def test_a_progress_conflict_is_followed_by_a_resume(tmp_path: Path) -> None:
    with supervised(tmp_path, fails_in_mode="refuse", code="PROGRESS_CONFLICT") as driver:
        assert driver.await_batches(1)
        assert driver.generation == 2
    modes = {each.read_text() for each in (tmp_path / "checkpoint").glob("mode-*")}
    assert modes == {"refuse", "resume"}


def test_a_driver_that_fails_again_and_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "MOST_FAILURES", 3)
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


def test_batches_that_are_numbered_anew_are_awaited_as_well(tmp_path: Path) -> None:
    """The checkpoint was lost, and the pipeline resumes: it begins at batch 0 again, which was committed once before."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        with driver.down():
            assert 0 in driver.committed_batches
            life = driver._current
            assert life is not None

            def commits_meanwhile(condition: Callable[[], bool], *_: object) -> bool:
                driver._heard(life, Message(Told.COMMITTED, batch=0))
                return condition()

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(driver, "_await", commits_meanwhile)
                assert driver.await_batches(1)
                assert driver.await_failure_or_batch()
                over: list[bool] = []
                patch.setattr(driver, "_await", lambda *given: over.append(commits_meanwhile(*given)))
                assert not driver.await_failure(("anything",), 1)
                assert over == [True]


def test_output_is_awaited_of_the_batch_that_came_last(tmp_path: Path) -> None:
    """Not of the highest number: a resume begins at batch 0 again."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        with driver.down():
            life = driver._current
            assert life is not None
            there: list[bool] = []
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(driver, "_await", lambda condition, *_: there.append(condition()))
                driver.await_output(1)
                driver._heard(life, Message(Told.COMMITTED, batch=9, records=0))
                driver.await_output(1)
                driver._heard(life, Message(Told.COMMITTED, batch=0, records=3))
                driver.await_output(1)
                assert driver.outputs == {0: 3}, "what the old number 9 wrote is of no use to anybody"
    assert there == [True, False, True], "an engine that says nothing, an empty batch, one with output"


def test_a_failure_is_awaited_by_the_words_of_its_error(tmp_path: Path) -> None:
    """Batches that come in spite of what was to make it fail end the waiting."""
    with supervised(tmp_path, fails_in_mode="again", code="INPUT") as driver:
        assert driver.await_batches(1)
        before = len(driver.committed_batches)
        assert not driver.await_failure(("script says",), 2, 60)
        assert len(driver.committed_batches) >= before + 2
        driver._mode, failed = "again", len(driver._failed)
        driver.kill()  # the next one may have failed before anybody can wait for that
        assert driver._await(lambda: len(driver._failed) > failed, 60)
        assert "script says" in driver._failed[failed].error


@pytest.mark.parametrize("judged", [False, True])
def test_a_control_that_hangs_is_ended_and_what_is_judged_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, judged: bool
) -> None:
    monkeypatch.setattr(limits, "_HANGS_S", 0.2)
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        monkeypatch.setattr(driver, "engine", replace(driver.engine, judged=judged))
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
        notes = [each.name for each in driver._timeline.happenings() if each.lane is Lane.NOTE]
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
        notes = [each.name for each in driver._timeline.happenings() if each.lane is Lane.NOTE]
    assert notes == ["the standby ended by itself"] * 3


def test_the_pause_before_the_next_one_has_an_end() -> None:
    assert driver_module._backoff_s(1) < driver_module._backoff_s(2)
    assert driver_module._backoff_s(10_000) == driver_module._MOST_BACKOFF_S


def test_such_a_failure_after_a_batch_may_come_of_a_fault_and_is_met_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "MOST_FAILURES", 2)
    with supervised(tmp_path, fails_in_mode="again", code="CONFIGURATION", lasting="yes") as driver:
        assert driver.await_batches(1)
        driver._mode = "again"
        driver.kill()
        assert driver.await_batches(2)
        assert not driver.is_refused
        assert driver.generation == 3


def test_two_drivers_that_both_end_leave_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with supervised(tmp_path, fails_in_mode="second", code="QUERY_FAILED") as driver:
        assert driver.await_batches(2)
        # Nobody follows it for as long as the test looks.
        monkeypatch.setattr(driver, "_learn", lambda life: driver._await(lambda: driver._closing, 600))
        driver._mode = "second"
        old = driver.replace()
        assert driver._await(lambda: len(driver._failed) == 1, 60)
        assert driver.outages == [], "the first one lives"
        second = driver._current
        assert second is not None
        assert driver._await(lambda: second.ended, 60)
        os.killpg(old.running.pid, signal.SIGKILL)
        assert driver._await(lambda: old.ended, 60)
        assert len(driver.outages) == 1


def test_a_driver_that_only_starts_does_not_end_an_outage(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(2)
        driver._next_hold = "CLAIM"
        old = driver.replace()
        os.killpg(old.running.pid, signal.SIGKILL)
        assert driver._await(lambda: old.ended, 60)
        assert len(driver.outages) == 1


def test_a_zombie_that_is_killed_for_it_does_not_end_has_not_ended_by_itself(tmp_path: Path) -> None:
    """Its successor has no batch yet, so it was the last one with output."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(2)
        driver._next_hold = "CLAIM"
        old = driver.replace()
        assert not driver.await_end(old, 0.2)
        assert old.ended
        assert driver.outages == []


def test_an_end_by_itself_is_an_outage_and_a_kill_is_none(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        driver.kill()
        assert driver.await_batches(1)
        assert driver.outages == []
        os.killpg(driver.pid, signal.SIGKILL)
        assert driver._await(lambda: len(driver.outages) == 1, 60)
        assert driver.await_batches(1)
        driver.end_in_order()
        assert len(driver.outages) == 1


def test_a_failure_in_a_recovery_is_no_outage_of_its_own(tmp_path: Path) -> None:
    """Else the time would count from the failure, and not from the end that kept new output away."""
    with supervised(tmp_path, fails_in_mode="again", code="QUERY_FAILED") as driver:
        assert driver.await_batches(1)
        driver._mode = "again"
        driver.kill()
        assert driver.await_batches(1)
        assert (driver.generation, len(driver._failed), driver.outages) == (3, 1, [])


def test_one_that_ends_without_a_word_is_not_started_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "MOST_FAILURES", 3)
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
        life = driver._alive(60)
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
        running = driver._alive(60).running
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


def left_by_its_leader(
    directory: Path, command: str, heard: list[Message | None]
) -> tuple[EngineProcess, psutil.Process]:
    """What a shell starts behind it before it ends; that has the shell's input and output."""
    shell = ("/bin/sh", "-c", f"exec 3<&0; {command} <&3 & echo $! >&2")
    process = EngineProcess(shell, directory / "plan", directory / "scratch", directory / "log", heard.append)
    eventually(lambda: process.is_running, lambda runs: not runs, "the end of the leader")
    return process, psutil.Process(int(process.log.read_text()))


def test_a_driver_whose_leader_has_ended_is_paused_and_wakes(tmp_path: Path) -> None:
    """A script that has started the engine behind it: that lives, whoever leads its group."""
    behind_a_shell = ("/bin/sh", "-c", 'exec 3<&0; "$@" <&3 &', "sh", *ENGINE.command)
    with supervised(tmp_path, engine=replace(ENGINE, command=behind_a_shell)) as driver:
        assert driver.await_batches(1)
        life = driver._alive(60)
        eventually(lambda: life.running.is_running, lambda runs: not runs, "the end of the leader")
        assert driver.pause() is life
        assert len(driver.pauses) == 1
        life.running.resume()
        assert driver.await_batches(1)


def test_a_group_whose_leader_has_ended_is_killed(tmp_path: Path) -> None:
    heard: list[Message | None] = []
    process, left = left_by_its_leader(tmp_path, "sleep 600", heard)
    assert os.getpgid(left.pid) == process.pid
    process.kill()
    eventually(lambda: was_signalled(left.pid), bool, "its end")
    assert heard == [None]
    assert not (tmp_path / "scratch").exists()


def test_what_stays_beside_its_group_hears_that_nobody_watches_it_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_END_TIMEOUT_S", 0.2)
    heard: list[Message | None] = []
    process, left = left_by_its_leader(tmp_path, "setsid cat", heard)
    eventually(lambda: os.getpgid(left.pid), lambda group: group == left.pid, "a group of its own")
    with pytest.raises(VerificationError, match="are still there"):
        process.kill()
    assert not (tmp_path / "scratch").exists()
    eventually(
        lambda: heard, lambda found: found == [None], "the end of its output, which comes with that of its input"
    )


def test_lives_and_batches_are_on_the_timeline(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(2)
        driver.kill()
        assert driver.await_batches(1)
        assert driver.stop() == ""
        happened = driver._timeline.happenings()
    assert [each.name for each in happened if each.lane is Lane.DRIVER] == ["driver 1", "driver 2"]
    batches = [each for each in happened if each.lane is Lane.BATCH]
    assert {each.name for each in batches} == {f"batch {number}" for number in driver.committed_batches}
    assert all(each.began_s <= each.ended_s for each in batches)
