"""The matrix as files: ``matrix.json``, ``matrix.html``, ``junit.xml``, and a report for each cell in a directory of its name.

In ``junit.xml`` each run is a suite, as in a cell's own; a cell that was not run is an error.

``matrix.json``, version 1. A number that is not known is null.

===================  ==================================================================================================
``version``          1; a later version keeps the meaning of these keys
``exit_status``      0 good, 1 violated, 2 something is not proved
``headline``         the verdict in a few words, and ``sentence`` what it rests on
``messages``         wanted in each cell, and ``seed``
``brokers``          how many; ``spark_workers``: of a Spark cluster, 0 where Spark lives in the driver's process
``engines``          list of titles: those that run in each cell
``cells``            list, one an engine of each cell:
``cell``             its name, and ``how``, ``who``, ``transaction_version``
``engine``           and ``judged``: false for a control
``standing``         "good", "violated", "not judged", "control" or "not run"
``messages``         committed input; ``messages_aborted``; ``copies``: output
``transactions``     committed batches; ``attempts_aborted``: those of them that were aborted before and written again
``bounces``          that came, ``bounces_wanted``, and ``bounces_met``: those that met work
``duplicates``       and ``missing``, ``out_of_order``; ``anomalies``: all that were found, by name
``seconds``          how long it took; ``reasons``: why it proves nothing
``command``          runs it again; ``report``: its page, relative to this file
===================  ==================================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from onceflow.verify.matrix.cells import Cell
from onceflow.verify.matrix.results import Row, sentence, status_of
from onceflow.verify.matrix.settings import BROKERS, Matrix
from onceflow.verify.report import text
from onceflow.verify.report.junit import as_junit
from onceflow.verify.report.summary import HEADLINES, ExitStatus
from onceflow.verify.report.writing import clear as clear_report

VERSION = 1
DOCUMENT, PAGE, JUNIT = "matrix.json", "matrix.html", "junit.xml"
TITLE = "onceflow verify --matrix"
COLUMNS = (
    "cell", "messages", "copies", "transactions", "aborted", "bounces", "duplicates", "missing", "out of order",
    "anomalies", "time", "verdict",
)  # fmt: skip
_CLASSES = {ExitStatus.GOOD: "good", ExitStatus.VIOLATED: "violated", ExitStatus.NOT_JUDGED: "not-judged"}
_ROW_CLASSES = {"good": "good", "violated": "violated", "control": "control"}
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Told:
    """All that a report says."""

    rows: Sequence[Row]
    matrix: Matrix


def clear(directory: Path, cells: Iterable[Cell]) -> None:
    """Makes a directory for the report, without an earlier one, and without those of the cells that are to be run."""
    clear_report(directory)
    for cell in cells:
        clear_report(directory / cell.name)


def remove(directory: Path) -> None:
    """Removes what could be written of one that is not whole."""
    for name in (DOCUMENT, PAGE, JUNIT):
        with suppress(OSError):
            (directory / name).unlink()


def write(told: Told, directory: Path) -> None:
    """Writes them. Called after each cell, so that a matrix that is ended early says how far it came."""
    document = json.dumps(as_document(told), indent=1, allow_nan=False)
    (directory / DOCUMENT).write_text(f"{document}\n", encoding="utf-8")
    (directory / PAGE).write_text(as_page(told), encoding="utf-8")
    results = [row.result for row in told.rows if row.result]
    not_run = [row.cell.name for row in told.rows if not row.result]
    (directory / JUNIT).write_bytes(as_junit(results, TITLE, not_run))


def as_document(told: Told) -> dict[str, Any]:
    """In JSON types; the keys are described above."""
    status = status_of(told.rows)
    return {
        "version": VERSION,
        "exit_status": int(status),
        "headline": HEADLINES[status],
        "sentence": sentence(told.rows),
        "messages": told.matrix.messages,
        "seed": told.matrix.seed,
        "brokers": BROKERS,
        "spark_workers": told.matrix.spark_workers,
        "engines": [engine.title for engine in told.matrix.engines],
        "cells": [_cell(row) for row in told.rows],
    }


def _cell(row: Row) -> dict[str, Any]:
    result = row.result
    return {
        "cell": row.cell.name,
        "how": str(row.cell.how),
        "who": str(row.cell.who),
        "transaction_version": row.cell.version,
        "engine": row.engine,
        "judged": result.judged if result else True,
        "standing": row.standing,
        "messages": row.counted("input records committed"),
        "messages_aborted": row.counted("input records aborted"),
        "copies": row.counted("output records"),
        "transactions": row.counted("batches"),
        "attempts_aborted": row.counted("attempts aborted"),
        "bounces": row.counted("faults"),
        "bounces_wanted": row.bounces,
        "bounces_met": row.counted("faults that met work"),
        "duplicates": row.duplicates,
        "missing": row.missing,
        "out_of_order": row.out_of_order,
        "anomalies": row.anomalies,
        "seconds": result.seconds if result else None,
        "reasons": list(row.reasons),
        "command": result.command if result else "",
        "report": page_of(row),
    }


def page_of(row: Row) -> str:
    """Where a cell's own report is; empty before there is one."""
    return f"{row.cell.name}/report.html" if row.result else ""


def cells_of(row: Row) -> list[str]:
    """A row of the table, in the order of ``COLUMNS``."""
    result = row.result
    return [
        row.cell.name if not result or result.judged else f"{row.cell.name}, {row.engine}",
        _number(row.counted("input records committed")),
        _number(row.counted("output records")),
        _number(row.counted("batches")),
        _number(row.counted("attempts aborted")),
        f"{_number(row.counted('faults'))} of {row.bounces}",
        _number(row.duplicates),
        _number(row.missing),
        _number(row.out_of_order),
        text.listed(row.anomalies) if row.anomalies or not row.reasons else "–",
        text.seconds(result.seconds if result else None),
        row.standing,
    ]


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _about(matrix: Matrix) -> str:
    engines = "; ".join(engine.title for engine in matrix.engines)
    workers = matrix.spark_workers
    spark = f"a Spark cluster of {text.counted(workers, 'worker')}" if workers else "Spark in the driver's process"
    return (
        f"Engine: {engines}. {text.counted(BROKERS, 'broker')}, {spark}. "
        f"Input of {matrix.messages:,} messages in each cell, seed {matrix.seed}."
    )


def as_page(told: Told) -> str:
    """One page without scripts, which leads to the cells' own."""
    status = status_of(told.rows)
    loader = FileSystemLoader([_HERE, Path(text.__file__).parent])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["cut"] = text.cut
    return text.writable(
        environment.get_template("matrix.html.jinja").render(
            title=TITLE,
            status=_CLASSES[status],
            headline=HEADLINES[status],
            sentence=sentence(told.rows),
            about=_about(told.matrix),
            columns=COLUMNS,
            rows=[
                {
                    "cells": cells_of(row),
                    "page": page_of(row),
                    "class": _ROW_CLASSES.get(row.standing, "not-judged"),
                    "reasons": row.reasons,
                    "command": row.result.command if row.result else "",
                }
                for row in told.rows
            ],
        )
    )
