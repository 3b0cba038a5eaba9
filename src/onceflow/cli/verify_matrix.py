"""``onceflow verify --matrix``: Kafka's own transaction matrix, cell by cell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

_OF_THE_MATRIX = ("messages", "cells")
_MEASURED = ("held_to_goals",)  # in recoveries, of which a cell has none of its own
_OF_BOTH = ("directory", "as_json", "keep", "seed", "engine", "spark_workers", "matrix")


def check_given(context: typer.Context, *, is_matrix: bool) -> None:
    """Raises ConfigurationError if arguments are given that do not go with the matrix, or only with it."""
    from onceflow.errors import ConfigurationError

    mistakes = []
    for parameter in context.command.params:
        name = parameter.name or ""
        shown = parameter.opts[0] if parameter.param_type_name == "option" else name.upper()
        if not _is_given(context, name) or name in _OF_BOTH:
            continue
        if is_matrix and name in _MEASURED:
            mistakes.append(f"{shown}: the matrix measures no recovery, leave it out with --matrix")
        elif is_matrix and name not in _OF_THE_MATRIX:
            mistakes.append(f"{shown}: the matrix has its own, leave it out with --matrix")
        elif not is_matrix and name in _OF_THE_MATRIX:
            mistakes.append(f"{shown}: only with --matrix")
    if mistakes:
        raise ConfigurationError.of("what is to be verified", mistakes)


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether the command line has it. By the source's name, for typer may bring a click of its own."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def check_usable(directory: Path) -> None:
    """Raises ConfigurationError where no report could be written there."""
    from onceflow.errors import ConfigurationError
    from onceflow.verify.directories import unusable

    if reason := unusable(directory):
        raise ConfigurationError.of("what is to be verified", [f"--out {directory}: {reason}"])


@contextmanager
def usable(directory: Path) -> Iterator[None]:
    """What cannot be done in the directory for the report is a mistake in the arguments."""
    from onceflow.errors import ConfigurationError

    check_usable(directory)
    try:
        yield
    except OSError as error:
        raise ConfigurationError.of("what is to be verified", [f"--out {directory}: {error.strerror}"]) from None


def run_cells(
    messages: int,
    cells: str | None,
    engine: str,
    spark_workers: int | None,
    seed: int | None,
    files: Path | None,
    directory: Path,
    *,
    as_json: bool,
) -> int:
    """Runs the cells, shows and writes what they gave; the exit status."""
    from onceflow.cli.shown import console_of, told_json
    from onceflow.verify.matrix import report
    from onceflow.verify.matrix.results import status_of
    from onceflow.verify.matrix.running import run_matrix
    from onceflow.verify.matrix.settings import WORKERS, MatrixOptions, matrix_of
    from onceflow.verify.matrix.terminal import show
    from onceflow.verify.report.summary import ExitStatus
    from onceflow.verify.running.progress import progress_on

    names = None if cells is None else [name.strip() for name in cells.split(",") if name.strip()]
    workers = WORKERS if spark_workers is None else spark_workers
    arguments = ["--matrix", "--messages", str(messages), "--spark-workers", str(workers)]
    arguments += ["--engine", engine] if engine != "onceflow" else []
    matrix = matrix_of(MatrixOptions(messages, names, engine, workers, seed, files, arguments))
    check_usable(directory)
    for cell in matrix.settings:
        check_usable(directory / cell.name)
    with usable(directory):
        report.clear(directory, matrix.settings)
    console = console_of(as_json=as_json)
    with progress_on(console) as progress:
        rows = run_matrix(matrix, directory, progress)
    show(rows, console)
    if (directory / report.PAGE).exists():
        console.print(f"written: {directory / report.PAGE}", markup=False, highlight=False, soft_wrap=True)
    status = int(status_of(rows))
    return status if not as_json or told_json(directory / report.DOCUMENT) else status or ExitStatus.NOT_JUDGED
