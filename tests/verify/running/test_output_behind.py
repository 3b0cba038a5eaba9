"""A fault that meets work shows something only where output is in danger, or comes behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.verify.oracle.tables import BATCHES, Look, Tables, table
from tests.verify.running.test_options import GOOD

from onceflow.verify.engines import ENGINES
from onceflow.verify.oracle import Expected
from onceflow.verify.oracle.judging import Judgement, judge
from onceflow.verify.recording.recorded import Recorded
from onceflow.verify.recording.tables import READ, STABLE
from onceflow.verify.report.summary import Standing, standing
from onceflow.verify.result import Encounter, Lost
from onceflow.verify.running import outcome as module
from onceflow.verify.running.course import Effect
from onceflow.verify.running.options import settings_of
from onceflow.verify.running.outcome import Raw, outcome
from onceflow.verify.running.output_behind import no_output_behind
from onceflow.verify.running.place import Place
from onceflow.verify.running.recovery import Strike
from onceflow.verify.running.timeline import Timeline

EARLY = Tables().expected()  # all output is of batches 0, 1 and 2
COMMITS = [Effect(1, batch, 10.0 * batch) for batch in range(9)]
TOLD = (
    "no output followed the first fault that met work (kill, 25 s): only what had nothing to lose was struck; "
    "give it values that pass its filters all the time (--input TOPIC=FILE), or longer (--for)"
)


def fault(at_s: float, *, met: bool = True) -> Encounter:
    return Encounter("kill", at_s, met, "batch 2 in COMMIT")


def told(*faults: Encounter, expected: Expected | None = EARLY, begun: Sequence[Effect] = COMMITS) -> str:
    return no_output_behind(faults, expected, begun, READ.empty_table(), STABLE.empty_table())


def told_of_whole(*ends: tuple[float, int, int]) -> str:
    """Of a fault at 25 s. Each sample: when it was asked for, the partition, its end. The last records are at 11 and 10."""
    final = table(READ, [(90.0, 0, "out", *place, None, None, 7) for place in ((0, 9), (0, 11), (1, 10))])
    stable = table(STABLE, [(at_s, "out", at, 0, end, end, at_s) for at_s, at, end in ends])
    return no_output_behind([fault(25.0)], replace(EARLY, whole=True), COMMITS, final, stable)


def test_a_fault_behind_all_of_the_output_proves_nothing() -> None:
    assert told(fault(25.0)) == TOLD
    assert told(fault(5.0, met=False), fault(25.0), fault(35.0)) == TOLD, "the first one that met work counts"


def test_one_that_struck_beside_all_work_is_not_the_first() -> None:
    beside = replace(fault(5.0, met=False), beside=True)
    assert told(beside, fault(25.0)) == TOLD


def test_one_batch_with_output_that_is_committed_behind_it_is_enough() -> None:
    assert told(fault(15.0)) == ""
    assert told(fault(15.0), fault(85.0)) == ""


def test_a_batch_that_is_committed_again_behind_it_is_one() -> None:
    assert told(fault(25.0), begun=[*COMMITS, Effect(2, 2, 27.0)]) == ""


def test_where_batches_are_not_known_a_record_counts_that_was_written_behind_the_fault() -> None:
    """Not one that a reader, which looks a few times a second, only saw behind it."""
    assert told_of_whole((24.9, 0, 12), (25.1, 0, 12), (25.1, 1, 11)) == TOLD
    assert told_of_whole((24.9, 0, 8), (25.1, 0, 12), (25.4, 0, 10)) == TOLD, "the first sample behind it counts"
    assert told_of_whole((25.1, 0, 12), (25.1, 1, 10)) == ""
    assert told_of_whole((24.9, 0, 8)) == TOLD, "nobody looked"


def test_where_there_are_other_reasons_this_is_none() -> None:
    assert told() == ""
    assert told(fault(25.0, met=False)) == ""
    assert told(fault(25.0), expected=None) == ""
    assert told(fault(25.0), expected=replace(EARLY, refused="rand()")) == ""
    assert told(fault(25.0), expected=replace(EARLY, records=EARLY.records.slice(0, 0))) == ""


def raw_of(recorded: Recorded, committed_s: float) -> Raw:
    """A run of these tables, whose newest batch was committed then."""
    timeline = Timeline()
    newest = Effect(1, BATCHES - 1, timeline.began_at + committed_s)
    course = SimpleNamespace(
        effects=[newest],
        commits_told=[newest],
        first_steps={},
        committed_batches=range(BATCHES),
        steps_told={"ABORT": 0},
    )
    driver = SimpleNamespace(course=course, generation=1)
    plan = SimpleNamespace(name=recorded.pipeline)
    world: Any = SimpleNamespace(
        driver=driver, plan=plan, timeline=timeline, topics_in=recorded.inputs, topics_out=recorded.outputs
    )
    return Raw(
        ENGINES["onceflow"], world, encounters=[fault(25.0)], sent=recorded.sent, seen=recorded.seen,
        final=recorded.final, progress=recorded.progress, observed=recorded.observed,
    )  # fmt: skip


LOOKS = [Look(BATCHES, (2, 2), at_s=at_s) for at_s in (1.0, 26.0)]
"""The first one is only what the other is compared with."""


@pytest.mark.parametrize(("committed_s", "found"), [(30.0, Standing.GOOD), (20.0, Standing.NOT_JUDGED)])
def test_a_good_run_is_not_good_where_no_output_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed_s: float, found: Standing
) -> None:
    tables = Tables(looks=LOOKS)
    monkeypatch.setattr(module, "_expected", lambda *_: tables.expected())
    result = outcome(settings_of(GOOD), Place(tmp_path, tmp_path), raw_of(tables.recorded(), committed_s))
    assert not result.verdict.violations
    assert result.weaknesses == ((TOLD,) if found is Standing.NOT_JUDGED else ())
    assert standing(result) is found


def test_a_clock_that_was_set_is_told_and_decides_nothing_without_the_goals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(looks=LOOKS)
    monkeypatch.setattr(module, "_expected", lambda *_: tables.expected())
    raw = raw_of(tables.recorded(), 30.0)
    raw.clock_moved_s = -2.0
    result = outcome(settings_of(GOOD), Place(tmp_path, tmp_path), raw)
    assert result.doubted_times.startswith("the clock of this machine was set back by 2.0 s")
    assert result.doubted_times in result.notes
    assert standing(result) is Standing.GOOD


@pytest.mark.parametrize(
    ("fault", "brokers"), [("kill-executor", 1), ("kill-broker", 3), ("kill-broker", 1), ("cut", 3)]
)
def test_a_process_that_is_killed_beside_the_driver_has_a_recovery_but_not_a_whole_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, brokers: int
) -> None:
    tables = Tables(looks=LOOKS)
    monkeypatch.setattr(module, "_expected", lambda *_: tables.expected())
    raw = raw_of(tables.recorded(), 30.0)
    raw.encounters = [replace(raw.encounters[0], fault=fault)]
    result = outcome(settings_of(replace(GOOD, brokers=brokers)), Place(tmp_path, tmp_path), raw)
    measured = [] if (fault, brokers) in {("kill-broker", 1), ("cut", 3)} else [(fault, 25.0, Lost.OTHER)]
    assert [(each.fault, each.at_s, each.lost) for each in result.recoveries] == measured


@pytest.mark.parametrize(
    ("generation", "is_judged", "seconds"),
    [(2, True, 0.75), (1, True, None), (2, False, None)],
    ids=["known", "of the struck driver", "not known"],
)
def test_a_recovery_ends_with_the_batch_that_a_record_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generation: int, is_judged: bool, seconds: float | None
) -> None:
    """All was seen at 1 s, and no driver has told that anything is committed."""
    tables = Tables(looks=LOOKS)
    raw = raw_of(tables.recorded(), 0.5)
    raw.strikes = [Strike("kill", 0.25, generation=generation)]
    raw.world.driver.course.commits_told = []
    monkeypatch.setattr(module, "_expected", lambda *_: tables.expected() if is_judged else None)
    result = outcome(settings_of(GOOD), Place(tmp_path, tmp_path), raw)
    assert [each.seconds for each in result.recoveries] == [seconds]


def test_where_the_replay_is_of_no_use_the_log_is_judged_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of ours makes nothing good of what stands there."""
    tables = Tables(sent_status={1: "fail"})
    by_itself = judge

    def fails_against_a_replay(recorded: Recorded, expected: Expected | None) -> Judgement:
        if expected is not None:
            raise ValueError("of our own making")
        return by_itself(recorded, expected)

    monkeypatch.setattr(module, "_expected", lambda *_: tables.expected())
    monkeypatch.setattr(module, "judge", fails_against_a_replay)
    result = outcome(settings_of(GOOD), Place(tmp_path, tmp_path), raw_of(tables.recorded(), 30.0))
    assert "ValueError: of our own making" in result.failures
    assert "aborted_read" in result.verdict.violations
