"""A running ingest's events: a bar with a rate on a terminal, plain lines elsewhere, JSON lines for machines."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from onceflow.cli.errors import out
from onceflow.ingest.events import BrokerReady, Committed, Event, Finished, Listener, RowsToCome, Started, Waits


@contextmanager
def told(*, as_json: bool) -> Iterator[Listener]:
    """What to call with each event."""
    if as_json:
        yield lambda event: out(_as_json(event))
    elif sys.stdout.isatty():
        with bar() as progress:
            yield Bar(progress).tell
    else:
        yield _lines()


def _as_json(event: Event) -> str:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    return json.dumps({"event": name, "at": at, **asdict(event)})


def _lines() -> Callable[[Event], None]:
    rate = _Rate()

    def tell(event: Event) -> None:
        rate.count(event)
        match event:
            case BrokerReady():
                out(_broker(event))
            case Started():
                out(_beginning(event))
            case Committed(rows, _) if rows:  # else only a position moved
                out(f"{_rows(rows)} committed, {rate.rows:,} in this run, {rate.per_second:,.0f} rows/s")
            case Finished():
                out(_ending(event))

    return tell


def _broker(event: BrokerReady) -> str:
    state = "started" if event.started else "runs already"
    return f"embedded broker {event.bootstrap_servers} {state} (data in {event.directory})"


def goes_on(broker: BrokerReady) -> str:
    """The last word about an embedded broker."""
    command = f"onceflow broker stop --directory {shlex.quote(broker.directory)}"
    return f"the embedded broker goes on running at {broker.bootstrap_servers}; to stop it: {command}"


def _beginning(event: Started) -> str:
    to_come = f", {_about(event.rows_to_come)} to come" if event.rows_to_come else ""
    return f"ingest {event.name} into {event.topic}: {'goes on' if event.resumed else 'begins'}{to_come}"


def _about(rows: RowsToCome) -> str:
    return f"{'about ' if rows.is_estimate else ''}{_rows(rows.count)}"


def _ending(event: Finished) -> str:
    return f"ingest {event.name} ended ({event.reason}): {_rows(event.rows)} in this run"


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


class _Rate:
    """Rows since the start."""

    def __init__(self) -> None:
        self.rows = 0
        self._started = time.monotonic()

    def count(self, event: Event) -> None:
        if isinstance(event, Started):
            self._started = time.monotonic()
        elif isinstance(event, Committed):
            self.rows += event.rows

    @property
    def per_second(self) -> float:
        return self.rows / max(time.monotonic() - self._started, 0.001)


class _Amount(DownloadColumn):
    """How much of how much: bytes of files, rows of a table."""

    def render(self, task: Task) -> Text:
        if task.fields["in_bytes"]:
            return super().render(task)
        total = "?" if task.total is None else f"{task.fields['about']}{task.total:,.0f}"
        return Text(f"{task.completed:,.0f}/{total}", style="progress.download")


def bar(console: Console | None = None) -> Progress:
    """What the bar is drawn in, by whoever tells it something.

    Not by a thread of its own, ten times a second: rich renders under a lock and writes behind it. Such a thread rendered 0 rows,
    the one that tells rendered and wrote 20,000, and then the 0 was written: the bar went back.
    """
    rows = TextColumn("{task.fields[rows]:,} rows, {task.fields[rate]:,.0f}/s")
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        _Amount(),
        rows,
        TimeRemainingColumn(),
        console=console,
        auto_refresh=False,
    )


class Bar:
    """Counts what is committed, not what is read.

    More may come than there was in the beginning: never more is done than there is. And there may be fewer rows, where it was an
    estimate, or some were deleted: once nothing is left all of it is done.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._in_bytes = True
        self._total: int | None = None
        self._done = 0
        self._task = progress.add_task("reading", total=None, rows=0, rate=0.0, in_bytes=True, about="")
        self._rate = _Rate()

    def tell(self, event: Event) -> None:
        """Shows an event."""
        self._rate.count(event)
        match event:
            case BrokerReady():
                self._progress.console.print(_broker(event))
            case Started():
                self._progress.console.print(_beginning(event))
                self._begin(event)
            case Committed():
                self._go_on(event.size_bytes if self._in_bytes else event.rows)
            case Waits():
                self._nothing_left()
            case Finished():
                if event.reason == "end":
                    self._nothing_left()
                self._progress.console.print(_ending(event))
        self._progress.refresh()

    def _begin(self, event: Started) -> None:
        """Of neither files nor rows that could be counted there is no total, but still a number of rows."""
        self._in_bytes, about = event.size_bytes is not None, ""
        self._total = event.size_bytes
        if event.rows_to_come is not None:
            self._total, about = event.rows_to_come.count, "about " if event.rows_to_come.is_estimate else ""
        self._progress.update(
            self._task, description=event.topic, total=self._total, in_bytes=self._in_bytes, about=about
        )

    def _go_on(self, amount: int) -> None:
        self._done += amount
        if self._total is not None:
            self._total = max(self._total, self._done)
        rows, rate = self._rate.rows, self._rate.per_second
        self._progress.update(self._task, completed=self._done, total=self._total, rows=rows, rate=rate)

    def _nothing_left(self) -> None:
        if not self._in_bytes:
            self._total = self._done
            self._progress.update(self._task, total=self._total, about="")
