"""All cells, one after the other; what each gave is written before the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from onceflow.verify.matrix import report
from onceflow.verify.matrix.cells import Cell
from onceflow.verify.matrix.results import Row, complete, unwritten
from onceflow.verify.matrix.settings import Matrix, bounces_of
from onceflow.verify.report import write_report
from onceflow.verify.result import RunResult
from onceflow.verify.running.interrupted import raise_if_interrupted
from onceflow.verify.running.progress import Progress
from onceflow.verify.running.settings import Settings
from onceflow.verify.running.verification import keep_histories, verify_all

VerifyAll = Callable[[Settings, Progress], list[RunResult]]


def run_matrix(matrix: Matrix, directory: Path, progress: Progress, run: VerifyAll = verify_all) -> list[Row]:
    """Runs the cells; the rows of all of them. The report in ``directory``, which exists, is complete after each cell.

    A report that cannot be written takes nothing from what was found, and the other cells are run.
    """
    rows = {cell: [_row(matrix, cell)] for cell in matrix.settings}
    for number, (cell, settings) in enumerate(matrix.settings.items(), 1):
        _report(matrix, rows, directory, progress)
        progress.line(f"cell {number} of {len(matrix.settings)}: {cell.name}: {cell.text}")
        results = run(settings, progress)
        rows[cell] = [complete(_row(matrix, cell, result)) for result in results]
        try:
            _write_cell(rows[cell], directory / cell.name, keeps=settings.directory is not None)
        except Exception as error:  # noqa: BLE001  a full disk, say, or a mistake in the report
            raise_if_interrupted(error)
            rows[cell] = [unwritten(row, error) for row in rows[cell]]
        progress.line(f"{cell.name}: {', '.join(row.standing for row in rows[cell])}")
    lost = _report(matrix, rows, directory, progress)
    return [unwritten(row, lost) if lost else row for row in _all(rows)]


def _report(matrix: Matrix, rows: dict[Cell, list[Row]], directory: Path, progress: Progress) -> Exception | None:
    """Writes what is known so far; why that cannot be."""
    try:
        report.write(report.Told(list(_all(rows)), matrix), directory)
    except Exception as error:  # noqa: BLE001  as above
        raise_if_interrupted(error)
        report.remove(directory)
        progress.line(f"the report cannot be written: {error}")
        return error
    return None


def _row(matrix: Matrix, cell: Cell, result: RunResult | None = None) -> Row:
    return Row(cell, matrix.messages, len(bounces_of(cell)), result)


def _write_cell(rows: list[Row], directory: Path, *, keeps: bool) -> None:
    results = [row.result for row in rows if row.result]
    try:
        write_report(results, directory, f"onceflow verify --matrix: {rows[0].cell.text}")
    finally:
        keep_histories(results, directory, of_all=keeps)


def _all(rows: dict[Cell, list[Row]]) -> Iterator[Row]:
    for some in rows.values():
        yield from some
