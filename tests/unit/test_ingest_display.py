"""What a running ingest says on a terminal, in a log and to a machine."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from io import StringIO

import pytest
from rich.console import Console

from onceflow.cli.ingest_display import Bar, bar, told
from onceflow.ingest.events import BrokerReady, Committed, Event, Finished, RowsToCome, Started, Waits

EVENTS: list[Event] = [
    BrokerReady("h:1", "/d", started=True),
    Started("a", "t", resumed=True, size_bytes=9, rows_to_come=None),
    Committed(1000, 7),
    Committed(1, 2),
    Committed(0, 2),
    Waits(),
    Finished("a", 1001, "end"),
]


def test_plain_lines_count_this_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of earlier runs are not known: positions of tables count none, and those of files blank lines too."""
    with told(as_json=False) as tell:
        for event in EVENTS:
            tell(event)
    broker, beginning, _, second, ending = capsys.readouterr().out.splitlines()
    assert broker == "embedded broker h:1 started (data in /d)"
    assert beginning == "ingest a into t: goes on"
    assert second.startswith("1 row committed, 1,001 in this run, ")
    assert ending == "ingest a ended (end): 1,001 rows in this run"


def test_lines_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    with told(as_json=True) as tell:
        for event in EVENTS:
            tell(event)
    names = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert names == ["broker_ready", "started", "committed", "committed", "committed", "waits", "finished"]


@pytest.mark.parametrize(
    ("rows_to_come", "said"),
    [(RowsToCome(1), ", 1 row to come"), (RowsToCome(2000, is_estimate=True), ", about 2,000 rows to come")],
)
def test_what_is_to_come_of_a_table_is_said(
    capsys: pytest.CaptureFixture[str], rows_to_come: RowsToCome, said: str
) -> None:
    started = Started("a", "t", resumed=False, size_bytes=None, rows_to_come=rows_to_come)
    for as_json in (False, True):
        with told(as_json=as_json) as tell:
            tell(started)
    line, for_machines = capsys.readouterr().out.splitlines()
    assert line == f"ingest a into t: begins{said}"
    assert json.loads(for_machines)["rows_to_come"] == asdict(rows_to_come)


@pytest.mark.parametrize("rows_to_come", [RowsToCome(3), RowsToCome(30, is_estimate=True), None])
def test_never_more_is_done_of_a_table_than_there_is(rows_to_come: RowsToCome | None) -> None:
    """Rows come while it is read and followed, and an estimate may be wrong in both directions."""
    console = Console(file=StringIO(), force_terminal=True, width=160)
    with bar(console) as progress:
        display = Bar(progress)
        [task] = progress.tasks
        display.tell(Started("a", "t", resumed=False, size_bytes=None, rows_to_come=rows_to_come))
        assert task.total == (rows_to_come.count if rows_to_come else None)
        for event, done, is_all in ((Committed(5, 0), 5, False), (Waits(), 5, True), (Committed(2, 0), 7, True)):
            display.tell(event)
            assert (task.completed, task.fields["rows"]) == (done, done)
            assert task.total is None or task.total >= done
            assert task.total == done or not is_all
        display.tell(Finished("a", 7, "stopped"))
        assert task.percentage == 100


def test_the_bar_is_drawn_at_each_event_and_by_nobody_else() -> None:
    """A second thread that draws may write what it rendered before the last event, and the bar goes back."""
    written, others = StringIO(), set(threading.enumerate())
    with bar(Console(file=written, force_terminal=True, no_color=True, width=160)) as progress:
        display = Bar(progress)
        display.tell(Started("a", "t", resumed=False, size_bytes=9, rows_to_come=None))
        for event, shown in ((Committed(3, 4), "4/9 bytes 3 rows"), (Committed(5, 5), "9/9 bytes 8 rows")):
            assert shown not in written.getvalue()
            display.tell(event)
            assert shown in written.getvalue()
        assert set(threading.enumerate()) <= others
