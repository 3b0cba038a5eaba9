"""What a fault came upon, from what a driver has told: only work that was under way is met."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.verify.running.supervised import supervised, world_of

from onceflow.verify.engines import ENGINES, engine_of
from onceflow.verify.engines.lines import Message, Told
from onceflow.verify.faults.driver import KillDriver, KillDriverTwice
from onceflow.verify.result import Encounter
from onceflow.verify.running.encounters import NOTHING, Coming, Said, UnderWay, lack, under_way
from onceflow.verify.running.outcome import Raw
from onceflow.verify.running.run import _encounter, _outages
from onceflow.verify.running.schedule import Turn

OURS = ENGINES["onceflow"]
COMMIT = UnderWay("COMMIT", 7, is_held=True, in_transaction=True)


@pytest.mark.parametrize(
    ("told", "step", "batch", "committed", "text"),
    [
        (Told.HELD, "COMMIT", 7, 6, "batch 7 right before COMMIT, a transaction open"),
        (Told.STEP, "PRODUCE", 7, 6, "batch 7 in PRODUCE, a transaction open"),
        (Told.STEP, "WRITE", 7, 6, "batch 7 in WRITE, no transaction open"),
        (Told.STEP, "FENCE", -1, -1, "its start in FENCE, no transaction open"),
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


def came(**fields: Any) -> Encounter:
    known: dict[str, Any] = {
        "engine": OURS,
        "said": Said(),
        "before": NOTHING,
        "struck": [],
        "steps": Counter(),
        "batches": 3,
    }
    return Coming(**{**known, **fields}).encounter("fault", 1.5)


def test_a_kill_meets_what_is_under_way_at_its_moment_and_nothing_else() -> None:
    met = came(struck=[COMMIT], before=NOTHING)
    assert met == Encounter("fault", 1.5, True, COMMIT.text, "COMMIT", in_transaction=True, batches=3)
    missed = came(struck=[NOTHING], before=COMMIT, steps=Counter(WRITE=1))
    assert (missed.met, missed.found) == (False, "no batch was under way")
    twice = came(struck=[NOTHING, UnderWay("FENCE")])
    assert (twice.met, twice.found) == (True, "no batch was under way; then its start in FENCE, no transaction open")


def test_what_lasts_meets_also_what_comes_into_it() -> None:
    assert came(before=COMMIT).found == COMMIT.text
    later = came(steps=Counter(WRITE=1, PRODUCE=4))
    assert (later.met, later.in_transaction, later.found) == (True, True, "work came into it: WRITE, PRODUCE")
    assert not came().met


def test_a_fault_whose_moment_did_not_come_meets_nothing_whatever_was_under_way() -> None:
    missed = came(said=Said(missed="killed twice, READ did not come"), struck=[COMMIT, COMMIT])
    assert (
        missed.text
        == "met no work: its moment did not come: killed twice, READ did not come; 3 batches since the last fault"
    )


def test_a_loss_of_what_was_written_is_met_whatever_was_under_way() -> None:
    assert came(said=Said(met="lost commits/7"), struck=[NOTHING]).text.startswith("met work: lost commits/7;")


def test_of_an_engine_that_tells_no_steps_only_batches_are_known() -> None:
    silent = engine_of("python engine.py")
    assert came(engine=silent, struck=[NOTHING]).met
    assert not came(engine=silent, struck=[NOTHING], batches=0).met


def test_faults_that_met_nothing_prove_nothing() -> None:
    met, missed = came(struck=[COMMIT]), came(struck=[NOTHING])
    assert lack([]) == lack([met]) == lack([missed, met]) == ""
    assert lack([missed]).startswith("no fault met work: the only one came between batches, or")
    assert lack([missed, missed]).startswith("no fault met work: each of the 2 came between")
    idle = came(struck=[COMMIT], batches=0)
    assert lack([met, idle, idle]).startswith("no batch was committed between the 3 faults")
    assert lack([idle]) == lack([idle, met]) == ""


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
    assert {each.step for each in driver.struck} <= {"", "CLAIM", "WRITE", "COMMIT"}


def test_a_step_that_does_not_come_is_told_as_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        world = world_of(driver, tmp_path)
        monkeypatch.setattr(driver, "kill_in_recovery", lambda step: False)
        KillDriverTwice().inject(world, Random(1))
        assert world.said.missed.startswith("killed twice, ")


def test_an_outage_is_the_newest_faults_work(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        world = world_of(driver, tmp_path)
        raw = Raw(driver.engine, world)
        raw.encounters = [Encounter("kill-driver", 5.0, True, ""), Encounter("second-driver", 20.0, True, "")]
        driver.outages = [world.timeline.began_at + at_s for at_s in (1.0, 19.0, 31.0)]
        found = _outages(world, raw)
    assert [each.fault for each in found] == ["no fault", "kill-driver", "second-driver"]
    assert [round(each.at_s, 3) for each in found] == [1.0, 19.0, 31.0]
    assert all(each.kills for each in found)
