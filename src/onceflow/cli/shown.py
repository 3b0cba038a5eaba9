"""A console for a command that runs for long, and whose exit status says something: what cannot be shown ends nothing.

::

    onceflow verify | head      nobody reads any more; Rich ends the process with 1, which says here that something is violated
    a supervisor's thread       has the first note that cannot be written: it dies of that, and no driver is started again
    a terminal that is closed   every line fails, those too that are told while everything is cleaned up
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console

from onceflow.cli.errors import out
from onceflow.verify.checker.streams import carry_anything, let_go, say_where


class Heedless:
    """A stream of text. Once something cannot be written, nothing is any more, and nobody hears of that."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._heedless():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._heedless():
            self._stream.flush()

    @contextmanager
    def _heedless(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # ValueError: it is closed
            let_go(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def told_json(document: Path) -> bool:
    """Prints a document that was written. False where that cannot be: whoever reads it has less than all of it."""
    try:
        out(document.read_text(encoding="utf-8").rstrip())
    except OSError as error:
        say_where(error)
        let_go(sys.stdout)
        return False
    return True


def console_of(*, as_json: bool) -> Console:
    """On the standard output, or on the standard error where the other one is for JSON. Any locale carries what is shown."""
    carry_anything()
    stream = sys.stderr if as_json else sys.stdout
    return Console(stderr=as_json) if stream is None else Console(file=cast("IO[str]", Heedless(stream)))
