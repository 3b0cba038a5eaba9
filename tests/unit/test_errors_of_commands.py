"""Where a command tells an error as JSON: as its last event, or apart from the data that it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceflow.cli.main import app


@pytest.mark.parametrize("command", [["read", "sales"], ["broker", "read", "sales"]])
def test_among_the_events_of_a_topic_no_error_is_told(command: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*command, "--json", "--directory", str(tmp_path)])
    error = json.loads(done.stderr)
    assert (done.exit_code, done.stdout, error["event"]) == (1, "", "error")
    assert {"code", "retriable", "message", "action"} < error.keys()


@pytest.mark.parametrize(
    "command",
    [["run", "absent.toml"], ["ingest", "sales", "--topic", "sales"], ["outbox", "relay", "no name", "--from", "x"]],
)
def test_to_the_events_of_a_command_belongs_its_error(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--json"])
    assert (done.exit_code, done.stderr) == (2, "")
    assert json.loads(done.stdout)["event"] == "error"
