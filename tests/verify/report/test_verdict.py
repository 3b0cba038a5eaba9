"""What the report concludes, on all of its ways: exit status, JUnit, JSON, terminal."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest
from rich.console import Console
from tests.verify.report.results import control, run, series, verdict

from onceflow.verify.checker import CHECKS, check_history
from onceflow.verify.history import Recorder
from onceflow.verify.history.recorder import send
from onceflow.verify.report import clear, document, show, write_report, writing
from onceflow.verify.report.goals import Times, goals, times_by_fault
from onceflow.verify.report.junit import as_junit
from onceflow.verify.report.summary import exit_status, overview, reasons, standing
from onceflow.verify.result import Lost, Recovery, RunResult

GOOD = run()
BAD = run("append_a_record_again", seed=3)
BROKEN = run(failures=("no new batch for 60 s",))
BROKEN_AND_BAD = run("drop_a_committed_record", seed=3, failures=("the pipeline is not deterministic",))
BROKEN_AND_CERTAINLY_BAD = replace(BAD, failures=("no new batch for 60 s",))
BEHIND = run("leave_the_last_record_to_nobody", seed=3, failures=("it came no further",))
HELD = run("leave_a_transaction_open", seed=3, failures=("the pipeline reads all of its input: not within 600 s",))
NOTHING_CHECKED = replace(GOOD, verdict=check_history(GOOD.verdict.history, [CHECKS["int_send_skip"]]))
NOTHING_THERE = replace(GOOD, verdict=check_history(GOOD.verdict.history[:0]))
BROKEN_CONTROL = control(failures=("it did not start",))


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([GOOD], 0),
        ([GOOD, control()], 0),
        ([GOOD, BROKEN_CONTROL], 0),
        ([GOOD, BAD], 1),
        ([BAD, BROKEN], 1),
        ([GOOD, BROKEN], 2),
        ([GOOD, BROKEN_AND_BAD], 2),
        ([GOOD, BROKEN_AND_CERTAINLY_BAD], 1),
        ([GOOD, BEHIND], 2),
        ([GOOD, replace(BEHIND, is_stuck=True)], 1),
        ([GOOD, HELD], 1),
        ([control()], 2),
        ([], 2),
        ([NOTHING_CHECKED], 2),
        ([NOTHING_THERE], 2),
    ],
)
def test_exit_status(results: list[RunResult], status: int) -> None:
    assert exit_status(results) == status


def test_a_run_that_looked_at_nothing_says_so() -> None:
    assert reasons(NOTHING_CHECKED) == ("no check was made",)
    assert reasons(NOTHING_THERE) == ("the history is empty",)
    assert standing(NOTHING_THERE) == "not judged"


IDLE = ("none of 3 faults met work",)


@pytest.mark.parametrize("mutant", ["drop_a_committed_record", "append_a_record_again", "tear_a_transaction"])
def test_what_a_run_lost_by_itself_is_a_violation_though_no_fault_met_work(mutant: str) -> None:
    """It went to its end and was read to its end, unlike one that broke off."""
    assert standing(run(mutant, seed=3, weaknesses=IDLE)) == "violated"
    assert standing(run(weaknesses=IDLE)) == "not judged"
    assert standing(run("drop_a_committed_record", seed=3, weaknesses=IDLE, failures=("it got stuck",))) == "not judged"


def test_runs_that_prove_nothing_are_not_counted() -> None:
    columns, lines = overview([GOOD, BROKEN_AND_BAD, control(), BROKEN_CONTROL, NOTHING_CHECKED])
    assert [(each.engine, each.judged, each.runs, each.usable) for each in columns] == [
        ("onceflow", True, 3, 1),
        ("Spark's Kafka sink", False, 2, 1),
    ]
    assert {line.anomaly: line.found for line in lines}["duplicated"] == (0, 1)
    _, lines = overview([GOOD, BROKEN_AND_CERTAINLY_BAD, BROKEN_CONTROL])  # but for what is certain all the same
    assert {line.anomaly: line.found for line in lines}["duplicated"] == (1, None)
    _, lines = overview([BROKEN])
    assert {line.found for line in lines} == {(None,)}


def test_percentiles_are_nearest_ranks_and_what_never_came_is_infinite() -> None:
    times = Times.of([Recovery("kill", 0, float(n)) for n in range(1, 101)])
    assert [times.percentile(p) for p in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert Times.of([Recovery("kill", 0, 3.0)]).percentile(99) == 3
    assert Times.of([]).percentile(99) is Times.of([]).median_s is None
    of_two = Times.of([Recovery("kill", 0, 3.0), Recovery("kill", 0, 8.0)])
    assert (times.median_s, of_two.median_s) == (50.5, 5.5), "the shorter one of two is no median"
    assert Times.of([Recovery("kill", 0, None), Recovery("kill", 0, 1.0)]).median_s == float("inf")
    assert Times.of([Recovery("kill", 0, None), Recovery("kill", 0, 1.0)]).percentile(99) == float("inf")
    kinds = times_by_fault([Recovery("b", 0, 1.0), Recovery("a", 0, 2.0)])
    assert [each.fault for each in kinds] == ["a", "b", "all"]


NOT_MEASURED = ["not measured", "not measured"]


@pytest.mark.parametrize(
    ("seconds", "states"),
    [
        ((4.0, 5.0, 10.0), ["met", "met"]),
        ((4.0, 5.1, 10.0), ["missed", "met"]),
        ((4.0, 5.0, 10.1), ["met", "missed"]),
        ((4.0, 5.0, None), ["met", "missed"]),
        ((), NOT_MEASURED),
    ],
)
def test_goals_of_recovery(seconds: tuple[float | None, ...], states: list[str]) -> None:
    measured = replace(GOOD, recoveries=tuple(Recovery("kill", 1.0, each) for each in seconds))
    slow_control = control(recoveries=(Recovery("kill", 0, None),), lso_held_s=99.0)
    assert [goal.state for goal in goals([measured, slow_control])] == [
        *states,
        *states,
        *states,
        *NOT_MEASURED,
        *NOT_MEASURED,
        "met",
    ]


def test_the_goals_of_one_fault_leave_out_what_others_had_a_hand_in() -> None:
    recoveries = (Recovery("kill", 1.0, 4.0), Recovery("kill", 50.0, 20.0, ("pause-spark-worker",)))
    found = {goal.name: goal for goal in goals([replace(GOOD, recoveries=recoveries)])}
    assert (found["recovery p99"].measured_s, found["recovery p99"].samples) == (20.0, 2)
    alone = found["recovery from one fault p99"]
    assert (alone.measured_s, alone.samples, alone.state) == (4.0, 1, "met")


def test_the_goals_of_the_last_kill_count_from_there() -> None:
    recoveries = (
        Recovery("kill", 1.0, 4.0),
        Recovery("kill", 50.0, 14.0, ("kill",), killed_again_s=11.0, seconds_then=3.0),
    )
    found = {goal.name: goal for goal in goals([replace(GOOD, recoveries=recoveries)])}
    assert (found["recovery p99"].measured_s, found["recovery p99"].state) == (14.0, "missed")
    last = found["recovery from the last kill p99"]
    assert (last.measured_s, last.samples, last.state) == (4.0, 2, "met")


@pytest.mark.parametrize(
    ("lost", "name"), [(Lost.ENDED, "from an end by itself"), (Lost.OTHER, "from the loss of another")]
)
def test_what_no_kill_of_the_driver_has_brought_about_has_goals_of_its_own(lost: Lost, name: str) -> None:
    """Many that are short would hide the kills that are long, and the other way round."""
    recoveries = (Recovery("kill", 1.0, 11.0), *(Recovery("other", at, 1.0, lost=lost) for at in (20.0, 30.0, 40.0)))
    found = {goal.name: goal for goal in goals([replace(GOOD, recoveries=recoveries)])}
    assert [found[f"recovery {which}"].state for which in ("p50", "p99")] == ["missed", "missed"]
    of_its_own = found[f"recovery {name} p99"]
    assert (of_its_own.measured_s, of_its_own.samples, of_its_own.state) == (1.0, 3, "met")


SLOW = replace(GOOD, recoveries=(Recovery("kill", 1.0, 4.0), Recovery("kill", 50.0, 20.0)), lso_held_s=2.0)
HOLDS = replace(GOOD, lso_held_s=10.1)
OF_OTHER = Recovery("kill-executor", 1.0, 4.0, lost=Lost.OTHER)  # nobody is dead that held the last stable offset


@pytest.mark.parametrize(
    ("results", "told_alone", "status"),
    [
        ([GOOD], 0, 0),
        ([SLOW], 0, 3),
        ([HOLDS], 0, 3),
        ([replace(SLOW, recoveries=())], 0, 2),
        ([replace(GOOD, lso_held_s=None)], 0, 2),
        ([replace(GOOD, recoveries=(OF_OTHER,), lso_held_s=None)], 0, 0),
        ([replace(GOOD, doubted_times="the clock was set")], 0, 2),
        ([replace(SLOW, doubted_times="the clock was set")], 0, 2),
        ([GOOD, replace(control(), recoveries=SLOW.recoveries)], 0, 0),
        ([SLOW, BROKEN], 2, 2),
        ([SLOW, BAD], 1, 1),
    ],
)
def test_who_asks_for_the_goals_has_a_missed_one_fail(
    results: list[RunResult], told_alone: int, status: int, tmp_path: Path
) -> None:
    """Behind a violation and a run that proves nothing; where nothing was lost there is nothing that could have met them. Nor is
    there where nobody saw for how long, or where the clock was set.
    """
    held = [replace(each, held_to_goals=True) for each in results]
    assert (exit_status(results), exit_status(held)) == (told_alone, status)
    root = ET.fromstring(as_junit(held, "title"))
    assert (root.attrib["failures"] != "0" or root.attrib["errors"] != "0") == (status != 0)
    write_report(held, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["exit_status"] == status


def test_what_of_the_goals_was_not_measured_is_named() -> None:
    unknown = replace(GOOD, held_to_goals=True, lso_held_s=None, doubted_times="the clock was set")
    assert reasons(unknown) == (
        "it is held to the goals of recovery, and the clock was set",
        "it is held to the goals of recovery, and nobody saw for how long a dead driver held the last stable offset",
    )


def test_a_goal_that_fails_the_verification_is_named_with_its_time() -> None:
    output = io.StringIO()
    held = replace(SLOW, held_to_goals=True)
    show([held], Console(file=output, width=200))
    verdict = output.getvalue().splitlines()[-1]
    assert verdict.startswith("Exactly once held, but not in time. ")
    assert "Missed: recovery p99: 20.0 s (the longest, for they are few; " in verdict
    assert "Missed: recovery p50: 12.0 s" in verdict
    assert "last stable offset" not in verdict
    goals_of = cases(junit(held)[-1])
    assert goals_of["recovery p99"].find("failure") is not None
    assert goals_of["last stable offset held"].find("failure") is None


@pytest.mark.parametrize(("held", "state"), [(None, "not measured"), (10.0, "met"), (10.1, "missed")])
def test_the_goal_of_the_last_stable_offset(held: float | None, state: str) -> None:
    assert goals([replace(GOOD, lso_held_s=held)])[-1].state == state


# JUnit


PART = "how far group [1] came on in-0: its position was not seen"


def test_every_form_of_the_report_says_what_was_not_judged(tmp_path: Path) -> None:
    """A run that proves something is good all the same: what is not judged is a part of its history."""
    wholly, partly = (replace(GOOD, verdict=replace(GOOD.verdict, not_judged=parts)) for parts in ((), (PART,)))
    written = write_report([wholly, partly], tmp_path)
    assert exit_status([wholly, partly]) == 0
    runs = json.loads(written.document.read_text())["runs"]
    assert [each["not_judged"] for each in runs] == [[], [PART]]
    page = written.page.read_text()
    assert page.count("What of this run was not judged") == page.count(PART) == 1
    text = printed(wholly, partly)
    assert f"run 2, onceflow, retail, seed 1: not judged: {PART}" in text
    assert text.count("not judged:") == 1
    judged = [cases(suite)["the run can be judged"] for suite in junit(wholly, partly)[:2]]
    assert [case.findtext("system-out") for case in judged] == [None, f"not judged: {PART}"]
    assert not any(list(case.iter("error")) for case in judged)


def junit(*results: RunResult) -> ET.Element:
    return ET.fromstring(as_junit(results, "title"))


def cases(suite: ET.Element) -> dict[str, ET.Element]:
    return {case.attrib["name"]: case for case in suite.findall("testcase")}


def test_junit_has_a_case_for_each_check_of_each_run_and_for_each_goal() -> None:
    others = (Recovery("second-driver", 50, 1.0, lost=Lost.ENDED), Recovery("kill-broker", 55, 2.0, lost=Lost.OTHER))
    root = junit(replace(GOOD, recoveries=GOOD.recoveries + others), control())
    first, second, third = root
    assert set(cases(first)) == set(cases(second)) == {"the run can be judged", "the faults met work", *CHECKS}
    kinds = ("", " from the last kill", " from one fault", " from an end by itself", " from the loss of another")
    times = {f"recovery{of} {rank}" for of in kinds for rank in ("p50", "p99")}
    assert set(cases(third)) == {*times, "last stable offset held"}
    assert root.attrib["tests"] == str(2 * (len(CHECKS) + 2) + 11)
    assert [root.attrib[name] for name in ("failures", "errors", "skipped")] == ["0", "0", "0"]
    assert first.attrib["timestamp"] == "2026-11-18T11:06:40"


def test_junit_fails_what_was_violated_with_the_rows_that_show_it() -> None:
    suite = junit(BAD)[0]
    assert (suite.attrib["failures"], suite.attrib["errors"]) == ("1", "0")
    failure = cases(suite)["duplicated"].find("failure")
    assert failure is not None
    assert failure.attrib["message"].startswith("1 found: One value stands at more than one offset")
    assert "'kind': 'poll'" in str(failure.text)
    assert "again: onceflow verify --for 60s --faults all --seed 3" in str(failure.text)


def test_junit_tells_what_each_fault_met() -> None:
    said = str(cases(junit(GOOD)[0])["the faults met work"].findtext("system-out")).splitlines()
    assert said[0] == "6 faults, 5 of which met work"
    assert said[1].endswith("kill-driver: met no work: nothing; 0 batches since the last fault")
    assert said[3].endswith("met work: batch 7 right before COMMIT; 2 batches since the last fault")
    idle = replace(GOOD, encounters=GOOD.encounters[:1])
    assert cases(junit(idle)[0])["the faults met work"].find("skipped") is not None


@pytest.mark.parametrize("results", [[control()], [BROKEN_CONTROL], []])
def test_junit_is_not_green_where_nothing_is_proved(results: list[RunResult]) -> None:
    root = junit(*results)
    assert exit_status(results) == 2
    assert (root.attrib["errors"], root.attrib["failures"]) == ("1", "0")
    error = cases(root[-1])["something is proved"].find("error")
    assert error is not None
    assert error.attrib["message"] == "Nothing is proved: There was no run to be judged."


def test_junit_controls_never_fail_and_show_what_they_found() -> None:
    suite = junit(control())[0]
    assert (suite.attrib["failures"], suite.attrib["errors"]) == ("0", "0")
    said = cases(suite)["duplicated"].findtext("system-out")
    assert str(said).startswith("control, not judged: 1 found")
    broken = junit(BROKEN_CONTROL)[0]
    assert (broken.attrib["errors"], broken.attrib["failures"]) == ("0", "0")
    assert broken.attrib["skipped"] == str(len(CHECKS) + 1)


@pytest.mark.parametrize("result", [BROKEN, BROKEN_AND_BAD, NOTHING_THERE])
def test_junit_a_run_that_proves_nothing_is_an_error_and_its_checks_did_not_pass(result: RunResult) -> None:
    suite = junit(result)[0]
    assert [suite.attrib[name] for name in ("errors", "failures")] == ["1", "0"]
    assert suite.attrib["skipped"] == str(len(CHECKS))
    error = cases(suite)["the run can be judged"].find("error")
    assert error is not None
    assert error.attrib["message"] == reasons(result)[0]


def test_junit_goals_decide_nothing_those_missed_or_not_measured_are_skipped() -> None:
    suite = junit(replace(GOOD, recoveries=(Recovery("kill", 0, None),), lso_held_s=None))[-1]
    found = cases(suite)
    assert [suite.attrib[name] for name in ("tests", "failures", "skipped")] == ["11", "0", "11"]
    missed, unknown = (found[name].find("skipped") for name in ("recovery p99", "last stable offset held"))
    assert missed is not None
    assert missed.attrib["message"].startswith("missed: ")
    assert "never" in missed.attrib["message"]
    assert "the goal is 10 s at most" in missed.attrib["message"]
    assert unknown is not None
    assert unknown.attrib["message"] == "not measured"


def test_junit_what_is_certain_fails_although_the_run_proves_nothing_else() -> None:
    suite = junit(BROKEN_AND_CERTAINLY_BAD)[0]
    assert [suite.attrib[name] for name in ("errors", "failures", "skipped")] == ["1", "1", str(len(CHECKS) - 1)]
    assert cases(suite)["duplicated"].find("failure") is not None


def test_junit_counts_only_what_is_judged() -> None:
    noisy = check_history(verdict().history)
    noisy = replace(noisy, findings=pa.concat_tables([noisy.findings, _legal(noisy.findings.schema)]))
    suite = junit(replace(GOOD, verdict=noisy))[0]
    assert suite.attrib["failures"] == "0"
    told = cases(suite)["int_send_skip"].find("skipped")
    assert told is not None, "what is found in it is no pass"
    assert told.attrib["message"].startswith("not judged: 1 found")


def _legal(schema: pa.Schema) -> pa.Table:
    row = {"anomaly": "int_send_skip", "key": None, "offset": None, "value": None, "rows": [0], "detail": ""}
    return pa.Table.from_pylist([row], schema)


def test_junit_holds_any_text() -> None:
    odd = replace(GOOD, pipeline="a<b>&\x00\x1b\ud800\"'", failures=("]]>\x07",))
    root = ET.fromstring(as_junit([odd], "\x01"))
    assert "a<b>&\ufffd\ufffd\ufffd\"'" in root[0].attrib["name"]


# What nobody looked at


def test_a_history_in_which_nobody_looked_proves_nothing() -> None:
    recorder = Recorder()
    recorder.add("writer", send("k", 1, 0))
    unseen = replace(GOOD, verdict=check_history(recorder.table()))
    assert reasons(unseen) == ("nobody looked: the history has no row of what was seen (poll, window, effect)",)
    assert exit_status([unseen]) == 2


# Files


def test_an_earlier_report_does_not_stand_for_a_run_that_breaks_off(tmp_path: Path) -> None:
    written = write_report([BAD], tmp_path)
    for name in ("history.parquet", "history-2.parquet", "history-of-mine.parquet", "mine.txt"):
        (tmp_path / name).touch()
    assert written.histories
    clear(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"history-of-mine.parquet", "mine.txt"}
    clear(tmp_path / "new" / "directory")
    assert (tmp_path / "new" / "directory").is_dir()


def test_the_report_is_there_before_the_smallest_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(results: object, kept: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "keep_smallest", fail)
    with pytest.raises(KeyboardInterrupt):
        write_report([BAD], tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["exit_status"] == 1
    assert (tmp_path / "report.html").exists()
    assert ET.parse(tmp_path / "junit.xml").findall(".//failure")


# JSON


def test_the_document_says_everything_but_the_history(tmp_path: Path) -> None:
    odd = series("odd", "things", [0.0, 1.0, None], [1.5, float("nan"), None])
    bad = replace(BAD, series=(*BAD.series, odd))
    found = json.loads(write_report([GOOD, bad, control()], tmp_path, "the title").document.read_text())
    assert (found["version"], found["exit_status"], found["title"]) == (1, 1, "the title")
    first, second, third = found["runs"]
    assert [each["standing"] for each in found["runs"]] == ["good", "violated", "control"]
    assert {each["anomaly"]: each["found"] for each in second["checks"]} == BAD.verdict.counts
    (example,) = second["examples"]
    assert example["anomaly"] == "duplicated"
    assert example["rows_found"] == len(example["rows"])
    assert (tmp_path / example["history"]).exists()
    assert third["judged"] is False
    assert first["series"][0]["value"] == GOOD.series[0].value.to_pylist()
    assert second["series"][-1] == {"name": "odd", "unit": "things", "at_s": [0, 1, None], "value": [1.5, None, None]}
    assert len(first["happenings"]) == len(GOOD.happenings)
    assert first["happenings"][0]["lane"] == "fault"
    assert second["recoveries"][-1]["seconds"] is None
    times = {each["fault"]: each for each in second["recovery_times"]}
    assert (times["all"]["samples"], times["all"]["unrecovered"], times["all"]["p99_s"]) == (5, 1, None)
    assert [goal["unrecovered"] for goal in found["goals"]] == [*[False, True] * 3, *[False] * 5]
    assert first["counts"] == dict(GOOD.counts)
    assert first["versions"] == dict(GOOD.versions)


def test_every_key_of_the_document_is_documented(tmp_path: Path) -> None:
    found = json.loads(write_report([GOOD, BAD], tmp_path).document.read_text())
    for run_ in found["runs"]:
        run_["counts"] = run_["versions"] = {}
        for example in run_["examples"]:
            example["rows"] = []
    for key in keys(found):
        assert f"``{key}``" in str(document.__doc__), key


def keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


# Terminal


def printed(*results: RunResult, width: int = 160) -> str:
    file = io.StringIO()
    show(results, Console(file=file, width=width))
    return file.getvalue()


def test_the_terminal_shows_the_table_and_ends_with_the_verdict() -> None:
    text = printed(GOOD, control())
    assert all(name in text for name in CHECKS)
    assert "control, 1 of 1 run" in text
    assert "Faults of run 1, onceflow: 6 faults, 5 of which met work" in text
    assert "recovery p50" in text
    last = text.strip().splitlines()[-1]
    judged = sum(check.judged for check in CHECKS.values())
    assert last.startswith(
        f"Exactly once held. {judged} checks found nothing in 1 run with 6 faults, 5 of which met work, and "
    )
    assert last.endswith("The control, Spark's Kafka sink, showed 1 duplicated.")


def test_a_narrow_terminal_cuts_no_faults_name() -> None:
    text = printed(GOOD, width=60)
    assert {each.fault for each in GOOD.encounters} <= set(text.split())


def test_the_terminal_shows_the_rows_of_a_violation_and_why_a_run_proves_nothing() -> None:
    text = printed(replace(BAD, pipeline="[bold]x"), BROKEN)
    assert "run 1, onceflow, [bold]x, seed 3: duplicated" in text
    assert "'kind': 'poll'" in text
    assert text.count("no new batch for 60 s") == 1, "the verdict says it"
    told = printed(replace(BROKEN, failures=("no new batch for 60 s", "and more")))
    assert "run 1, onceflow, retail, seed 1 proves nothing: and more" in told
    assert "proves nothing: no new batch" in printed(GOOD, replace(BROKEN, judged=False)), (
        "the verdict does not say it of a control"
    )
    assert "run 1 again: onceflow verify --for 60s --faults all --seed 3" in text
    assert text.strip().splitlines()[-1].startswith("Exactly once was violated. Run 1 (onceflow) shows 1 duplicated.")
    text = printed(replace(BROKEN_AND_CERTAINLY_BAD, notes=("no record is expected in copies",)))
    assert "run 1, onceflow, retail, seed 3: no record is expected in copies" in text
    assert text.strip().splitlines()[-1].startswith("Exactly once was violated. Run 1 (onceflow) shows 1 duplicated.")
