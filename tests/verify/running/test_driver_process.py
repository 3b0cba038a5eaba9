"""What faults do to a supervised driver: it is struck, held, ended and replaced when it should be, and nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
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
    IN_THE_FIRST,
    IN_TWO,
    await_standby,
    end_by_itself,
    ends_while_a_step_is_awaited,
    jvm_of,
    notes_of,
    output,
    repeated,
    supervised,
    world_of,
    writers,
)

from onceflow.errors import PipelineStuck, VerificationError
from onceflow.verify.cluster import processes
from onceflow.verify.engines.lines import Do, Message, Order, Told
from onceflow.verify.matrix.bounces import BounceClient
from onceflow.verify.matrix.cells import How
from onceflow.verify.running import driver as driver_module
from onceflow.verify.running import supervisor as supervisor_module
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.encounters import NOTHING
from onceflow.verify.running.life import Life
from onceflow.verify.running.process import EngineProcess


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


def test_a_clean_bounce_comes_into_a_batch_and_lets_it_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounces come by progress, so most likely between two batches, where one shows nothing."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        monkeypatch.setattr(driver.course, "engine", replace(driver.engine, steps=("WRITE", "COMMIT")))
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
        driver.course.engine = replace(driver.engine, steps=("NEVER",))
        driver.course.doing = lambda life: NOTHING  # type: ignore[method-assign]  # it is between two batches
        assert driver.await_batches(1)
        world = world_of(driver, tmp_path)
        found = injected(world, BounceClient(How.CLEAN, 0))
    assert not found.met
    assert found.found == "its moment did not come: NEVER did not come, asked to stop between two batches"


@pytest.mark.parametrize("step", ["WRITE", "COMMIT"])
def test_it_is_killed_right_before_a_step(tmp_path: Path, step: str) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(2)
        assert driver.kill_at(step)
        (met,) = driver.course.struck
        assert (met.step, met.is_held) == (step, True)
        assert met.batch not in driver.course.committed_batches
        assert driver.await_batches(1)
        assert met.batch in driver.course.committed_batches


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
        assert (driver.course.strikes, driver.course.struck, len(driver.course.outages)) == ([], [], 1)
        assert driver.await_batches(1)
        assert notes_of(driver) == ["driver 1 ended with PROGRESS_CONFLICT: as the test says"]
        assert (tmp_path / "checkpoint" / f"mode-{driver.pid}").read_text() == "resume"
        assert driver.conflicts == 1, "no fault explains it"


def test_a_conflict_that_was_told_before_a_fault_has_taken_anything_is_not_explained_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault comes before the supervisor has learned of the end."""
    learn = DriverProcess._learn

    def learns_late(driver: DriverProcess, life: Life) -> None:
        driver.lacks_committed = True
        learn(driver, life)

    monkeypatch.setattr(DriverProcess, "_learn", learns_late)
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        ends_while_a_step_is_awaited(driver, monkeypatch, "PROGRESS_CONFLICT")
        assert driver.kill_at("WRITE") is None
        assert driver.await_batches(1)
        assert driver.conflicts == 1


def test_a_fault_explains_conflicts_until_a_driver_has_gone_on(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        life, conflict = driver._alive(), Message(Told.FAILED, code="PROGRESS_CONFLICT")
        with driver._changed:
            driver.lacks_committed = True
            driver._note(life, Message(Told.COMMITTED, batch=life.committed, written=False))
            driver._note(life, conflict)
            assert (driver.lacks_committed, driver.conflicts) == (True, 0)
            driver._note(life, Message(Told.COMMITTED, batch=life.committed + 1))
            driver._note(life, conflict)
            assert (driver.lacks_committed, driver.conflicts) == (False, 1)


def test_one_that_does_nothing_while_its_step_is_awaited_is_stuck_and_not_rescued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        monkeypatch.setattr(DriverProcess, "take_over_s", 0.5)
        pid = driver.pid
        os.killpg(pid, signal.SIGSTOP)
        driver._alive().running.hear()
        with pytest.raises(PipelineStuck, match="no batch for 1 s, and WRITE did not come"):
            driver.kill_at("WRITE", 1.0)
        assert (driver.pid, driver.course.strikes) == (pid, [])
        os.killpg(pid, signal.SIGCONT)


@pytest.mark.parametrize("strike", ["kill_python", "pause_python", "pause"])
def test_one_that_has_just_ended_by_itself_is_not_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strike: str
) -> None:
    """In the moment between the look who runs and the signal. Its failure counts, and nothing is thrown away for it."""
    monkeypatch.setattr(supervisor_module, "_backoff_s", lambda times: 0.0)
    with supervised(tmp_path, engine=IN_THE_FIRST) as driver:
        assert driver.await_batches(1)
        alive = driver._alive

        def ends() -> Life:
            life = alive()
            monkeypatch.setattr(driver, "_alive", alive)
            monkeypatch.setattr(type(life.running), "jvm", life.running.jvm)  # as it was seen before
            end_by_itself(driver)
            return life

        monkeypatch.setattr(driver, "_alive", ends)
        assert getattr(driver, strike)() is None
        assert (driver.course.strikes, driver.course.pauses, driver.course.struck) == ([], [], [])
        assert driver.await_batches(1)
        assert notes_of(driver) == ["driver 1 ended with ENDED: its process ended by itself, without a word"]


def test_the_successor_is_killed_in_its_recovery(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        assert driver.kill_in_recovery("CLAIM")
        # Not merely one more batch: the first one's last words may be heard after its end.
        assert driver._await(lambda: len(writers(tmp_path)) == 2, 60)
        assert driver.generation == 3
        assert len(driver.course.strikes) == 2
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


def test_one_that_is_asked_to_end_is_followed_by_another_and_nothing_is_repeated(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        for generation in (2, 3):
            assert driver.await_batches(2)
            driver.end_in_order()
            assert driver.await_batches(1)
            assert driver.generation == generation
        assert driver.course.strikes == []
        assert driver.stop() == ""
        notes = notes_of(driver)
    numbers = [number for number, _ in output(tmp_path)]
    assert numbers == list(range(len(numbers)))
    assert notes == [], "an end that was asked for is no failure"


def test_one_that_is_asked_to_end_and_does_not_is_told(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        driver.pause()
        with pytest.raises(VerificationError, match=r"the driver did not end in order within 0 s"):
            driver.end_in_order(0.2)
        life = driver._alive()
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
        assert (len(driver.course.strikes), len(driver.course.struck), driver.course.outages) == (1, 1, []), (
            "the time counts from the kill"
        )
        assert driver.stop() == ""


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
        assert (len(driver.course.strikes), len(driver.course.struck), driver.course.outages, notes_of(driver)) == (
            1,
            1,
            [],
            [],
        )
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
        assert (len(driver.course.pauses), len(driver.course.struck), driver.course.strikes) == (1, 1, [])
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
        assert (len(driver.course.pauses), len(driver.course.struck), driver.course.strikes) == (1, 1, [])
        driver.replace(old)
        before = old.batches
        old.running.resume()
        assert driver._await(lambda: old.batches > before, 60), "it goes on, and has no defence"
        assert not driver.await_end(old, 0.2)


def test_one_that_has_just_ended_by_itself_is_down_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault may want it down in the moment before the next one is started; then there is none to wait for."""
    monkeypatch.setattr(supervisor_module, "_backoff_s", lambda times: 3600.0)
    monkeypatch.setattr(DriverProcess, "take_over_s", 1.0)
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1, 60)
        end_by_itself(driver)
        for block in (driver.down, driver.resting):
            with block():
                assert driver.generation == 1
        assert driver.course.strikes == []


def test_one_that_does_not_end_when_it_shall_rest_is_killed(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        driver.pause()
        with driver.resting(0.2):
            assert len(driver.course.strikes) == 1
        assert driver.await_batches(1)


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
        unheard = driver.course.commits + driver_module._PASSED_BATCHES + 1
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
        (struck,) = driver.course.struck
    assert (struck.step, struck.is_held) == ("COMMIT", True)


def test_batches_that_are_numbered_anew_are_awaited_as_well(tmp_path: Path) -> None:
    """The checkpoint was lost, and the pipeline resumes: it begins at batch 0 again, which was committed once before."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        with driver.down():
            assert 0 in driver.course.committed_batches
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
                assert driver.course.outputs == {0: 3}, "what the old number 9 wrote is of no use to anybody"
    assert there == [True, False, True], "an engine that says nothing, an empty batch, one with output"


def test_a_failure_is_awaited_by_the_words_of_its_error(tmp_path: Path) -> None:
    """Batches that come in spite of what was to make it fail end the waiting."""
    with supervised(tmp_path, fails_in_mode="again", code="INPUT") as driver:
        assert driver.await_batches(1)
        before = len(driver.course.committed_batches)
        assert not driver.await_failure(("script says",), 2, 60)
        assert len(driver.course.committed_batches) >= before + 2
        driver._mode, failed = "again", len(driver.course.failed)
        driver.kill()  # the next one may have failed before anybody can wait for that
        assert driver._await(lambda: len(driver.course.failed) > failed, 60)
        assert "script says" in driver.course.failed[failed].error
