"""The report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Column as ColumnOf
from rich.table import Table
from rich.text import Text

from onceflow.verify.checker.report import first_findings, shown
from onceflow.verify.report.evidence import ROWS
from onceflow.verify.report.goals import goals
from onceflow.verify.report.meetings import meetings, told
from onceflow.verify.report.summary import (
    HEADLINES,
    Column,
    ExitStatus,
    Standing,
    about_controls,
    exit_status,
    overview,
    reasons,
    sentence,
    standing,
)
from onceflow.verify.report.text import counted, cut
from onceflow.verify.result import RunResult

STYLES = {
    ExitStatus.GOOD: "bold green",
    ExitStatus.VIOLATED: "bold red",
    ExitStatus.NOT_JUDGED: "bold yellow",
    ExitStatus.GOALS_MISSED: "bold yellow",
}


def show(results: Sequence[RunResult], console: Console) -> None:
    """Prints one line an anomaly, the goals, the first finding of each violation, and the verdict last."""
    said = sentence(results)
    console.print(_table(results))
    for goal in goals(results):
        console.print(f"{goal.state:<14}{goal.text}", style="bold red" if goal.missed else None, markup=False)
    for number, result in enumerate(results, 1):
        if result.encounters:
            console.print(_faults(number, result))
        _show_run(number, result, said, console)
    status = exit_status(results)
    verdict = Text.assemble((HEADLINES[status] + ".", STYLES[status]), f" {said} {about_controls(results)}".rstrip())
    console.print()
    console.print(verdict, soft_wrap=True, highlight=False)


def _table(results: Sequence[RunResult]) -> Table:
    """What an anomaly means stands beside those that were found; the page has all meanings."""
    columns, lines = overview(results)
    table = Table("anomaly", title="Anomalies found", title_justify="left")
    for column in columns:
        table.add_column(_head(column), justify="right")
    tells = any(any(line.found) for line in lines)
    if tells:
        table.add_column("meaning")
    for line in lines:
        name = line.anomaly + ("" if line.judged else " [dim](not judged)[/dim]")
        cells = ["–" if found is None else f"{found:,}" for found in line.found]
        meaning = [escape(line.meaning) if any(line.found) else ""] if tells else []
        bad = line.judged and any(found and column.judged for found, column in zip(line.found, columns, strict=True))
        table.add_row(name, *cells, *meaning, style="bold red" if bad else None)
    return table


def _faults(number: int, result: RunResult) -> Table:
    """What the faults of a run met, kind by kind; the page and ``report.json`` have each of them."""
    title = f"Faults of run {number}, {escape(cut(result.engine, 30))}: {told(result.encounters)}"
    table = Table(ColumnOf("fault", no_wrap=True), title=title, title_justify="left")
    for name in ("injected", "met work", "transaction open", "perhaps open", "batches before"):
        table.add_column(name, justify="right")
    for kind in meetings(result.encounters):
        numbers = (kind.injected, kind.met, kind.in_transaction, kind.perhaps, kind.batches)
        table.add_row(escape(kind.fault), *(f"{each:,}" for each in numbers), style=None if kind.met else "yellow")
    return table


def _head(column: Column) -> str:
    kind = "" if column.judged else "control, "
    return f"{escape(cut(column.engine, 30))}\n{kind}{column.usable} of {counted(column.runs, 'run')}"


def _show_run(number: int, result: RunResult, said: str, console: Console) -> None:
    """What the verdict has not ``said``."""
    name = f"run {number}, {result.engine}, {result.pipeline}, seed {result.seed}"
    for reason in (each for each in reasons(result) if each.rstrip(".") not in said):
        console.print(f"{name} proves nothing: {reason}", style="bold yellow", markup=False)
    for note in result.notes:
        console.print(f"{name}: {note}", markup=False, highlight=False)
    for part in result.verdict.not_judged:
        console.print(f"{name}: not judged: {part}", markup=False, highlight=False)
    if standing(result) is not Standing.CONTROL:
        for found in first_findings(result.verdict):
            console.print(f"{name}: {found['anomaly']}: {found['detail']}".rstrip(": "), style="bold", markup=False)
            for row in shown(result.verdict, {**found, "rows": found["rows"][:ROWS]}):
                console.print(f"  {row}", markup=False, highlight=False)
    if standing(result) in (Standing.VIOLATED, Standing.NOT_JUDGED) and result.command:
        console.print(f"run {number} again: {result.command}", markup=False, highlight=False, soft_wrap=True)
