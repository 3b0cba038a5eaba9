"""What a fault came upon, from what a driver has told: only work that was under way is met."""

from __future__ import annotations

import subprocess
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.verify.running.injected import injected
from tests.verify.running.supervised import end_by_itself, ends_while_a_step_is_awaited, supervised, world_of

from onceflow.transaction.messages import Unreachable
from onceflow.transaction.protocol import TRANSITIONS
from onceflow.verify.engines import ENGINES, engine_of
from onceflow.verify.engines.lines import Do, Message, Order, Told
from onceflow.verify.engines.transaction import Transaction
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.faults.driver import KillDriver, KillDriverAtStep, KillDriverTwice
from onceflow.verify.faults.spark import KillExecutor, PauseExecutor
from onceflow.verify.matrix.bounces import BounceClient
from onceflow.verify.matrix.cells import How
from onceflow.verify.result import Encounter, Lost
from onceflow.verify.running.encounters import NOTHING, Coming, Said, UnderWay, in_vain, lack, met_nothing, under_way
from onceflow.verify.running.outcome import Raw
from onceflow.verify.running.run import _encounter, _inject, _outages
from onceflow.verify.running.schedule import ROW, Turn
from onceflow.verify.running.world import World

OURS = ENGINES["onceflow"]
COMMIT = UnderWay("COMMIT", 7, is_held=True, transaction=Transaction.OPEN)


@pytest.mark.parametrize(
    ("told", "step", "batch", "committed", "text"),
    [
        (Told.HELD, "COMMIT", 7, 6, "batch 7 right before COMMIT, a transaction open"),
        (Told.STEP, "COMMIT", 7, 6, "batch 7 in COMMIT, perhaps a transaction open"),
        (Told.STEP, "PRODUCE", 7, 6, "batch 7 in PRODUCE, perhaps a transaction open"),
        (Told.HELD, "PRODUCE", 7, 6, "batch 7 right before PRODUCE, perhaps a transaction open"),
        (Told.HELD, "WRITE", 7, 6, "batch 7 right before WRITE, no transaction open"),
        (Told.STEP, "WRITE", 7, 6, "batch 7 in WRITE, perhaps a transaction open"),
        (Told.STEP, "AUDIT", 7, 6, "batch 7 in AUDIT, a transaction open"),
        (Told.STEP, "LOOK", 7, 6, "batch 7 in LOOK, perhaps a transaction open"),
        (Told.STEP, "FENCE", -1, -1, "its start in FENCE, perhaps a transaction open"),
        (Told.STEP, "READ", -1, -1, "its start in READ, no transaction open"),
        (Told.HELD, "COMMITTED", 7, 7, "batch 7 right before COMMITTED, no transaction open"),
        (Told.STEP, "COMMITTED", 7, 7, "no batch was under way"),
        (Told.COMMITTED, "", 7, 7, "no batch was under way"),
        (Told.STARTED, "", -1, -1, "no batch was under way"),
    ],
)
def test_what_a_driver_does_is_the_step_it_told_last(
    told: Told, step: str, batch: int, committed: int, text: str
) -> None:
    assert under_way(OURS, Message(told, step=step, batch=batch), committed).text == text


def test_one_that_has_told_nothing_does_nothing() -> None:
    assert under_way(OURS, None, -1) is NOTHING


def test_of_every_step_that_our_engine_tells_it_is_said_whether_a_transaction_is_open() -> None:
    told = {state.name for state, event in TRANSITIONS if event is Unreachable}
    assert set(OURS.transactions) == told | {"PRODUCE", "COMMITTED"}
    assert set(OURS.steps) | set(OURS.recovery_steps) <= set(OURS.transactions)


def test_of_a_step_that_nobody_knows_a_transaction_may_be_open() -> None:
    own = engine_of("python engine.py")
    assert under_way(own, Message(Told.HELD, step="FLUSH", batch=1), 0).transaction is Transaction.PERHAPS
    control = ENGINES["spark"]
    assert under_way(control, Message(Told.STEP, step="WRITE", batch=1), 0).transaction is Transaction.NONE


def came(**fields: Any) -> Encounter:
    known: dict[str, Any] = {
        "engine": OURS,
        "tells_steps": True,
        "said": Said(),
        "before": NOTHING,
        "struck": [],
        "steps": Counter(),
        "batches": 3,
    }
    return Coming(**{**known, **fields}).encounter("fault", 1.5)


def test_a_kill_meets_what_is_under_way_at_its_moment_and_nothing_else() -> None:
    met = came(struck=[COMMIT], before=NOTHING)
    assert met == Encounter("fault", 1.5, True, COMMIT.text, "COMMIT", Transaction.OPEN, batches=3)
    missed = came(struck=[NOTHING], before=COMMIT, steps=Counter(WRITE=1))
    assert (missed.met, missed.found) == (False, "no batch was under way")
    twice = came(struck=[NOTHING, UnderWay("READ")])
    assert (twice.met, twice.found) == (True, "no batch was under way; then its start in READ, no transaction open")
    open_first = came(struck=[COMMIT, UnderWay("READ")])
    assert (open_first.step, open_first.transaction) == ("READ", Transaction.OPEN)


def test_what_lasts_meets_also_what_comes_into_it() -> None:
    assert came(before=COMMIT).found == COMMIT.text
    later = came(steps=Counter(WRITE=1, PRODUCE=4))
    assert (later.met, later.transaction) == (True, Transaction.PERHAPS)
    assert later.found == "work came into it: WRITE, PRODUCE"
    assert came(steps=Counter(WRITE=1)).transaction is Transaction.NONE, "nothing was sent when it was told"
    assert came(steps=Counter(PRODUCE=4, COMMIT=1)).transaction is Transaction.OPEN
    writing = UnderWay("WRITE", 7, transaction=Transaction.PERHAPS)
    both = came(before=writing, steps=Counter(AUDIT=1))
    assert (both.step, both.transaction) == ("WRITE", Transaction.OPEN)
    assert both.found == "batch 7 in WRITE, perhaps a transaction open; then came AUDIT"
    assert not came().met


def test_a_fault_whose_moment_did_not_come_meets_nothing_whatever_was_under_way() -> None:
    missed = came(said=Said(missed="the commit log has no entry"), struck=[COMMIT])
    assert (
        missed.text
        == "met no work: its moment did not come: the commit log has no entry; 3 batches since the last fault"
    )


def test_a_kill_that_met_work_counts_although_another_did_not_come_as_it_should() -> None:
    lacked = Said(lacked="killed twice, READ did not come")
    first = came(said=lacked, struck=[COMMIT, NOTHING])
    assert (first.met, first.step, first.transaction) == (True, "COMMIT", Transaction.OPEN)
    assert first.found == f"{COMMIT.text}; then no batch was under way (killed twice, READ did not come)"
    assert not came(said=lacked, struck=[NOTHING, NOTHING]).met


def test_a_loss_of_what_was_written_is_met_whatever_was_under_way() -> None:
    assert came(said=Said(met="lost commits/7"), struck=[NOTHING]).text.startswith("met work: lost commits/7;")


def test_what_a_fault_has_hit_is_told_with_what_was_under_way_at_that_moment() -> None:
    """It began in COMMIT, and struck when the driver had ended in order, or was killed, or waited somewhere else."""
    rested = came(said=Said(met="producer 8 follows 7"), before=COMMIT, steps=Counter(COMMIT=1))
    assert (rested.met, rested.step, rested.transaction) == (True, "", Transaction.NONE)
    killed = came(said=Said(met="lost commits/7"), before=NOTHING, struck=[COMMIT])
    assert (killed.step, killed.transaction) == ("COMMIT", Transaction.OPEN)
    waited = came(said=Said(met="node 1 was killed", at=COMMIT), before=NOTHING)
    assert (waited.step, waited.transaction) == ("COMMIT", Transaction.OPEN)


class WaitsFirst:
    """A fault that strikes nothing. It waits until a batch was committed, and the driver rests then."""

    name, text, needs = "waits-first", "it waits", ()

    def __init__(self, until_rest: ExitStack) -> None:
        self._until_rest = until_rest

    def inject(self, world: World, random: Random) -> None:  # noqa: ARG002  the interface
        assert world.driver.await_batches(1)
        self._until_rest.enter_context(world.driver.resting())
        world.strikes_now()


def test_what_came_while_a_fault_waited_it_has_not_met(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver, ExitStack() as until_rest:
        world = world_of(driver, tmp_path)
        found = injected(world, WaitsFirst(until_rest))
    assert (found.met, found.found) == (False, "no batch was under way")


@pytest.mark.parametrize("fault", [KillExecutor(), PauseExecutor()], ids=lambda fault: fault.name)
def test_a_signal_to_a_process_that_has_just_ended_strikes_nothing(tmp_path: Path, fault: Fault) -> None:
    """It is the driver's only one when it is looked for, and gone when the signal comes."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    one: Any = SimpleNamespace(executors=lambda driver: [ended.pid])
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        world = replace(world_of(driver, tmp_path), spark=one)
        found = injected(world, fault)
    assert not found.met
    assert "had just ended" in found.found


def test_of_an_engine_that_tells_no_steps_only_batches_are_known() -> None:
    own = engine_of("python engine.py")
    assert came(engine=own, tells_steps=False, struck=[NOTHING]).met
    assert not came(engine=own, tells_steps=False, struck=[NOTHING], batches=0).met
    assert not came(engine=own, struck=[NOTHING]).met, (
        "it has told steps, so a kill between two batches is known for one"
    )


def test_faults_that_met_nothing_prove_nothing() -> None:
    met, missed = came(struck=[COMMIT]), came(struck=[NOTHING])
    assert lack([]) == lack([met]) == lack([missed, met]) == ""
    assert lack([missed]).startswith("no fault met work: the only one came between batches, or")
    assert lack([missed, missed]).startswith("no fault met work: each of the 2 came between")
    idle = came(struck=[COMMIT], batches=0)
    most = max(ROW)
    assert lack([met, *[idle] * most]).startswith(f"no batch was committed between the {most + 1} faults")
    assert lack([met, *[idle] * (most - 1)]) == "", "a row is one long fault"
    assert lack([met, *[idle] * most, met]) == ""
    assert lack([idle]) == lack([idle, met]) == ""


def test_a_fault_that_struck_beside_all_work_proves_nothing_and_spoils_nothing() -> None:
    """It lasts for many steps of the driver, none of which it can disturb; the kills all came between two batches."""
    standby = replace(
        came(said=Said(beside="a warm standby killed"), steps=Counter(WRITE=9, COMMIT=9)), fault="standby"
    )
    met, missed, idle = came(struck=[COMMIT]), came(struck=[NOTHING]), came(struck=[COMMIT], batches=0)
    assert (standby.met, standby.beside, standby.step) == (False, True, "")
    assert standby.found == "a warm standby killed, and the driver went on beside it"
    assert lack([missed, standby, missed]).startswith("no fault met work: each of the 2 came between batches")
    assert lack([standby, standby]).startswith("no fault struck what works (standby): ")
    assert "(--faults standby,kill-driver)" in lack([standby])
    assert lack([standby, met]) == lack([met, standby]) == ""
    assert lack([standby, met, *[idle] * max(ROW)]).startswith("no batch was committed between the 6 faults")
    assert in_vain(("standby",), [standby, standby, met]) == [], "it did what it is for"
    assert met_nothing(("standby", "fault"), [standby, met]) == ()


def test_kinds_of_which_no_fault_came_or_met_work_are_noted() -> None:
    kill = replace(came(struck=[COMMIT]), fault="kill-driver")
    assert met_nothing(("kill-driver",), [kill, kill]) == ()
    assert met_nothing(("kill-driver",), []) == (), "that no fault came at all is said elsewhere"
    (note,) = met_nothing(("kill-driver", "pause-driver", "late-endtxn"), [kill])
    assert note == "no fault came of 2 of the 3 kinds in the mix: pause-driver, late-endtxn"
    vain = replace(kill, fault="pause-driver", met=False)
    assert met_nothing(("kill-driver", "pause-driver"), [kill, vain, replace(kill, met=False)]) == (
        "no fault met work of 1 of the 2 kinds in the mix: pause-driver",
    )


def test_a_fault_that_was_asked_for_by_its_name_and_met_no_work_is_not_shown() -> None:
    kill = replace(came(struck=[COMMIT]), fault="kill-driver")
    vain = replace(kill, fault="pause-driver", met=False)
    asked = ("kill-driver", "pause-driver", "late-endtxn")
    assert in_vain(asked, [kill, vain, replace(vain, met=True)]) == [], "it met work once"
    assert in_vain(asked, [kill, vain]) == [], "that may be chance"
    (said,) = in_vain((*asked, "pause-driver"), [kill, vain, vain])
    assert said.startswith("--faults pause-driver: it came 2 times, and never met work")
    assert in_vain(("driver",), [kill, vain, vain]) == [], "of a mix some meet nothing by chance"


def test_a_real_driver_is_killed_in_what_it_told_and_its_batches_are_counted(tmp_path: Path) -> None:
    """The scripted engine is nearly always in a batch, between WRITE and COMMIT."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(2)
        world, raw = world_of(driver, tmp_path), Raw(driver.engine, world_of(driver, tmp_path))
        first = _encounter(world, raw, Turn(1.0, KillDriver(), "seed"))
        assert first.batches == raw.commits >= 2
        assert driver.await_batches(1)
        second = _encounter(world, raw, Turn(1.0, KillDriverTwice(), "seed"))
        assert raw.encounters == [first, second]
        assert second.batches >= 1
    assert {each.step for each in driver.course.struck} <= {"", "CLAIM", "WRITE", "COMMIT"}


def test_a_first_kill_that_met_work_counts_although_the_second_did_not_come(tmp_path: Path) -> None:
    """The driver that is killed first waits right before WRITE; its successor never comes to the step it is to be killed at."""
    with supervised(tmp_path) as driver:
        driver.course.engine = replace(driver.engine, recovery_steps=("NEVER",))
        assert driver.await_batches(1)
        life = driver._alive()
        assert life.running.order(Order(Do.HOLD, step="WRITE"))
        assert driver._await(lambda: life.held is not None, 60)
        world = world_of(driver, tmp_path)
        found = injected(world, KillDriverTwice())
    assert found.met
    assert found.found.startswith(f"batch {life.committed + 1} right before WRITE, perhaps a transaction open; then ")
    assert found.found.endswith(" (killed twice, NEVER did not come)")


@pytest.mark.parametrize("fault", [KillDriverAtStep(), BounceClient(How.HARD, 1)], ids=lambda fault: fault.name)
def test_a_kill_elsewhere_than_it_should_be_is_told_and_counts_by_what_it_met(tmp_path: Path, fault: Fault) -> None:
    with supervised(tmp_path) as driver:
        driver.course.engine = replace(driver.engine, steps=("NEVER",))
        assert driver.await_batches(1)
        world = world_of(driver, tmp_path)
        found = injected(world, fault)
        (struck,) = driver.course.struck
    assert found.met == bool(struck.step)
    assert found.found == f"{struck.text} (NEVER did not come, killed elsewhere)"


ENDED = "its moment did not come: the driver had ended by itself"


@pytest.mark.parametrize("fault", [KillDriverAtStep(), BounceClient(How.HARD, 1)], ids=lambda fault: fault.name)
def test_a_driver_that_ends_by_itself_while_a_fault_waits_for_a_step_was_not_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """The system has no memory for it any more, say: a run is not good for a fault that has struck nobody."""
    with supervised(tmp_path) as driver:
        driver.course.engine = replace(driver.engine, steps=("COMMIT",))
        assert driver.await_batches(1)
        ends_while_a_step_is_awaited(driver, monkeypatch)
        found = injected(world_of(driver, tmp_path), fault)
    assert (found.met, found.found) == (False, f"{ENDED} before COMMIT")


def test_a_driver_that_has_ended_by_itself_when_it_is_to_be_killed_was_not_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        life = driver._alive()
        end_by_itself(driver)
        monkeypatch.setattr(driver, "_alive", lambda: life)  # it ran when the fault looked
        found = injected(world_of(driver, tmp_path), KillDriver())
        assert (driver.course.strikes, driver.course.struck) == ([], [])
    assert (found.met, found.found) == (False, ENDED)


def test_a_successor_that_ends_by_itself_in_its_recovery_was_not_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its predecessor alone counts; and none, where that had ended by itself, too."""
    with supervised(tmp_path) as driver:
        driver.course.engine = replace(driver.engine, recovery_steps=("CLAIM",))
        assert driver.await_batches(1)
        ends_while_a_step_is_awaited(driver, monkeypatch)
        world = world_of(driver, tmp_path)
        once = injected(world, KillDriverTwice())
        (struck,) = driver.course.struck
        monkeypatch.setattr(driver, "kill", lambda: end_by_itself(driver))
        never = injected(world, KillDriverTwice())
        assert driver.course.struck == [struck]
    assert once.found == f"{struck.text} (killed once, for the other one ended by itself)"
    assert (never.met, never.found) == (False, f"{ENDED}, and so had its successor")


class KillsLater:
    """It strikes when some batches were committed that it only waited through."""

    name, text, needs = "kills-later", "it waits, and kills", ()

    def inject(self, world: World, random: Random) -> None:  # noqa: ARG002  the interface
        assert world.driver.await_batches(2)
        world.driver.kill()


class SaysWhen:
    """The same without a strike at a driver: it says when it begins."""

    name, text, needs = "says-when", "it waits, and says so", ()

    def inject(self, world: World, random: Random) -> None:  # noqa: ARG002  the interface
        assert world.driver.await_batches(2)
        world.strikes_now()


@pytest.mark.parametrize("fault", [KillsLater(), SaysWhen()], ids=lambda fault: fault.name)
def test_a_fault_counts_from_where_it_struck(tmp_path: Path, fault: Fault) -> None:
    """The batches for which it waited are before it, and output of theirs is none behind it."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        world, before = world_of(driver, tmp_path), driver.course.commits
        found = injected(world, fault)
        waited_for = driver.course.effects[before + 1]
    assert found.at_s > waited_for.at - world.timeline.began_at
    if driver.course.strikes:
        assert found.at_s == driver.course.strikes[0].at - world.timeline.began_at


def test_a_strike_says_which_driver_was_struck(tmp_path: Path) -> None:
    """That one may still commit what it has sent, and nobody has recovered by it."""
    with supervised(tmp_path) as driver:
        world = world_of(driver, tmp_path)
        raw = Raw(driver.engine, world)
        for _ in range(2):
            _inject(world, raw, Turn(1.0, KillsLater(), "seed"))
    assert [each.generation for each in raw.strikes] == [1, 2]
    assert all(each.kills and each.lost is Lost.DRIVER for each in raw.strikes)


def test_an_outage_is_the_newest_faults_work(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        world = world_of(driver, tmp_path)
        raw = Raw(driver.engine, world)
        raw.encounters = [Encounter("kill-driver", 5.0, True, ""), Encounter("second-driver", 20.0, True, "")]
        driver.course.outages = [world.timeline.began_at + at_s for at_s in (1.0, 19.0, 31.0)]
        found = _outages(world, raw)
    assert [each.fault for each in found] == ["no fault", "kill-driver", "second-driver"]
    assert [round(each.at_s, 3) for each in found] == [1.0, 19.0, 31.0]
    assert all(each.kills for each in found)
