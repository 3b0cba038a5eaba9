"""What ``onceflow ingest`` shows while it runs: a bar on a terminal, and none of it elsewhere."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onceflow.broker import EmbeddedBroker

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

ROWS = 20_000
LATER_ROWS = 5_000
TIMEOUT_S = 120.0
STATE = re.compile(r"(\d+(?:\.\d)?)/(\d+(?:\.\d)?) (kB|MB) +([\d,]+) rows, ([\d,]+)/s")
ROWS_STATE = re.compile(r"([\d,]+)/(about )?([\d,]+) +([\d,]+) rows, ([\d,]+)/s")
BAR, BAR_WIDTH = "━", 40


class Runs:
    """Starts of the command on one file, or on one table, which grows."""

    def __init__(self, broker: EmbeddedBroker, topic: str, directory: Path, *source: str) -> None:
        self._directory = directory
        servers = ("--bootstrap-servers", broker.bootstrap_servers)
        arguments = (f"shown-{topic}", "--topic", topic, *(source or ("--file", "a.jsonl")), *servers)
        self.name, self.topic = arguments[0], topic
        self._command = [sys.executable, "-m", "onceflow.cli", "ingest", *arguments]
        self._written = 0

    def write(self, count: int) -> None:
        with (self._directory / "a.jsonl").open("a") as file:
            file.writelines(f'{{"n":{self._written + row}}}\n' for row in range(count))
        self._written += count

    def insert(self, count: int) -> None:
        """Into the table; a row of each hundred is gone again."""
        with closing(sqlite3.connect(self._directory / "shop.db")) as shop:
            shop.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER NOT NULL)")
            shop.executemany("INSERT INTO orders (n) VALUES (?)", ((row,) for row in range(count)))
            shop.execute("DELETE FROM orders WHERE id % 100 = 50")
            shop.commit()

    def on_terminal(self) -> str:
        """All that it wrote to a terminal, without the codes that move the cursor. Without colours only what is full is drawn."""
        ours, theirs = os.openpty()
        environment = {**os.environ, "COLUMNS": "160", "TERM": "xterm", "NO_COLOR": "1"}
        with subprocess.Popen(
            self._command, cwd=self._directory, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        ) as process:
            os.close(theirs)
            written = b"".join(iter(lambda: read_terminal(ours), b""))
            os.close(ours)
            assert process.wait(TIMEOUT_S) == 0, written.decode()
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())

    def on_pipes(self) -> tuple[str, str]:
        done = subprocess.run(
            self._command, cwd=self._directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
        return done.stdout, done.stderr


def read_terminal(descriptor: int) -> bytes:
    """Nothing more when the last process has closed it."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


@pytest.fixture
def runs(broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path) -> Runs:
    return Runs(broker, topic(), tmp_path)


def test_on_a_terminal_a_bar_shows_rows_and_rate_and_is_full_at_the_end(runs: Runs) -> None:
    """Also where a run goes on behind an earlier one: the bar is of what was left to read."""
    for first, count, said in ((0, ROWS, "begins"), (ROWS, 5_000, "goes on")):
        runs.write(count)
        shown = runs.on_terminal()
        assert f"ingest {runs.name} into {runs.topic}: {said}" in shown
        assert f"ended (end): {count:,} rows in this run" in shown
        states = [
            (done, total, int(rows.replace(",", "")), rate) for done, total, _, rows, rate in STATE.findall(shown)
        ]
        rows = [each[2] for each in states]
        assert rows == sorted(rows), "it never goes back"
        done, total, last, rate = states[-1]
        assert (done, last) == (total, count), f"behind {first} rows: {states[-1]}"
        assert rate != "0"
        line = next(line for line in reversed(re.split(r"[\r\n]+", shown)) if BAR in line)
        assert line.startswith(runs.topic)
        assert line.count(BAR) == BAR_WIDTH, "it is full"


def test_a_bar_of_a_table_has_a_total_too(broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path) -> None:
    """Of many rows about how many there are, and in the end how many there were; of few rows the number."""
    table = ("--from", "sqlite:///shop.db", "--table", "orders", "--rising", "id")
    runs = Runs(broker, topic(), tmp_path, *table)
    for count, about, expected in ((ROWS, "about ", ROWS), (LATER_ROWS, "", LATER_ROWS * 99 // 100)):
        runs.insert(count)
        left = count * 99 // 100
        shown = runs.on_terminal()
        assert f"{about}{expected:,} rows to come" in shown
        states = ROWS_STATE.findall(shown)
        assert ("0", about, f"{expected:,}") in {state[:3] for state in states}
        done, *total, rows, rate = states[-1]
        assert (done, total, rows) == (f"{left:,}", ["", f"{left:,}"], f"{left:,}"), states[-1]
        assert rate != "0"
        line = next(line for line in reversed(re.split(r"[\r\n]+", shown)) if BAR in line)
        assert line.count(BAR) == BAR_WIDTH, "it is full"
        assert "100%" in line


def test_elsewhere_there_are_plain_lines(runs: Runs) -> None:
    runs.write(ROWS)
    written, errors = runs.on_pipes()
    assert errors == ""
    first, *committed, last = written.splitlines()
    assert first == f"ingest {runs.name} into {runs.topic}: begins"
    assert last == f"ingest {runs.name} ended (end): {ROWS:,} rows in this run"
    assert committed
    assert all(re.fullmatch(r"[\d,]+ rows committed, [\d,]+ in this run, [\d,]+ rows/s", line) for line in committed)
    assert f" {ROWS:,} in this run" in committed[-1]
    assert not re.search(rf"[\x1b\r{BAR}]", written)
