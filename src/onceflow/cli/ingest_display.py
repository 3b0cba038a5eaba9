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

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from onceflow.cli.errors import out
from onceflow.ingest.events import BrokerReady, Committed, Event, Finished, Listener, Started


@contextmanager
def told(*, as_json: bool) -> Iterator[Listener]:
    """What to call with each event."""
    if as_json:
        yield lambda event: out(_as_json(event))
    elif sys.stdout.isatty():
        with _bar() as progress:
            yield _Bar(progress).tell
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
    return f"ingest {event.name} into {event.topic}: {'goes on' if event.resumed else 'begins'}"


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


def _bar() -> Progress:
    rows = TextColumn("{task.fields[rows]:,} rows, {task.fields[rate]:,.0f}/s")
    return Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), rows, TimeRemainingColumn())


class _Bar:
    """Counts what is committed, not what is read."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("reading", total=None, rows=0, rate=0.0)
        self._rate = _Rate()

    def tell(self, event: Event) -> None:
        """Shows an event."""
        self._rate.count(event)
        match event:
            case BrokerReady():
                self._progress.console.print(_broker(event))
            case Started():
                self._progress.console.print(_beginning(event))
                self._progress.update(self._task, description=event.topic, total=event.size_bytes)
            case Committed(_, size_bytes):
                rows, rate = self._rate.rows, self._rate.per_second
                self._progress.update(self._task, advance=size_bytes, rows=rows, rate=rate)
            case Finished():
                self._progress.console.print(_ending(event))
