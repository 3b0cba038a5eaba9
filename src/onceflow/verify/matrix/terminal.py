"""The matrix on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceflow.verify.matrix.report import COLUMNS, cells_of
from onceflow.verify.matrix.results import Row, sentence, status_of
from onceflow.verify.report.summary import HEADLINES
from onceflow.verify.report.terminal import STYLES

_LEAST_WIDTH = 160  # columns of which nobody can read a word help less than lines that are broken
_COLOURS = {"good": "green", "violated": "bold red", "not judged": "bold yellow", "not run": "bold yellow"}


def show(rows: Sequence[Row], console: Console) -> None:
    """Prints one line a cell, why cells prove nothing, and the verdict last."""
    table = Table(title="Kafka's transaction matrix", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in (COLUMNS[0], COLUMNS[-1]) else "right")
    for row in rows:
        cells = [Text(cell) for cell in cells_of(row)]
        cells[-1].stylize(_COLOURS.get(row.standing, "default"))
        table.add_row(*cells)
    narrow, console.width = console.width, max(console.width, _LEAST_WIDTH)
    console.print(table)
    console.width = narrow
    for row in rows:
        for reason in row.reasons if row.result else ():
            console.print(f"{row.cell.name} proves nothing: {reason}", style="bold yellow", markup=False)
    status = status_of(rows)
    console.print(
        Text.assemble((f"{HEADLINES[status]}.", STYLES[status]), f" {sentence(rows)}"), soft_wrap=True, highlight=False
    )
