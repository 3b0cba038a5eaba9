"""What a running ingest says on a terminal, in a log and to a machine."""

from __future__ import annotations

import json

import pytest

from onceflow.cli.ingest_display import told
from onceflow.ingest.events import BrokerReady, Committed, Event, Finished, Started

EVENTS: list[Event] = [
    BrokerReady("h:1", "/d", started=True),
    Started("a", "t", resumed=True, size_bytes=9),
    Committed(1000, 7),
    Committed(1, 2),
    Committed(0, 2),
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
    assert names == ["broker_ready", "started", "committed", "committed", "committed", "finished"]
