"""The schedule: one seed, one order of faults; quiet times, and several faults in a row."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path

import pytest
from tests.verify.running.supervised import supervised, world_of

from onceflow.verify.faults.catalog import FAULTS, MIXES, all_names, chosen
from onceflow.verify.result import Lane
from onceflow.verify.running import schedule
from onceflow.verify.running.schedule import ByTime, Turn, turns

ALL = tuple(FAULTS.values())


def first(count: int, seed: int) -> list[Turn]:
    return list(islice(turns(ALL, seed), count))


def test_the_same_seed_gives_the_same_turns() -> None:
    assert first(200, seed=7) == first(200, seed=7)
    assert first(200, seed=7) != first(200, seed=8)


def test_each_turn_has_chances_of_its_own_that_the_others_do_not_move() -> None:
    turn, other = first(2, seed=7)
    draws = [turn.random().random(), turn.random().random(), other.random().random()]
    assert draws[0] == draws[1] != draws[2]


def test_about_a_quarter_of_the_draws_is_quiet() -> None:
    found = first(4000, seed=1)
    quiet = sum(turn.fault is None for turn in found)
    draws = quiet + sum(turn.fault is not None and turn.wait_s > 0 for turn in found)
    assert 0.2 < quiet / draws < 0.3


def test_three_and_more_faults_come_in_a_row() -> None:
    longest = row = 0
    for turn in first(300, seed=3):
        row = row + 1 if turn.fault is not None and turn.wait_s == 0 else 1
        longest = max(longest, row)
    assert 3 <= longest <= 5


def test_one_by_one_no_fault_comes_in_a_row() -> None:
    """Each recovery is from one fault then; every kind comes as often as otherwise."""
    found = list(islice(turns(ALL, 3, one_by_one=True), 1000))
    assert not any(turn.in_row for turn in found)
    injected = [turn.fault.name for turn in found if turn.fault is not None]
    assert sorted(injected[: len(ALL)]) == sorted(FAULTS)


def test_what_lasts_until_the_pipeline_has_recovered_comes_in_no_row() -> None:
    found = first(2000, seed=3)
    alone = [n for n, turn in enumerate(found) if turn.fault is FAULTS["kill-standby"]]
    assert len(alone) > 10
    assert not any(found[n].in_row or found[n + 1].in_row for n in alone if n + 1 < len(found))
    *rows, _ = "".join("r" if turn.in_row else "." for turn in found).split(".")  # the last one may be cut off
    assert {len(row) + 1 for row in rows if row} == {3, 4, 5}, "the rows stay as long as they are"
    by_itself = list(islice(turns([FAULTS["kill-standby"]], 3), 200))
    assert not any(turn.in_row for turn in by_itself)


def test_a_fault_waits_until_the_pipeline_has_recovered_from_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those in a row, which shall strike a driver that only starts."""
    for pause in ("_PAUSE_S", "_QUIET_S"):
        monkeypatch.setattr(schedule, pause, (0.001, 0.002))
    with supervised(tmp_path) as driver:
        commits, at_work = 0, []
        for turn in islice(ByTime(seconds=120, seed=3).due(world_of(driver, tmp_path), [FAULTS["kill-driver"]]), 12):
            at_work.append((driver.has_recovered(commits), turn.wait_s == 0))
            driver.kill()
            commits = driver.course.commits
    assert all(recovered or in_a_row for recovered, in_a_row in at_work)
    assert any(in_a_row and not recovered for recovered, in_a_row in at_work)


def test_what_a_fault_waits_for_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thing once: on a Spark cluster a batch comes after seconds, and warm standbys after minutes."""
    monkeypatch.setattr(schedule, "_SILENCE_S", 0.0)
    monkeypatch.setattr(schedule, "_PAUSE_S", (0.001, 0.002))
    monkeypatch.setattr(schedule, "QUIET", 0.0)
    monkeypatch.setattr(schedule, "IN_A_ROW", 0.0)
    with supervised(tmp_path, standbys=2) as driver:
        by_time, world = ByTime(seconds=120, seed=3), world_of(driver, tmp_path)
        by_time.await_start(world)
        for _ in islice(by_time.due(world, [FAULTS["kill-driver"]]), 2):
            driver.kill()
        assert driver.awaited(10**9) == "the next batch"
        notes = [each.name for each in driver._timeline.happenings() if each.lane is Lane.NOTE]
    waits = [note for note in notes if "waits for" in note]
    assert waits[0].startswith("the first fault waits for "), notes
    # Whether standbys are warm again by then is a race; what is waited for besides a batch is them.
    assert all("warm" in note or "batch" in note for note in waits), notes
    assert all(note.startswith("the next fault waits for ") for note in waits[1:]), notes
    assert all(note != other for note, other in pairwise(waits)), notes


def test_every_kind_comes_before_one_comes_again() -> None:
    injected = [turn.fault.name for turn in first(500, seed=5) if turn.fault is not None]
    assert sorted(injected[: len(ALL)]) == sorted(FAULTS)
    assert sorted(injected[len(ALL) : 2 * len(ALL)]) == sorted(FAULTS)


def test_no_faults_is_only_quiet() -> None:
    assert all(turn.fault is None for turn in islice(turns((), 1), 50))


def test_faults_are_chosen_by_name_and_by_mix() -> None:
    faults, mistakes = chosen(["driver", "full-disk"])
    assert not mistakes
    assert {fault.name for fault in faults} == {*MIXES["driver"], "full-disk"}
    everything, _ = chosen(["all"])
    assert {fault.name for fault in everything} == set(FAULTS) - set(MIXES["topics"])
    assert chosen(["none"]) == ([], [])


def test_all_unknown_names_are_told() -> None:
    _, mistakes = chosen(["kil-driver", "nothing-like-it", "disk"])
    assert mistakes == [
        "--faults kil-driver: there is no such fault or mix, did you mean kill-driver?",
        f"--faults nothing-like-it: there is no such fault or mix; it takes {all_names()}",
    ]
