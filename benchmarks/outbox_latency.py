"""How soon an outbox's row is an event: ``python benchmarks/outbox_latency.py [--rows 50] [--rounds 3]``.

From the commit of a row until a ``read_committed`` consumer has its event, in an outbox that has rested for a random time
(0.1 to 1.3 s): how the relay hears of it, its transaction in Kafka, the consumer's fetch. PostgreSQL with LISTEN/NOTIFY, and
without, where the relay looks every second; SQLite, where it looks whether the file has changed. The three take turns.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random

import numpy as np
import psycopg
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from outbox import COLUMNS, PARTITIONS, PAYLOAD

sys.path.insert(0, str(Path(__file__).parents[1]))  # the server that the tests start
from tests.postgresql import running_postgresql

from onceflow.broker import EmbeddedBroker
from onceflow.kafka.settings import ClusterSettings
from onceflow.outbox import sql
from onceflow.outbox.service import OutboxService, outbox_at
from onceflow.outbox.waker import Waker

MOST_S = 30.0
Insert = Callable[[str, str], None]
"""Commits a row of this aggregate's type, with this id."""


def values(kind: str, row: str) -> tuple[str, str, str, str, str]:
    return (row, kind, "1", "Changed", PAYLOAD)


@contextmanager
def in_sqlite(directory: Path) -> Iterator[tuple[str, str, Insert]]:
    path = directory / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.executescript(sql.sqlite(sql.TableName.parse("outbox")))

        def insert(kind: str, row: str) -> None:
            connection.execute(f"insert into outbox {COLUMNS} values (?, ?, ?, ?, ?)", values(kind, row))

        yield f"sqlite:///{path}", "outbox", insert


@contextmanager
def in_postgresql(url: str, *, notify: bool) -> Iterator[tuple[str, str, Insert]]:
    table = "outbox_notifies" if notify else "outbox_is_looked_at"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.postgresql(sql.TableName.parse(table), notify=notify).encode())

        def insert(kind: str, row: str) -> None:
            connection.execute(f"insert into {table} {COLUMNS} values (%s, %s, %s, %s, %s)".encode(), values(kind, row))

        yield url, table, insert


class Shop:
    """An outbox with its relay at work, and a consumer of its events."""

    def __init__(self, settings: ClusterSettings, name: str, address: str, table: str, insert: Insert) -> None:
        self.milliseconds: list[float] = []
        self._name = name
        self._random = Random(name)
        self._insert = insert
        self._waker = Waker()
        service = OutboxService(name, outbox_at(address, table), settings, self._waker)
        self._relay = threading.Thread(target=service.run)
        self._relay.start()
        options = {"group.id": name, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        fetching = {"topic.metadata.refresh.interval.ms": 1000, "fetch.wait.max.ms": 10, "log_level": 0}
        self._consumer = Consumer({"bootstrap.servers": settings.bootstrap_servers, **options, **fetching})
        topic, admin = (
            f"outbox.event.{name}",
            AdminClient({"bootstrap.servers": settings.bootstrap_servers, "log_level": 0}),
        )
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(MOST_S)
        self._consumer.subscribe([topic])

    def measure(self, rows: int) -> None:
        for _ in range(rows):
            row = str(uuid.uuid4())
            time.sleep(self._random.uniform(0.1, 1.3))  # right behind an event the relay is still looking
            self._insert(self._name, row)
            began = time.perf_counter()
            message = self._consumer.poll(MOST_S)
            assert message is not None, f"no event of row {row} in {MOST_S} s"
            assert message.error() is None, message.error()
            assert ("id", row.encode()) in (message.headers() or []), message.headers()
            self.milliseconds.append(1000 * (time.perf_counter() - began))

    def close(self) -> None:
        self._waker.wake()
        self._relay.join()
        self._waker.close()
        self._consumer.close()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="onceflow-bench-") as name,
        running_postgresql() as url,
        EmbeddedBroker(Path(name) / "broker", heap_mb=512) as broker,
        ExitStack() as stack,
    ):
        settings = ClusterSettings.of(broker.bootstrap_servers)
        outboxes = {
            "PostgreSQL, NOTIFY": in_postgresql(url, notify=True),
            "PostgreSQL, looked at": in_postgresql(url, notify=False),
            "SQLite": in_sqlite(Path(name)),
        }
        shops = {}
        for number, (label, outbox) in enumerate(outboxes.items()):
            shop = Shop(settings, f"shop-{number}", *stack.enter_context(outbox))
            stack.callback(shop.close)
            shop.measure(10)  # warms up
            shop.milliseconds.clear()
            shops[label] = shop
        for _ in range(arguments.rounds):
            for shop in shops.values():
                shop.measure(arguments.rows)
        table = Table("outbox", "rows", "ms until its event is there: median", "99 %", "most")
        for label, shop in shops.items():
            middle, late = np.percentile(shop.milliseconds, [50, 99])
            table.add_row(
                label, str(len(shop.milliseconds)), f"{middle:.1f}", f"{late:.1f}", f"{max(shop.milliseconds):.1f}"
            )
        Console(width=120).print(table)


if __name__ == "__main__":
    main()
