"""``report.html``: the verdict first, then each run. One file without scripts, which needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from onceflow.verify.history import SCHEMA
from onceflow.verify.report import text
from onceflow.verify.report.evidence import examples
from onceflow.verify.report.goals import are_binding, goals, times_by_fault
from onceflow.verify.report.meetings import meetings
from onceflow.verify.report.meetings import told as meetings_told
from onceflow.verify.report.recovery_plot import recovery_plot
from onceflow.verify.report.summary import (
    HEADLINES,
    ExitStatus,
    about_controls,
    exit_status,
    overview,
    reasons,
    sentence,
    standing,
)
from onceflow.verify.report.timeline import caption, timeline
from onceflow.verify.result import Lane, RunResult

# Shared by all runs of a page, so that it stays below 3 MB however many there are.
PLACES = 1_600  # told apart on all timelines
LINES = 1_500  # of all folded lists

_CLASSES = {
    ExitStatus.GOOD: "good",
    ExitStatus.VIOLATED: "violated",
    ExitStatus.NOT_JUDGED: "not-judged",
    ExitStatus.GOALS_MISSED: "goals-missed",
}
_LISTS = {
    Lane.FAULT: "faults",
    Lane.DRIVER: "driver lives",
    Lane.BROKER: "broker lives",
    Lane.READER: "reader lives",
    Lane.BATCH: "commits of batches",
    Lane.NOTE: "notes",
}


def as_page(results: Sequence[RunResult], title: str, kept: Mapping[tuple[int, str], Path]) -> str:
    """The report as an HTML document."""
    status = exit_status(results)
    columns, lines = overview(results)
    page = _environment().get_template("page.html.jinja")
    return text.writable(
        page.render(
            title=title,
            status=_CLASSES[status],
            headline=HEADLINES[status],
            sentence=sentence(results),
            controls=about_controls(results),
            columns=columns,
            lines=lines,
            goals=goals(results),
            goals_are_binding=are_binding(results),
            runs=[_run(number, result, len(results), kept) for number, result in enumerate(results, 1)],
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"cut": text.cut, "seconds": text.seconds, "moment": text.moment, "counted": text.counted}
    environment.filters.update(filters)
    return environment


def _run(number: int, result: RunResult, runs: int, kept: Mapping[tuple[int, str], Path]) -> dict[str, Any]:
    detail = min(1000, max(30, PLACES // runs))
    stands = standing(result)
    drawn = bool(result.happenings or result.series)
    return {
        "number": number,
        "result": result,
        "standing": stands.value,
        "class": stands.value.replace(" ", "-"),
        "reasons": reasons(result),
        "found": text.listed(result.verdict.violations),
        "found_text": _found_text(result),
        "counts": [(name, f"{count:,}") for name, count in result.counts.items()],
        "versions": list(result.versions.items()),
        "timeline": Markup(timeline(result, number, detail)) if drawn else "",  # noqa: S704 our own, escaped there
        "caption": caption(result),
        "thinned": any(len(each.at_s) > 2 * detail + 2 for each in result.series),
        "times": times_by_fault(result.recoveries),
        "met": meetings_told(result.encounters) if result.encounters else "",
        "meetings": meetings(result.encounters),
        "encounters": result.encounters[: max(5, LINES // runs) // len(_LISTS) + 1],
        "recovery_plot": _recovery_plot(result, number, detail),
        "violations": _violations(number, result, kept),
        "lists": _lists(result, max(5, LINES // runs)),
    }


def _found_text(result: RunResult) -> str:
    rows = text.counted(len(result.verdict.history), "row")
    return f"{rows} of history showed {text.listed(result.verdict.violations)}."


def _recovery_plot(result: RunResult, number: int, detail: int) -> str:
    if not result.recoveries:
        return ""
    return Markup(recovery_plot(result.recoveries, f"recovery-{number}", detail))  # noqa: S704 our own, escaped there


def _violations(number: int, result: RunResult, kept: Mapping[tuple[int, str], Path]) -> list[dict[str, Any]]:
    meanings = {check.anomaly: check.meaning for check in result.verdict.checks}
    found = examples(result.verdict)
    return [
        {
            "anomaly": anomaly,
            "found": count,
            "meaning": meanings[anomaly].rstrip("."),
            "findings": [_finding(each) for each in found if each["anomaly"] == anomaly],
            "file": kept[number, anomaly].name,
        }
        for anomaly, count in result.verdict.violations.items()
    ]


def _finding(found: dict[str, Any]) -> dict[str, Any]:
    named = {name for row in found["rows"] for name in row}
    place = ", ".join(f"{name} {found[name]}" for name in ("key", "offset", "value") if found[name] is not None)
    return {
        "place": place,
        "detail": found["detail"],
        "rows": found["rows"],
        "columns": [name for name in ("row", *SCHEMA.names) if name in named],
        "left_out": found["rows_found"] - len(found["rows"]),
    }


def _lists(result: RunResult, lines: int) -> list[dict[str, Any]]:
    lists = []
    for lane, title in _LISTS.items():
        happened = [each for each in result.happenings if each.lane is lane]
        first = happened[: lines // len(_LISTS) + 1]
        if happened:
            left_out = len(happened) - len(first)
            lists.append({"title": f"{title}: {len(happened):,}", "first": first, "left_out": left_out})
    return lists
