"""The standard streams of the checker's command: any locale carries what is printed, and what cannot be printed is told.

Python ends with status 1 after a traceback, which here would be a verdict, and with 120 where the last of the output is lost.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console

NOTHING_PROVED = 2


class Unwritten(Exception):
    """What was to be written cannot be."""


class ReportConsole(Console):
    """A console on the standard output, which tells where nobody reads that any more, as for JSON ``print`` does.

    ::

        python -m onceflow.verify.checker FILE | head    Rich would end the process with 1, which is a verdict here
    """

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def carry_anything() -> None:
    """A sign that the encoding of a stream does not have is printed as its number."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_json(document: dict[str, Any]) -> None:
    """In the signs of the stream's encoding: the escapes of JSON are read as what they stand for, those of Python are not."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=2)
    print(text)


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Raises Unwritten where what is written inside cannot be: also what lay in the buffer of the standard output."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        raise Unwritten(f"{what} cannot be written: {error.strerror or error}") from error


def guarded(run: Callable[[], int]) -> int:
    """The status that it gives; that of a check that proved nothing, where it fails, whatever the reason is."""
    try:
        return run()
    except KeyboardInterrupt:
        raise
    except Unwritten as error:
        _say(f"nothing is proved: {error}. What to do: make room, or write it elsewhere")
    except BaseException as error:  # noqa: BLE001 - a fault of the checker's is no verdict on the history
        say_where(error)
        _say(
            f"nothing is proved: the checker failed, {type(error).__name__}: {error}. What to do: report it to those who write "
            "onceflow, with the lines above and the history"
        )
    let_go(sys.stdout)
    return NOTHING_PROVED


def _say(text: str) -> None:
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
        return
    let_go(sys.stderr)


def say_where(error: BaseException) -> None:
    """Its traceback on the standard error, if that takes it."""
    _say("".join(traceback.format_exception(error)).rstrip())


def let_go(stream: Any) -> None:
    """What could not be written is not tried again when Python ends, which would change the status."""
    with suppress(OSError, ValueError, AttributeError):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
