"""A running pipeline's events: a table on a terminal, plain lines elsewhere, JSON lines for machines."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from onceflow.cli.errors import out

if TYPE_CHECKING:
    from onceflow.pipeline.events import BatchCommitted, DriverLost, Event, StandbyReady, TookOver

ROWS = 12
FORCE = "Ctrl-C again ends at once; the next start then finishes or repeats what was open"


@contextmanager
def told(*, as_json: bool, terminal: bool) -> Iterator[Callable[[Event], None]]:
    """What to call with each event."""
    if as_json:
        yield lambda event: out(as_json_line(event))
    elif terminal:
        with _Screen() as screen:
            yield screen.tell
    else:
        yield lambda event: out(as_line(event))


def as_json_line(event: Event) -> str:
    """One JSON object: the event's name in ``event``, the time in ``at``, and its fields."""
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(event).__name__).lstrip("_")
    return json.dumps({"event": name, "at": datetime.now(UTC).isoformat(timespec="milliseconds"), **asdict(event)})


def as_line(event: Event) -> str:
    """One line of text, without a time."""
    from onceflow.pipeline import events as e

    match event:
        case e.BrokerReady(servers, directory, started):
            return f"embedded broker {servers} {'started' if started else 'runs already'} (data in {directory})"
        case e.TopicsCreated(topics, partitions):
            return f"created {', '.join(topics)} with {partitions} partitions each"
        case e.Note(text):
            return f"note: {text}"
        case e.Started(name, guarantee, _, checkpoint, servers):
            return f"pipeline {name} runs {guarantee.replace('_', ' ')} on {servers}, checkpoint {checkpoint}"
        case e.BatchCommitted():
            return f"batch {event.batch_id}: {_outcome(event)}"
        case e.Stopping(reason):
            return f"{reason}: ends after the running batch"
        case e.StandbyReady() | e.DriverLost() | e.TookOver():
            return _as_takeover_line(event)
        case e.Finished(name, batches, records, reason):
            return f"pipeline {name} ended ({reason}): {batches} batches, {records} records"


def _as_takeover_line(event: StandbyReady | DriverLost | TookOver) -> str:
    from onceflow.pipeline import events as e

    match event:
        case e.StandbyReady(pid):
            return f"standby ready (process {pid})"
        case e.DriverLost(pid, reason, pause_s):
            return f"driver (process {pid}) {reason}; another one takes over{f' in {pause_s:.0f} s' if pause_s else ''}"
        case e.TookOver(pid, seconds):
            return f"process {pid} took over: a batch is committed {seconds:.1f} s after the loss of the driver before"


def _outcome(batch: BatchCommitted) -> str:
    if not batch.written:
        return f"was committed before, not written again, {batch.duration_ms} ms"
    malformed = f", {batch.malformed} malformed" if batch.malformed else ""
    return f"{batch.rows_in} rows in{malformed}, {batch.records} records committed, {batch.duration_ms} ms"


class _Screen:
    """A table of the last batches that is drawn over and over, below the lines that stay."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False)
        self._batches: deque[BatchCommitted] = deque(maxlen=ROWS)
        self._records = 0
        self._count = 0
        self._footer = ""

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.__exit__(None, None, None)

    def tell(self, event: Event) -> None:
        """Shows an event."""
        from onceflow.pipeline.events import BatchCommitted, Started, Stopping

        if isinstance(event, BatchCommitted):
            self._footer = ""
            self._batches.append(event)
            self._count += 1
            self._records += event.records
        elif isinstance(event, Stopping):
            self._footer = f"{as_line(event)} ({FORCE})"
        else:
            self._footer = "waiting for data" if isinstance(event, Started) else ""
            self._live.console.print(Text(as_line(event)))
        self._live.update(self._drawn(), refresh=True)

    def _drawn(self) -> Group:
        if not self._count:
            return Group(Text(self._footer, style="dim"))
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("batch", "rows in", "malformed", "records", "ms"):
            table.add_column(column, justify="right")
        table.add_column("")
        for batch in self._batches:
            numbers = (batch.batch_id, batch.rows_in, batch.malformed, batch.records, batch.duration_ms)
            outcome = (
                Text("committed", style="green") if batch.written else Text("was committed before", style="yellow")
            )
            table.add_row(*(f"{number:,}" for number in numbers), outcome)
        footer = f"{self._count:,} batches, {self._records:,} records"
        return Group(table, Text(" · ".join(filter(None, (footer, self._footer))), style="dim"))
