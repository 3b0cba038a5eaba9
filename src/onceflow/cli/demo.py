"""``onceflow demo``: the proof by kill -9, on real data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from onceflow.cli.errors import ERROR, out, shown_errors
from onceflow.cli.signals import clean_up_when_interrupted


def demo(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on the standard output; progress on the standard error.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the broker and the directory, to look around.")] = False,
    directory: Annotated[
        Path | None, typer.Option("--directory", "-d", help="A new or empty directory, instead of a temporary one.")
    ] = None,
) -> None:
    """Kill a pipeline on real data again and again, and prove that every record came out exactly once.

    Exit code 0 only if the proof holds.
    """
    with clean_up_when_interrupted(), shown_errors(as_json=as_json):
        from rich.console import Console

        from onceflow.demo.progress import progress_on
        from onceflow.demo.report import as_document, show
        from onceflow.demo.story import tell

        console = Console(stderr=as_json)
        with progress_on(console) as progress:
            outcome = tell(progress, directory, keep=keep)
        if as_json:
            out(json.dumps(as_document(outcome), ensure_ascii=False, indent=2))
        else:
            show(outcome, console)
        if not outcome.proved:
            raise typer.Exit(ERROR)
