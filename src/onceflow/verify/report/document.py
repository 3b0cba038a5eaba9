"""``report.json``: everything that the runs gave, but for the histories.

Version 1. Times of a run are seconds since its beginning; a number that is not finite, or was not measured, is null.

==================  ===================================================================================================
``version``         1; a later version keeps the meaning of these keys
``title``           of the report
``exit_status``     0 good, 1 violated, 2 could not be judged, 3 good but for a goal that was missed and counts
``headline``        the verdict in a few words
``sentence``        what it rests on
``controls``        what the controls showed, or an empty string
``goals``           list: ``name``, ``meaning``, ``limit_s``, ``measured_s``, ``samples``, ``unrecovered`` (whether one of
                    them never ended), ``state`` ("met", "missed", "not measured")
``overview``        ``engines``: list of ``engine``, ``judged``, ``runs``, ``usable`` (runs that prove something);
                    ``anomalies``: list of ``anomaly``, ``meaning``, ``judged``, ``found`` (one number an engine, over its
                    usable runs; null where nothing looked for it)
``runs``            list, in the order of their numbers:
``number``          from 1
``engine``          and ``pipeline``, ``seed``, ``faults``, ``command`` (what runs it again)
``standing``        "good", "violated", "not judged" or "control"
``judged``          false for a control, whose violations do not fail the verification
``held_to_goals``   whether a goal that is missed fails the verification; absent in earlier reports
``began_at``        seconds since the epoch; ``seconds``: how long it took
``failures``        why the run proves nothing; empty when it does. "violated" it may be all the same, by what is certain
``notes``           what of the output was not looked at, and why the times that were measured may be wrong
``not_judged``      of which parts of the history it proves nothing that nothing was found; absent in earlier reports
``history_rows``    how long its history is
``checks``          list of ``anomaly``, ``meaning``, ``judged``, ``found``
``examples``        the first findings of each violation: ``anomaly``, ``key``, ``offset``, ``value``, ``detail``,
                    ``rows`` (the first rows that show it, as in docs/history-format.md, with their number as ``row``),
                    ``rows_found`` (how many there are), ``history`` (file with the smallest history, beside the report)
``encounters``      list, one a fault: ``fault``, ``at_s`` (when it struck), ``met`` (whether work was under way that it could
                    disturb), ``found`` (what it came upon, in words), ``step`` (of the commit), ``transaction`` ("open", "none"
                    or "perhaps"), ``batches`` (committed since the fault before it was over, until this one was), ``in_row`` (it
                    came right behind the one before), ``beside`` (it struck only what waits, and could disturb no work)
``recoveries``      list of ``fault``, ``at_s``, ``seconds`` (null: never), ``others`` (faults that had a hand in it),
                    ``killed_again_s`` (so long after ``at_s`` the driver was killed for the last time until then; 0: not again),
                    ``seconds_then`` (how long it took from that kill on; null: not again, or never), ``lost`` ("driver",
                    "driver that ended by itself", "other process"; absent in earlier reports)
``recovery_times``  list, one a fault and "all": ``fault``, ``samples``, ``unrecovered``, ``p50_s``, ``p99_s``, ``longest_s``
                    (``p50_s`` the median, ``p99_s`` by nearest rank; null where one that counts never ended)
``lso_held_s``      longest time for which a dead instance held the last stable offset
``lso_stood_s``     longest time for which the last stable offset of a partition of the output stood below its end, whatever
                    held it: a batch that was being written, a frozen process, a dead one; absent in earlier reports
``happenings``      list of ``lane``, ``name``, ``began_s``, ``ended_s``, ``detail``
``series``          list of ``name``, ``unit``, ``at_s``, ``value`` (two lists of one length)
``counts``          by name, and ``versions`` by component
==================  ===================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.report.evidence import examples
from onceflow.verify.report.goals import Goal, Times, goals, times_by_fault
from onceflow.verify.report.summary import (
    HEADLINES,
    about_controls,
    exit_status,
    overview,
    reasons,
    sentence,
    standing,
)
from onceflow.verify.result import RunResult

VERSION = 1
Kept = Mapping[tuple[int, str], Path]


def as_document(results: Sequence[RunResult], title: str, kept: Kept) -> dict[str, Any]:
    """The whole report in JSON types; its keys are described above."""
    status = exit_status(results)
    engines, anomalies = overview(results)
    return {
        "version": VERSION,
        "title": title,
        "exit_status": int(status),
        "headline": HEADLINES[status],
        "sentence": sentence(results),
        "controls": about_controls(results),
        "goals": [_goal(goal) for goal in goals(results)],
        "overview": {
            "engines": [asdict(engine) for engine in engines],
            "anomalies": [{**asdict(line), "found": list(line.found)} for line in anomalies],
        },
        "runs": [_run(number, result, kept) for number, result in enumerate(results, 1)],
    }


def _goal(goal: Goal) -> dict[str, Any]:
    unrecovered = goal.measured_s is not None and math.isinf(goal.measured_s)
    return {**asdict(goal), "measured_s": _finite(goal.measured_s), "unrecovered": unrecovered, "state": goal.state}


def _run(number: int, result: RunResult, kept: Kept) -> dict[str, Any]:
    return {
        "number": number,
        "engine": result.engine,
        "pipeline": result.pipeline,
        "seed": result.seed,
        "faults": list(result.faults),
        "command": result.command,
        "standing": str(standing(result)),
        "judged": result.judged,
        "held_to_goals": result.held_to_goals,
        "began_at": result.began_at,
        "seconds": result.seconds,
        "failures": list(reasons(result)),
        "notes": list(result.notes),
        "not_judged": list(result.verdict.not_judged),
        "history_rows": len(result.verdict.history),
        "checks": _checks(result),
        "examples": [{**each, "history": kept[number, each["anomaly"]].name} for each in examples(result.verdict)],
        "encounters": [asdict(each) for each in result.encounters],
        "recoveries": [asdict(each) for each in result.recoveries],
        "recovery_times": [_times(each) for each in times_by_fault(result.recoveries)],
        "lso_held_s": result.lso_held_s,
        "lso_stood_s": result.lso_stood_s,
        "happenings": [{**asdict(each), "lane": str(each.lane)} for each in result.happenings],
        "series": [
            {"name": each.name, "unit": each.unit, "at_s": _numbers(each.at_s), "value": _numbers(each.value)}
            for each in result.series
        ],
        "counts": dict(result.counts),
        "versions": dict(result.versions),
    }


def _checks(result: RunResult) -> list[dict[str, Any]]:
    counts = result.verdict.counts
    return [
        {
            "anomaly": check.anomaly,
            "meaning": check.meaning,
            "judged": check.judged,
            "found": counts[check.anomaly],
        }
        for check in result.verdict.checks
    ]


def _times(times: Times) -> dict[str, Any]:
    return {
        "fault": times.fault,
        "samples": len(times.sorted_s),
        "unrecovered": sum(map(math.isinf, times.sorted_s)),
        "p50_s": _finite(times.median_s),
        "p99_s": _finite(times.percentile(99)),
        "longest_s": _finite(times.longest_s),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _numbers(column: pa.DoubleArray) -> list[float | None]:
    finite: list[float | None] = pc.if_else(pc.is_finite(column), column, None).to_pylist()
    return finite
