"""``onceflow verify``: a pipeline under faults, and a judgement that anyone can check."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onceflow.cli.errors import ERROR, out, shown_errors
from onceflow.cli.signals import clean_up_when_interrupted
from onceflow.cli.verify_matrix import check_given, run_cells, usable

if TYPE_CHECKING:
    from rich.console import Console

    from onceflow.verify.report import Report
    from onceflow.verify.result import RunResult
    from onceflow.verify.running.progress import Progress
    from onceflow.verify.running.settings import Settings

    Save = Callable[[Sequence[RunResult]], tuple[Report, list[Path]]]

_SEED = "--seed"
_KEEP = "--keep"
UNJUDGED = 2


def verify(
    context: typer.Context,
    pipeline: Annotated[Path | None, typer.Argument(help="The plan; without one, the built-in workload.")] = None,
    *,
    duration: Annotated[str, typer.Option("--for", help="How long faults are injected, for each engine.")] = "2m",
    rate: Annotated[float, typer.Option(help="Input records a second.")] = 300.0,
    faults: Annotated[str, typer.Option(help="Names or kinds, separated by commas; see --list-faults.")] = "all",
    seed: Annotated[
        int | None, typer.Option(_SEED, min=0, help="The same seed, the same faults. Default: by chance.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="onceflow, executors (they write), supervised (as by run --standbys), spark (its own sink), both."
        ),
    ] = "onceflow",
    brokers: Annotated[int, typer.Option(help="1, or 3: replicated.")] = 1,
    spark_workers: Annotated[
        int | None,
        typer.Option(help="0: Spark in the driver's process; 2: a cluster. Default: 0, and 2 with --matrix."),
    ] = None,
    standbys: Annotated[int, typer.Option(help="Drivers kept warm, as onceflow run --standbys has them; 0 to 5.")] = 1,
    one_by_one: Annotated[
        bool, typer.Option("--one-by-one", help="No faults in a row: each strikes a pipeline that has recovered.")
    ] = False,
    held_to_goals: Annotated[
        bool, typer.Option("--goals", help="A goal of recovery that is missed fails the verification, with 3.")
    ] = False,
    readers: Annotated[
        int, typer.Option(help="Processes of a Reader behind the output, whose effects are judged; 0 to 2.")
    ] = 2,
    transaction_version: Annotated[int, typer.Option(help="Kafka's, 1 or 2.")] = 2,
    inputs: Annotated[list[str] | None, typer.Option("--input", help="TOPIC=FILE: JSON Lines to be written.")] = None,
    outputs: Annotated[list[str] | None, typer.Option("--output", help="A topic that only a topic_expr names.")] = None,
    directory: Annotated[Path, typer.Option("--out", help="Where the report goes.")] = Path("onceflow-verify"),
    as_json: Annotated[
        bool, typer.Option("--json", help="The report as JSON on the standard output; progress on the standard error.")
    ] = False,
    keep: Annotated[
        bool,
        typer.Option(_KEEP, help="Keep checkpoints, logs, the cluster's files, and the history of a good run too."),
    ] = False,
    list_faults: Annotated[bool, typer.Option("--list-faults", help="Show all faults, and exit.")] = False,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Kafka's own transaction matrix instead: a run for each of its cells.")
    ] = False,
    messages: Annotated[int, typer.Option(help="In each cell of the matrix.")] = 100_000,
    cells: Annotated[
        str | None, typer.Option(help="Cells of the matrix, such as hard-brokers-2, separated by commas. Default: all.")
    ] = None,
) -> None:
    """Run a pipeline under faults on a private cluster, and judge what came out of it.

    The pipeline's own cluster and checkpoint are never touched. Exit code 0: nothing is wrong; 1: a guarantee is violated;
    2: the run proves nothing, or a mistake in the arguments; 3, with --goals: exactly once held, and a goal was missed.
    """
    if list_faults:
        _list()
        return
    given = (pipeline, duration, rate, faults, seed, engine, brokers, spark_workers or 0, transaction_version)
    files = directory / "files" if keep else None
    try:
        with clean_up_when_interrupted(), shown_errors(as_json=as_json):
            check_given(context, is_matrix=matrix)
            if matrix:
                status = run_cells(messages, cells, engine, spark_workers, seed, files, directory, as_json=as_json)
            else:
                from onceflow.verify.running.options import Options, settings_of

                options = Options(
                    *given,
                    inputs or (),
                    outputs or (),
                    files,
                    _arguments(sys.argv[2:]),
                    standbys=standbys,
                    readers=readers,
                    one_by_one=one_by_one,
                    held_to_goals=held_to_goals,
                )
                status = _run(settings_of(options), directory, as_json=as_json)
    except typer.Exit as ended:
        # An error is not a violation: the run proves nothing.
        raise typer.Exit(UNJUDGED if ended.exit_code == ERROR else ended.exit_code) from None
    except Exception as error:  # noqa: BLE001  neither is a bug
        from onceflow.verify.checker.streams import say_where

        say_where(error)
        raise typer.Exit(UNJUDGED) from None
    raise typer.Exit(status)


def _run(settings: Settings, directory: Path, *, as_json: bool) -> int:
    from onceflow.cli.shown import console_of, told_json
    from onceflow.verify.checker.streams import say_where
    from onceflow.verify.report import clear, exit_status, show
    from onceflow.verify.running.interrupted import raise_if_interrupted
    from onceflow.verify.running.progress import progress_on
    from onceflow.verify.running.verification import verify_all

    with usable(directory):
        clear(directory)
    save = partial(_saved, directory, of_all=settings.directory is not None)
    console = console_of(as_json=as_json)
    with progress_on(console) as progress:
        results = verify_all(settings, progress, lambda results: _keep(results, save, progress))
    show(results, console)
    status = exit_status(results)
    if status:
        _say(console, f"the same again: {settings.command}")
    try:
        report, kept = save(results)
    except Exception as error:  # noqa: BLE001  a full disk, say: what was found stays found
        raise_if_interrupted(error)
        say_where(error)
        return status or UNJUDGED
    for path in (report.page, *kept, *report.histories):
        _say(console, f"written: {path}")
    return status if not as_json or told_json(report.document) else status or UNJUDGED


def _keep(results: Sequence[RunResult], save: Save, progress: Progress) -> None:
    """Writes what is done before the next run begins, which may be ended."""
    from onceflow.verify.running.interrupted import raise_if_interrupted

    try:
        report, _ = save(results)
    except Exception as error:  # noqa: BLE001  a full disk, say: the next run, and what was found, still count
        raise_if_interrupted(error)
        progress.line(f"what is done could not be written: {error}")
    else:
        progress.line(f"written so far: {report.page}")


def _saved(directory: Path, results: Sequence[RunResult], *, of_all: bool) -> tuple[Report, list[Path]]:
    """The report, and the histories, which are kept also where the report cannot be written; ``of_all`` runs, or of bad ones."""
    from onceflow.verify.report import write_report
    from onceflow.verify.running.verification import keep_histories

    try:
        report = write_report(results, directory)
    finally:
        kept = keep_histories(results, directory, of_all=of_all)
    return report, kept


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _list() -> None:
    from onceflow.verify.faults.catalog import MIXES

    for mix, faults in MIXES.items():
        out(f"{mix}:" if faults else f"{mix}: no faults")
        for name, fault in faults.items():
            needs = f" (needs: {', '.join(fault.needs)})" if fault.needs else ""
            out(f"  {name:<28} {fault.text}{needs}")


def _arguments(given: list[str]) -> list[str]:
    """Those of this command but two: the seed, which is added where the run is to be repeated, and ``--keep``::

    onceflow verify --keep          a violation; the files of the run stay
    the same again, with --keep     is refused, for there are files of an earlier run: one run's are not gone on with
    """
    kept, skip = [], False
    for word in given:
        if not (skip or word in (_SEED, _KEEP) or word.startswith(f"{_SEED}=")):
            kept.append(word)
        skip = word == _SEED
    return kept
