"""What was found, for people (a table on the terminal) and for programs (JSON)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from onceflow.verify.checker.verdict import Verdict

EXAMPLES = 3


def as_json(verdict: Verdict, examples: int = EXAMPLES) -> dict[str, Any]:
    """``{"rows", "good", "unproved", "not_judged", "counts", "examples"}``; ``unproved`` says why nothing is proved, or is empty,
    and ``not_judged`` of which parts nothing is; an example is a finding with the rows of the history that show it.
    """
    return {
        "rows": len(verdict.history),
        "good": not verdict.violations and not verdict.lack,
        "unproved": verdict.lack,
        "not_judged": list(verdict.not_judged),
        "counts": verdict.counts,
        "examples": [{**found, "rows": shown(verdict, found)} for found in first_findings(verdict, examples)],
    }


def first_findings(verdict: Verdict, examples: int = 1) -> list[dict[str, Any]]:
    """The first findings of each anomaly that breaks a guarantee."""
    found: list[dict[str, Any]] = []
    for anomaly in verdict.violations:
        found.extend(verdict.findings.filter(pc.equal(verdict.findings["anomaly"], anomaly))[:examples].to_pylist())
    return found


def shown(verdict: Verdict, finding: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that show a finding, without empty columns, with their number as ``row``."""
    numbers = finding["rows"]
    rows = verdict.history.take(pa.array(numbers, pa.int64())).to_pylist()
    return [
        {"row": number, **{name: value for name, value in row.items() if value is not None}}
        for number, row in zip(numbers, rows, strict=True)
    ]


def show(verdict: Verdict, console: Console, examples: int = EXAMPLES) -> None:
    """Prints one line a check, and then the first findings of each violation with their rows."""
    table = Table(title=f"{len(verdict.history):,} rows", title_justify="left")
    for title in ("anomaly", "found", "meaning"):
        table.add_column(title, justify="right" if title == "found" else "left")
    counts = verdict.counts
    for check in verdict.checks:
        note = "" if check.judged else " [dim](not judged)[/dim]"
        style = "bold red" if check.judged and counts[check.anomaly] else None
        table.add_row(check.anomaly, f"{counts[check.anomaly]:,}", check.meaning + note, style=style)
    console.print(table)
    if verdict.lack:
        console.print(f"nothing is proved: {verdict.lack}", style="bold yellow", markup=False)
    for part in verdict.not_judged:
        console.print(f"not judged: {part}", style="yellow", markup=False)
    for found in first_findings(verdict, examples):
        console.print(f"{found['anomaly']}: {found['detail']}".rstrip(": "), style="bold", markup=False)
        for row in shown(verdict, found):
            console.print(f"  {row}", markup=False, highlight=False)
