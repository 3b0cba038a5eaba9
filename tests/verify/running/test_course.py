"""What is counted of a driver's lives: when batches become visible, and when none is left that brings any."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from tests.verify.running.supervised import (
    IN_TWO,
    notes_of,
    output,
    supervised,
)

from onceflow.verify.engines.lines import Message, Told
from onceflow.verify.result import Lane
from onceflow.verify.running.course import Effect
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.new_output import Output, Sights
from onceflow.verify.running.recovery import Strike, recoveries


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
        assert (driver.course.outages, driver.course._commits_at_end) == ([], driver.course.commits)
        assert [each.generation for each in driver.course.strikes] == [1]
        assert driver.course.commits_told[-1] == Effect(1, old.committed, driver.course.commits_told[-1].at)


def test_it_rests_and_another_goes_on_without_a_recovery_to_be_measured(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        with driver.resting():
            before = output(tmp_path)
            assert not driver.await_batches(1, 0.5)
            assert output(tmp_path) == before
        assert driver.await_batches(1)
        assert driver.generation == 2
        assert (driver.course.strikes, driver.course.outages, notes_of(driver)) == ([], [], [])
        assert driver.stop() == ""
    numbers = [number for number, _ in output(tmp_path)]
    assert numbers == list(range(len(numbers)))


def test_nobody_misses_a_zombie_that_ends_while_none_shall_run(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        old = driver.replace()
        assert driver._await(lambda: driver._current is not None and driver._current.batches > 0, 60)
        with driver.resting():
            os.killpg(old.running.pid, signal.SIGKILL)
            assert driver._await(lambda: old.ended, 60)
        assert driver.await_batches(1)
        assert driver.course.outages == []


def effects_of(driver: DriverProcess, batch: int) -> list[Effect]:
    return [each for each in driver.course.effects if each.batch == batch]


def test_a_batch_whose_driver_is_killed_before_its_commit_was_not_committed(tmp_path: Path) -> None:
    """So it is what the successor makes visible first, and that ends the recovery."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        assert driver.kill_at("COMMIT")
        (met,), (kill,) = driver.course.struck, driver.course.strikes
        batch = met.batch
        assert driver._await(lambda: batch in driver.course.committed_batches, 60)
        (effect,) = effects_of(driver, batch)
        seen = [(each.at, each.batch) for each in driver.course.effects]
        sights = Sights(np.array([at for at, _ in seen]), np.array([number for _, number in seen]))
        strikes = [Strike("kill", kill.at, generation=kill.generation)]
        (recovery,) = recoveries(strikes, Output.of(driver.course, 0.0, sights))
        first_steps = dict(driver.course.first_steps)
    assert (kill.generation, effect.generation) == (1, 2)
    assert first_steps[1] < kill.at < first_steps[2] <= effect.at
    assert recovery.seconds == effect.at - kill.at


def test_a_commit_begins_when_the_driver_is_let_go(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        life = driver.hold("COMMIT")
        assert life is not None
        assert life.held is not None
        held = life.held
        assert effects_of(driver, held.batch) == []
        driver.go(life)
        assert driver._await(lambda: held.batch in driver.course.committed_batches, 60)
        (effect,) = effects_of(driver, held.batch)
        assert effect.at > held.at


def test_two_drivers_that_both_end_leave_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with supervised(tmp_path, fails_in_mode="second", code="QUERY_FAILED") as driver:
        assert driver.await_batches(2)
        # Nobody follows it for as long as the test looks.
        monkeypatch.setattr(driver, "_learn", lambda life: driver._await(lambda: driver._closing, 600))
        driver._mode = "second"
        old = driver.replace()
        assert driver._await(lambda: len(driver.course.failed) == 1, 60)
        assert driver.course.outages == [], "the first one lives"
        second = driver._current
        assert second is not None
        assert driver._await(lambda: second.ended, 60)
        os.killpg(old.running.pid, signal.SIGKILL)
        assert driver._await(lambda: old.ended, 60)
        assert len(driver.course.outages) == 1


def test_a_driver_that_only_starts_does_not_end_an_outage(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(2)
        driver._next_hold = "CLAIM"
        old = driver.replace()
        os.killpg(old.running.pid, signal.SIGKILL)
        assert driver._await(lambda: old.ended, 60)
        assert len(driver.course.outages) == 1


def test_a_zombie_that_is_killed_for_it_does_not_end_has_not_ended_by_itself(tmp_path: Path) -> None:
    """Its successor has no batch yet, so it was the last one with output."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(2)
        driver._next_hold = "CLAIM"
        old = driver.replace()
        assert not driver.await_end(old, 0.2)
        assert old.ended
        assert driver.course.outages == []


def test_an_end_by_itself_is_an_outage_and_a_kill_is_none(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        driver.kill()
        assert driver.await_batches(1)
        assert driver.course.outages == []
        os.killpg(driver.pid, signal.SIGKILL)
        assert driver._await(lambda: len(driver.course.outages) == 1, 60)
        assert driver.await_batches(1)
        driver.end_in_order()
        assert len(driver.course.outages) == 1


def test_a_failure_in_a_recovery_is_no_outage_of_its_own(tmp_path: Path) -> None:
    """Else the time would count from the failure, and not from the end that kept new output away."""
    with supervised(tmp_path, fails_in_mode="again", code="QUERY_FAILED") as driver:
        assert driver.await_batches(1)
        driver._mode = "again"
        driver.kill()
        assert driver.await_batches(1)
        assert (driver.generation, len(driver.course.failed), driver.course.outages) == (3, 1, [])


def test_lives_and_batches_are_on_the_timeline(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(2)
        driver.kill()
        assert driver.await_batches(1)
        assert driver.stop() == ""
        happened = driver._timeline.happenings()
    assert [each.name for each in happened if each.lane is Lane.DRIVER] == ["driver 1", "driver 2"]
    batches = [each for each in happened if each.lane is Lane.BATCH]
    assert {each.name for each in batches} == {f"batch {number}" for number in driver.course.committed_batches}
    assert all(each.began_s <= each.ended_s for each in batches)
