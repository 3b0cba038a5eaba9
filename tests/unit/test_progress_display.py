"""What a running pipeline looks like on a terminal, in a log and to a machine."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from onceflow.cli import progress
from onceflow.pipeline.events import (
    BatchCommitted,
    BrokerReady,
    DriverLost,
    Event,
    Finished,
    Note,
    Started,
    Stopping,
    TopicsCreated,
)

BATCH = BatchCommitted(
    batch_id=7, written=True, rows_in=1200, records=1300, malformed=2, duration_ms=150, sink_ms=90
)  # fmt: skip
EVENTS: list[tuple[Event, str]] = [
    (BrokerReady("h:1", "/d", started=True), "embedded broker h:1 started (data in /d)"),
    (BrokerReady("h:1", "/d", started=False), "embedded broker h:1 runs already (data in /d)"),
    (TopicsCreated(("a", "b"), 4), "created a, b with 4 partitions each"),
    (Note("hear"), "note: hear"),
    (Started("p", "exactly_once", "q", "/c", "h:1"), "pipeline p runs exactly once on h:1, checkpoint /c"),
    (BATCH, "batch 7: 1200 rows in, 2 malformed, 1300 records committed, 150 ms"),
    (Stopping("SIGINT"), "SIGINT: ends after the running batch"),
    (Finished("p", 3, 9, "SIGINT"), "pipeline p ended (SIGINT): 3 batches, 9 records"),
]


@pytest.mark.parametrize(("event", "line"), EVENTS)
def test_plain_lines(event: Event, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.told(as_json=False, terminal=False) as tell:
        tell(event)
    assert capsys.readouterr().out == f"{line}\n"


def test_a_batch_that_was_committed_before_says_so() -> None:
    replayed = BatchCommitted(3, written=False, rows_in=5, records=0, malformed=0, duration_ms=9, sink_ms=8)
    assert progress.as_line(replayed) == "batch 3: was committed before, not written again, 9 ms"


@pytest.mark.parametrize("event", [event for event, _ in EVENTS])
def test_json_lines(event: Event, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.told(as_json=True, terminal=True) as tell:
        tell(event)
    document = json.loads(capsys.readouterr().out)
    assert document["event"].replace("_", "") == type(event).__name__.lower()
    assert document["at"].endswith("+00:00")


@pytest.mark.parametrize("text", ["cannot open [/tmp/x]", "see [kafka] and /data/[prod]/x"])
def test_the_terminal_shows_what_is_told_as_it_is(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken for Rich's markup: an exception in the supervisor instead of the takeover, or a text with holes."""
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **options: Console(file=screen, width=100, **options))
    with progress.told(as_json=False, terminal=True) as tell:
        tell(DriverLost(7, text, 0.0))
    assert text in screen.getvalue()


def test_the_terminal_shows_the_last_batches_and_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=screen, force_terminal=True, width=100))
    with progress.told(as_json=False, terminal=True) as tell:
        tell(Started("p", "exactly_once", "q", "/c", "h:1"))
        for number in range(20):
            tell(BatchCommitted(number, True, 1000, 1000, 0, 100, 50))
        tell(Stopping("SIGINT"))
    last = screen.getvalue().rsplit("malformed", 1)[-1]
    assert "pipeline p runs exactly once" in screen.getvalue()
    assert "19" in last
    assert "1,000" in last
    assert "20 batches, 20,000 records" in screen.getvalue()
    assert "Ctrl-C again ends at once" in screen.getvalue()
