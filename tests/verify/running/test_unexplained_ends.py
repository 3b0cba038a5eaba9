"""Each end of a driver of ours is judged, also where no other one is started for it; no process is started here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.verify.running.supervised import ENGINE

from onceflow.errors import QueryFailed
from onceflow.pipeline.limits import END_S, Limits, Signs
from onceflow.pipeline.rehearsal import Stuck
from onceflow.verify.engines import Engine
from onceflow.verify.engines.failing import failure
from onceflow.verify.engines.lines import Message, Told
from onceflow.verify.result import Lane
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.life import Life
from onceflow.verify.running.supervised import SupervisedDriver
from onceflow.verify.running.timeline import Timeline

OURS = replace(ENGINE, is_ours=True)
SILENT = "ENDED: its process ended by itself, without a word"
UNEXPLAINED = "though nothing was done to it that ends it so"
NO_BATCH_S = 1000.0


@dataclass
class Gone:
    """A process that was there."""

    pid: int = 7

    def kill(self) -> None: ...

    def reap(self) -> None: ...


def launched(*given: object, **more: object) -> Any:
    return Gone()


def of(engine: Engine = OURS) -> DriverProcess:
    return DriverProcess(engine, launched, Timeline())


def life(generation: int = 0, **known: Any) -> Life:
    gone: Any = Gone()
    return Life(generation, process=gone, **known)


def ended(driver: DriverProcess, one: Life, code: str) -> None:
    """With an error, or without a word where there is no code."""
    if code:
        driver._heard(one, Message(Told.FAILED, code=code, error="as the test says\nin two lines"))
    driver._heard(one, None)


def a_fault_came(driver: DriverProcess) -> None:
    with driver._timeline.during(Lane.FAULT, "a broker is killed"):
        pass


def said_of(driver: DriverProcess) -> list[str]:
    """Without what stands behind each of them."""
    assert all(each.endswith(f", {UNEXPLAINED}") for each in driver.unexplained)
    return [each.removesuffix(f", {UNEXPLAINED}") for each in driver.unexplained]


# --------------------------------------------------------------------------------------------------------- of a zombie


@pytest.mark.parametrize(
    ("code", "is_ours", "told"),
    [
        ("IndexError", True, ["driver 1 ended with IndexError: as the test says"]),
        ("", True, [f"driver 1 ended with {SILENT}"]),
        ("FENCED", True, []),
        ("IndexError", False, []),
    ],
)
def test_a_zombie_that_does_not_end_as_a_zombie_does_is_a_failure(code: str, *, is_ours: bool, told: list[str]) -> None:
    """The one that has taken over goes on, and the supervisor learns of no other end."""
    driver, old = of(replace(ENGINE, is_ours=is_ours)), life(1)
    driver._replaced.append(old)
    ended(driver, old, code)
    assert driver.await_end(old, 0)
    assert said_of(driver) == told
    assert (driver._failures, driver._mode) == (0, "refuse"), "it means nothing for the next one"


@pytest.mark.parametrize("struck", ["killed", "jvm_killed"])
def test_one_of_which_a_part_was_killed_may_end_as_it_likes(struck: str) -> None:
    driver, old = of(), life(1)
    setattr(old, struck, True)
    driver._replaced.append(old)
    ended(driver, old, "Py4JNetworkError")
    assert driver.await_end(old, 0)
    assert driver.unexplained == []


def test_a_zombie_that_has_to_be_killed_has_not_ended_by_itself() -> None:
    driver, old = of(), life(1)
    driver._replaced.append(old)
    assert not driver.await_end(old, 0)
    driver._heard(old, None)
    driver._judge_zombie(old)
    assert driver.unexplained == []


def test_an_end_that_a_fault_and_the_supervisor_come_upon_is_told_once() -> None:
    """It was to be replaced, and had ended."""
    driver, old = of(), life(1)
    ended(driver, old, "IndexError")
    driver._replaced.append(old)
    driver._closing = True  # so that nothing waits before another one
    driver._learn(old)
    assert driver.await_end(old, 0)
    assert len(driver.unexplained) == 1


def test_whoever_is_replaced_before_he_has_run_is_no_zombie() -> None:
    """A standby that died while it was frozen."""
    driver, frozen = of(), life(0)
    driver._replaced.append(frozen)
    ended(driver, frozen, "")
    assert driver.await_end(frozen, 0)
    assert driver.unexplained == []


# ---------------------------------------------------------------------------------------- where nothing has befallen it


@pytest.mark.parametrize("code", ["FENCED", "QUERY_FAILED", "BROKER_UNREACHABLE"])
@pytest.mark.parametrize("befell", ["nothing", "a fault", "a fault that lasts", "another driver"])
def test_an_error_of_onceflow_s_is_explained_by_a_fault_whenever_that_was(code: str, befell: str) -> None:
    """What one has left behind may come to light much later; before the first one there is nothing."""
    driver, one = of(), life(2)
    driver._closing = True
    if befell == "a fault":
        a_fault_came(driver)
    if befell == "a fault that lasts":
        driver._timeline.begin(Lane.FAULT, "a broker is frozen")
    if befell == "another driver":
        driver._replaced.append(life(1))
    ended(driver, one, code)
    driver._learn(one)
    assert said_of(driver) == ([f"driver 2 ended with {code}: as the test says"] if befell == "nothing" else [])


@pytest.mark.parametrize(
    ("launched", "works", "told"), [("before", False, 0), ("before", True, 1), ("behind", False, 1)]
)
def test_an_error_without_a_name_is_explained_by_a_fault_that_came_while_it_was_only_starting(
    launched: str, *, works: bool, told: int
) -> None:
    driver = of()
    driver._closing = True
    a_fault_came(driver)
    one = life(2, launched_s=0.0 if launched == "before" else driver._timeline.seconds() + 0.001)
    if works:
        one.first_seen[0] = 1.0
    ended(driver, one, "Py4JJavaError")
    driver._learn(one)
    assert len(driver.unexplained) == told


def test_what_is_no_fault_explains_nothing() -> None:
    driver, one = of(), life(1)
    driver._closing = True
    with driver._timeline.during(Lane.BROKER, "broker 1"), driver._timeline.during(Lane.NOTE, "catching up"):
        ended(driver, one, "FENCED")
        driver._learn(one)
    assert len(driver.unexplained) == 1


def test_a_conflict_is_counted_by_itself() -> None:
    driver, one = of(), life(1)
    driver._closing = True
    ended(driver, one, "PROGRESS_CONFLICT")
    driver._learn(one)
    assert (driver.conflicts, driver.unexplained) == (1, [])


# -------------------------------------------------------------------------------------------------------- of a standby


@pytest.mark.parametrize(
    ("code", "is_ours", "told"),
    [
        ("IndexError", True, ["the standby ended with IndexError: as the test says"]),
        ("", True, [f"the standby ended with {SILENT}"]),
        ("BROKER_UNREACHABLE", True, []),
        ("IndexError", False, []),
    ],
)
def test_a_standby_that_ends_by_itself_is_a_failure_where_no_fault_came_upon_it(
    code: str, *, is_ours: bool, told: list[str]
) -> None:
    """Another one is started, and nothing else would show."""
    driver = of(replace(ENGINE, is_ours=is_ours))
    a_fault_came(driver)
    dead = life(launched_s=driver._timeline.seconds() + 0.001)
    driver._standbys.append(dead)
    ended(driver, dead, code)
    driver._put_away_dead_standbys()
    assert (said_of(driver), driver._standbys) == (told, [])


@pytest.mark.parametrize("code", ["BROKER_UNREACHABLE", failure(Stuck("it does not end")).code])
def test_what_is_foreseen_is_no_mistake_of_a_standby_s(code: str) -> None:
    """Another one is started, and who works goes on."""
    driver, dead = of(), life()
    driver._standbys.append(dead)
    ended(driver, dead, code)
    driver._put_away_dead_standbys()
    assert driver.unexplained == []


@pytest.mark.parametrize("befell", ["killed", "asked", "a fault", "a fault that lasts"])
def test_a_standby_upon_which_a_fault_came_may_end_as_it_likes(befell: str) -> None:
    driver = of()
    dead = life(launched_s=driver._timeline.seconds(), killed=befell == "killed")
    dead.asked_to_end = dead.finished = befell == "asked"
    driver._standbys.append(dead)
    if befell == "a fault":
        a_fault_came(driver)
    if befell == "a fault that lasts":
        driver._timeline.begin(Lane.FAULT, "spark's master is killed")
    ended(driver, dead, "")
    driver._put_away_dead_standbys()
    assert driver.unexplained == []


def test_it_is_known_when_one_is_launched() -> None:
    driver = of()
    before = driver._timeline.seconds()
    assert before <= driver._launched().launched_s <= driver._timeline.seconds()


# ------------------------------------------------------------------------------------ where another supervisor leads


@pytest.fixture
def led() -> Iterator[SupervisedDriver]:
    driver = SupervisedDriver(OURS, launched, Timeline())
    driver._leader = life(name="the supervisor")
    yield driver
    driver._door.close()


def runs(driver: SupervisedDriver, **known: Any) -> Life:
    one = life(3, **known)
    driver._reported.append(one)
    driver._current = one
    return one


def misses(driver: SupervisedDriver, one: Life, why: str) -> None:
    assert driver._leader is not None
    driver._heard_leader(driver._leader, Message(Told.LOST, pid=one.running.pid, error=why))


@pytest.mark.parametrize("is_told_first", [True, False])
@pytest.mark.parametrize(
    ("code", "why", "told"),
    [
        ("IndexError", "ended by itself with exit code 1", "IndexError: as the test says"),
        ("QUERY_FAILED", "failed: [QUERY_FAILED] as the test says", "QUERY_FAILED: as the test says"),
        ("", Signs().why_gone(-11), SILENT),
        ("", Signs().why_gone(-40), SILENT),
        ("", Signs().why_gone(3), SILENT),
    ],
)
def test_a_driver_whose_supervisor_goes_on_is_judged_once_all_is_heard_of_it(
    led: SupervisedDriver, code: str, why: str, told: str, *, is_told_first: bool
) -> None:
    """By two ways, whichever is the faster one."""
    one = runs(led)
    if is_told_first:
        misses(led, one, why)
        assert led.unexplained == []
    ended(led, one, code)
    assert is_told_first or led.unexplained == []
    if not is_told_first:
        misses(led, one, why)
    assert said_of(led) == [f"driver 3 ended with {told}"]
    misses(led, one, why)
    assert len(led.unexplained) == 1


def why_killed_by_its_supervisor() -> list[str]:
    now, limits = Signs().made, Limits(stall_s=20)
    late = [
        Signs(alive=now - NO_BATCH_S),
        Signs(ended=now - END_S - 1),
        Signs(started=now - NO_BATCH_S, progress=now - NO_BATCH_S),
        Signs(told=now - NO_BATCH_S),
    ]
    for signs in late:
        signs.late = signs.overdue(limits, now)
    assert all(signs.late for signs in late)
    return [signs.why_gone(-9) for signs in late]


@pytest.mark.parametrize("why", why_killed_by_its_supervisor())
def test_whom_his_supervisor_has_killed_needs_no_last_word(led: SupervisedDriver, why: str) -> None:
    one = runs(led)
    ended(led, one, "")
    misses(led, one, why)
    assert led.unexplained == []


def test_whom_his_supervisor_has_killed_behind_his_own_error_is_judged_by_that(led: SupervisedDriver) -> None:
    one, signs = runs(led), Signs(error=QueryFailed("as the test says"))
    ended(led, one, "QUERY_FAILED")
    misses(led, one, signs.why_gone(-9))
    assert said_of(led) == ["driver 3 ended with QUERY_FAILED: as the test says"]


@pytest.mark.parametrize("struck", ["killed", "jvm_killed", "stopped"])
def test_one_that_a_fault_has_struck_needs_no_last_word_either(led: SupervisedDriver, struck: str) -> None:
    one = runs(led, **{struck: True})
    ended(led, one, "")
    misses(led, one, "was killed by SIGKILL")
    assert led.unexplained == []


def test_one_that_was_stopped_is_no_zombie_for_his_supervisor_kills_him(led: SupervisedDriver) -> None:
    one = runs(led, stopped=True)
    ended(led, one, "")
    assert led.await_end(one, 0)
    assert led.unexplained == []


def test_an_error_of_onceflow_s_behind_a_fault_is_explained_there_too(led: SupervisedDriver) -> None:
    a_fault_came(led)
    one = runs(led)
    ended(led, one, "BROKER_UNREACHABLE")
    misses(led, one, "failed: [BROKER_UNREACHABLE] as the test says")
    assert led.unexplained == []


def test_whoever_ends_with_his_supervisor_is_not_judged(led: SupervisedDriver) -> None:
    """That one is."""
    ended(led, runs(led), "")
    assert led._leader is not None
    led._heard_leader(led._leader, None)
    assert led.unexplained == []


def test_a_supervisor_is_judged_as_before(led: SupervisedDriver) -> None:
    assert led._leader is not None
    a_fault_came(led)
    assert not led._is_explained(led._leader, Message(Told.FAILED, code="FENCED"))
    assert led._is_explained(led._leader, Message(Told.FAILED, code="PROGRESS_CONFLICT"))


def test_a_bar_counts_from_its_beginning_to_its_end() -> None:
    timeline = Timeline()
    assert not timeline.was_open(Lane.FAULT)
    lasts = timeline.begin(Lane.FAULT, "one")
    assert timeline.was_open(Lane.FAULT, math.inf), "it goes on"
    timeline.end(lasts)
    over_s = timeline.happenings()[0].ended_s
    assert timeline.was_open(Lane.FAULT)
    assert timeline.was_open(Lane.FAULT, over_s)
    assert not timeline.was_open(Lane.FAULT, over_s + 1)
    assert not timeline.was_open(Lane.DRIVER)
