"""Every mistake in the arguments of an ingest at once, also of options that would have no effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceflow.cli.main import app

FILE = ("--file", "a.csv")
LINES = ("--file", "a.jsonl")
PARQUET = ("--file", "a.parquet")
TABLE = ("--table", "t", "--from", "sqlite:///no.db", "--rising", "id")


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(*arguments: str) -> str:
    """What is wrong with them; nothing is started."""
    done = CliRunner().invoke(app, ["ingest", "a", "--topic", "t", "--json", *arguments])
    [line] = done.stdout.splitlines()
    event = json.loads(line)
    assert (done.exit_code, event["code"]) == (2, "CONFIGURATION"), event
    message: str = event["message"]
    return message


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        ((*FILE, "--trust-order"), "--trust-order is for a table, and has no effect on CSV"),
        ((*FILE, "--rising", "id"), "--rising is for a table, and has no effect on CSV"),
        ((*FILE, "--tiebreak", "id"), "--tiebreak is for a table, and has no effect on CSV"),
        ((*FILE, "--delay", "0"), "--delay is for a table, and has no effect on CSV"),
        ((*FILE, "--from", "sqlite:///a.db"), "--from is for a table, and has no effect on CSV"),
        ((*LINES, "--delimiter", ";"), "--delimiter is for CSV, and has no effect on JSON Lines"),
        ((*LINES, "--quoting", "none"), "--quoting is for CSV, and has no effect on JSON Lines"),
        ((*LINES, "--columns", "a"), "--columns is for CSV, and has no effect on JSON Lines"),
        ((*PARQUET, "--finished"), "--finished is for CSV or JSON Lines, and has no effect on Parquet"),
        ((*PARQUET, "--quoting", "csv"), "--quoting is for CSV, and has no effect on Parquet"),
        ((*TABLE, "--format", "csv"), "--format is for CSV or JSON Lines or Parquet, and has no effect on a table"),
        ((*TABLE, "--delimiter", ","), "--delimiter is for CSV, and has no effect on a table"),
        ((*TABLE, "--columns", "a"), "--columns is for CSV, and has no effect on a table"),
        ((*TABLE, "--finished"), "--finished is for CSV or JSON Lines, and has no effect on a table"),
        ((*TABLE, "--delay", "1"), "--delay is for --tiebreak only"),
        ((*TABLE, "--tiebreak", "n", "--trust-order"), "--trust-order has no effect with --tiebreak on SQLite"),
        (
            (*FILE, "--bootstrap-servers", "h:1", "--partitions", "2"),
            "--partitions has no effect with --bootstrap-servers",
        ),
        ((*PARQUET, "--changed", "same"), "--changed same is for tables"),
    ],
)
def test_an_option_without_an_effect_is_a_mistake(arguments: tuple[str, ...], mistake: str) -> None:
    message = said(*arguments)
    assert message.startswith("1 mistake in the arguments:")
    assert mistake in message


def test_all_of_them_are_named_at_once() -> None:
    message = said(*PARQUET, "--finished", "--delimiter", ";", "--trust-order", "--changed", "maybe")
    assert message.startswith("4 mistakes in the arguments:")


def test_where_the_format_is_not_known_only_that_is_said() -> None:
    message = said("--file", "a.txt", "--delimiter", ";", "--finished")
    assert message == "1 mistake in the arguments:\n  - --format is needed: the file names do not tell one"


@pytest.mark.parametrize(
    "name",
    [
        "app.jsonl",
        "app.jsonl.1",
        "app.jsonl.gz",
        "app.jsonl*",
        "app.jsonl.[0-9]",
        "app.jsonl-20261122",
        "app.jsonl-*",
        "app.jsonl-2026*",
        "app.jsonl-[0-9]*",
        "report.csv-export.jsonl",
    ],
)
def test_the_format_is_told_by_the_suffix_wherever_it_stands(name: str) -> None:
    assert "JSON Lines" in said("--file", name, "--delimiter", ";")


def test_names_that_tell_two_delimiters_need_one() -> None:
    assert "--delimiter is needed" in said("--file", "a.csv", "--file", "b.tsv")
    assert "--delimiter is needed" in said("--file", "export/*", "--file", "b.tsv", "--format", "csv")


def test_a_delay_ends() -> None:
    assert "--delay inf is no number of seconds" in said(*TABLE, "--tiebreak", "n", "--delay", "inf")


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (("--file", "."), "'*.csv'"),
        (("--file", "logs"), "'logs/*.csv'"),
        (("--file", "logs/", "--format", "jsonl", "--follow"), "'logs/*.jsonl'"),
        (("--file", "it's", "--format", "parquet"), """'it'"'"'s/*.parquet'"""),
    ],
)
def test_a_directory_is_a_mistake_and_a_pattern_for_its_files_is_told(arguments: tuple[str, ...], pattern: str) -> None:
    Path("logs").mkdir()
    Path("it's").mkdir()
    message = said(*arguments)
    assert message.startswith("1 mistake in the arguments")
    assert f"--file {arguments[1]} is a directory: " in message
    assert message.endswith(f"as --file {pattern}")


def test_a_pattern_may_find_directories_too() -> None:
    Path("a.csv").mkdir()
    assert "is a directory" not in said("--file", "*.csv", "--trust-order")
