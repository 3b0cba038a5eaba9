"""How errors are shown, and the exit code each gives."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from onceflow.cli.entry import INTERRUPTED
from onceflow.errors import ConfigurationError, OnceflowError

ERROR, USAGE = 1, 2


@contextmanager
def shown_errors(*, as_json: bool = False, apart: bool = False) -> Iterator[None]:
    """Prints an OnceflowError on the standard error and exits; anything else is a bug and keeps its traceback.

    As JSON it is the last object on the standard output, which tells of the command; unless it stands ``apart``, on the standard
    error, for on the other one stands what is in a topic, and whoever takes that from there would take it for a record.
    """
    try:
        yield
    except OnceflowError as error:
        _show(error, as_json=as_json, apart=apart)
        raise typer.Exit(USAGE if isinstance(error, ConfigurationError) else ERROR) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _show(error: OnceflowError, *, as_json: bool, apart: bool) -> None:
    if as_json:
        fields = {"event": "error", "code": error.code, "retriable": error.retriable, "message": error.message}
        print(json.dumps({**fields, "action": error.action}), flush=True, file=sys.stderr if apart else sys.stdout)
        return
    text = Text.assemble((f"error {error.code}", "bold red"), f"  {error.message}")
    if error.action:
        text.append("\nwhat to do: ", style="bold").append(error.action)
    Console(stderr=True, soft_wrap=True, highlight=False).print(text)


def out(text: str) -> None:
    """One line on the standard output, there at once."""
    print(text, flush=True, file=sys.stdout)
