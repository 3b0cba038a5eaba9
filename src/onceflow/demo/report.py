"""The verdict: a table for people, a document for machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceflow.demo.assignment import Pipeline
from onceflow.demo.drive import Run
from onceflow.demo.faults import Injected, Target
from onceflow.demo.look_around import Kept
from onceflow.demo.proof import Findings
from onceflow.demo.story import TITLES, Outcome


def show(outcome: Outcome, console: Console) -> None:
    """Print the table, the verdict and, if the broker was kept, the way to it."""
    console.print()
    if console.is_terminal:
        console.print(_rich_table(outcome))
    else:
        _print_plain(outcome, console)
    console.print()
    console.print(_verdict(outcome), soft_wrap=True, highlight=False)
    if outcome.kept:
        _print_kept(outcome.kept, console)


def as_document(outcome: Outcome) -> dict[str, Any]:
    """All that was found, as JSON types; money as text, so that no reader makes a float of it."""
    return {
        "proved": outcome.proved,
        "seconds": round(outcome.seconds, 1),
        "events": outcome.events,
        "pipelines": {
            pipeline.value: {**_run_document(outcome.runs[pipeline]), "proof": _proof_document(findings)}
            for pipeline, findings in outcome.findings.items()
        },
        "kept": asdict(outcome.kept) if outcome.kept else None,
    }


# ---------------------------------------------------------------------------------------------------------------- table

_ROWS: tuple[tuple[str, Callable[[Findings], str]], ...] = (
    ("sales lines in the file, cancellations left out", lambda f: f"{f.sales.expected:,}"),
    ("records that a read_committed consumer gets", lambda f: f"{f.sales.read:,}"),
    ("  missing", lambda f: f"{len(f.sales.missing):,}"),
    ("  duplicated", lambda f: f"{len(f.sales.duplicated):,}"),
    ("  unexpected or altered", lambda f: f"{len(f.sales.unexpected):,}"),
    ("  out of order within their key", lambda f: f"{len(f.sales.out_of_order):,}"),
    ("sum in the file", lambda f: _money(f.sales.amount_expected)),
    ("sum of what is read", lambda f: _money(f.sales.amount_read)),
    ("countries whose sum is right to the penny", lambda f: _right(f, len(f.sales.wrong_countries))),
    ("running totals per country, records", lambda f: f"{f.revenue.read:,}"),
    ("  duplicated", lambda f: f"{len(f.revenue.duplicated):,}"),
    ("  unexpected", lambda f: f"{len(f.revenue.unexpected):,}"),
    ("  out of order within their key", lambda f: f"{len(f.revenue.out_of_order):,}"),
    ("countries whose last total is right", lambda f: _right(f, len(f.revenue.wrong_totals))),
    ("offsets left hanging in open transactions", lambda f: f"{f.uncommitted:,}"),
)


def _lines(outcome: Outcome) -> list[tuple[str, list[str]]]:
    """The table's rows: a name, then a cell for each pipeline."""
    runs = [outcome.runs[pipeline] for pipeline in outcome.findings]
    head = [
        ("SIGKILL to the driver", [str(run.count(Target.DRIVER)) for run in runs]),
        ("SIGKILL to the broker", [str(run.count(Target.BROKER)) for run in runs]),
        ("micro-batches", [str(len(run.batches)) for run in runs]),
    ]
    return head + [(name, [cell(findings) for findings in outcome.findings.values()]) for name, cell in _ROWS]


def _rich_table(outcome: Outcome) -> Table:
    table = Table(title="What came out")
    table.add_column("")
    for pipeline in outcome.findings:
        table.add_column(TITLES[pipeline], justify="right")
    for name, cells in _lines(outcome):
        table.add_row(name, *cells)
    return table


def _print_plain(outcome: Outcome, console: Console) -> None:
    heads = [TITLES[pipeline] for pipeline in outcome.findings]
    for name, cells in [("", heads), *_lines(outcome)]:
        row = f"{name:<50}" + "".join(f"{cell:>18}" for cell in cells)
        console.print(row, highlight=False, markup=False, soft_wrap=True)


def _verdict(outcome: Outcome) -> Text:
    theirs = outcome.findings[Pipeline.BUILT_IN].sales
    beside = f"killed at the same places: {len(theirs.duplicated):,} duplicated, {len(theirs.missing):,} missing"
    if outcome.proved:
        head = ("PROVED", "bold green"), "  every sale exactly once, in order, to the penny. "
    else:
        head = ("NOT PROVED", "bold red"), "  exactly-once does not hold; see the table. "
    return Text.assemble(*head, f"Spark's own sink, {beside}. ({outcome.seconds:.0f} s)")


def _print_kept(kept: Kept, console: Console) -> None:
    lines = (
        ("directory", kept.directory),
        ("bootstrap servers", kept.bootstrap_servers),
        ("read a topic", f"{kept.read}  (ends with Ctrl-C)"),
        ("stop the broker", kept.stop),
    )
    console.print()
    for name, text in lines:
        console.print(f"{name + ':':<20}{text}", highlight=False, markup=False, soft_wrap=True)


def _money(amount: Decimal) -> str:
    return f"£{amount:,.2f}"


def _right(findings: Findings, wrong: int) -> str:
    return f"{findings.revenue.countries - wrong} of {findings.revenue.countries}"


# ------------------------------------------------------------------------------------------------------------- document


def _run_document(run: Run) -> dict[str, Any]:
    return {"batches": len(run.batches), "kills": [_kill_document(each) for each in run.injected]}


def _kill_document(injected: Injected) -> dict[str, Any]:
    fault = injected.fault
    return {
        "target": fault.target.value,
        "place": fault.text,
        "step": fault.hold.moment.value,
        "batch": fault.hold.batch,
        "pid": injected.pid,
        "exit_code": injected.exit_code,
        "uncommitted_records": injected.uncommitted,
    }


def _proof_document(findings: Findings) -> dict[str, Any]:
    sales, revenue = findings.sales, findings.revenue
    return {
        "holds": findings.holds,
        "uncommitted_offsets": findings.uncommitted,
        "sales": {
            "expected": sales.expected,
            "read": sales.read,
            "missing": list(sales.missing),
            "duplicated": list(sales.duplicated),
            "unexpected": list(sales.unexpected),
            "out_of_order": list(sales.out_of_order),
            "amount_expected": str(sales.amount_expected),
            "amount_read": str(sales.amount_read),
            "wrong_countries": list(sales.wrong_countries),
        },
        "revenue": {
            "countries": revenue.countries,
            "read": revenue.read,
            "duplicated": list(revenue.duplicated),
            "unexpected": list(revenue.unexpected),
            "out_of_order": list(revenue.out_of_order),
            "wrong_totals": list(revenue.wrong_totals),
        },
    }
