"""How fast an outbox is relayed into topics: ``python benchmarks/outbox.py [--rows 200000] [--rounds 3]``.

The relay as ``onceflow outbox relay --once`` runs it, on tables of PostgreSQL and SQLite that its own SQL has made, filled before
the clock starts: batches of rows are taken, committed in Kafka with the position, and deleted. Broker and databases are real, on
the same machine. ``a core`` counts the processor time of the relaying process alone (SQLite works inside of it, PostgreSQL is a
server of its own); ``wall`` is what a user sees. One process. The databases take turns in each round.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
from harness import Series

sys.path.insert(0, str(Path(__file__).parents[1]))  # the server that the tests start
from tests.postgresql import running_postgresql

from onceflow.broker import EmbeddedBroker
from onceflow.kafka.settings import ClusterSettings
from onceflow.outbox import sql
from onceflow.outbox.service import OutboxService, outbox_at
from onceflow.outbox.waker import Waker

AGGREGATES = 1000
PARTITIONS = 4
KIND = "bench"
PAYLOAD = '{"total": 30, "text": "' + "x" * 77 + '"}'  # 100 bytes
COLUMNS = "(id, aggregatetype, aggregateid, type, payload)"

Fill = Callable[[int, int], tuple[str, str]]
"""Makes a table for a round, with so many rows; its address and name."""


def events(rows: int) -> Iterator[tuple[str, str, str, str, str]]:
    return ((str(uuid.uuid4()), KIND, str(row % AGGREGATES), "Changed", PAYLOAD) for row in range(rows))


def in_sqlite(directory: Path) -> Fill:
    def fill(number: int, rows: int) -> tuple[str, str]:
        path = directory / f"shop-{number}.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("pragma journal_mode = wal")
            connection.executescript(sql.sqlite(sql.TableName.parse("outbox")))
            connection.executemany(f"insert into outbox {COLUMNS} values (?, ?, ?, ?, ?)", events(rows))
            connection.commit()
        return f"sqlite:///{path}", "outbox"

    return fill


def in_postgresql(url: str) -> Fill:
    def fill(number: int, rows: int) -> tuple[str, str]:
        name = f"outbox_{number}"
        with psycopg.connect(url) as connection:
            connection.execute(sql.postgresql(sql.TableName.parse(name)).encode())
            with connection.cursor() as cursor, cursor.copy(f"copy {name} {COLUMNS} from stdin".encode()) as copy:
                for event in events(rows):
                    copy.write_row(event)
        return url, name

    return fill


def measure(settings: ClusterSettings, name: str, address: str, table: str) -> tuple[int, float, float]:
    """Rows, seconds of the processor (of this process) and of the clock."""
    with Waker() as waker:
        service = OutboxService(name, outbox_at(address, table), settings, waker, create_partitions=PARTITIONS)
        started, cpu = time.perf_counter(), time.process_time()
        service.once()
        return service.sent, time.process_time() - cpu, time.perf_counter() - started


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="onceflow-bench-") as name,
        running_postgresql() as url,
        EmbeddedBroker(Path(name) / "broker", heap_mb=1024) as broker,
    ):
        settings = ClusterSettings.of(broker.bootstrap_servers)
        databases = {"postgresql": in_postgresql(url), "sqlite": in_sqlite(Path(name))}
        core, wall = ({label: Series() for label in databases} for _ in range(2))
        for number in range(arguments.rounds + 1):
            for label, fill in databases.items():
                rows = arguments.rows if number else min(arguments.rows, 4000)  # the first round warms up
                sent, cpu_s, wall_s = measure(settings, f"{label}-{number}", *fill(number, rows))
                assert sent == rows
                if number:
                    core[label].add(sent / cpu_s)
                    wall[label].add(sent / wall_s)
        print(f"{'':<22}{'rows':>10}  {'rows/s a core (range)':<34}rows/s wall (range)")
        for label in databases:
            print(f"{label:<22}{arguments.rows:>10,}  {core[label].text():<34}{wall[label].text()}", flush=True)


if __name__ == "__main__":
    main()
