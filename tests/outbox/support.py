"""An outbox in one of the databases, as a service and a judge see it."""

from __future__ import annotations

import itertools
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import psycopg
from tests.faults.support import Cluster
from tests.outbox.worker import Job, relay_all

from onceflow.outbox import sql

_numbers = itertools.count()


class Connection(Protocol):
    """What psycopg's and sqlite3's connections have in common."""

    def execute(self, query: Any, params: Any = ..., /) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class Shop:
    """One service's outbox, its relay's name, and an aggregate type (so a topic) of its own."""

    cluster: Cluster
    url: str
    table: str
    mark: str  # the database's parameter
    kind: str
    name: str = field(default_factory=lambda: f"shop-{next(_numbers)}")
    inserted: list[tuple[str, str]] = field(default_factory=list)

    @property
    def topic(self) -> str:
        return f"outbox.event.{self.kind}"

    def connect(self) -> Connection:
        if self.url.startswith("sqlite"):
            return sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=60)
        return psycopg.connect(self.url)

    def insert(
        self, on: Connection, aggregate: str, payload: object, *, kind: str | None = None, event_id: str | None = None
    ) -> str:
        """One event, in the connection's transaction."""
        event_id = event_id or str(uuid.uuid4())
        marks = ", ".join([self.mark] * 5)
        on.execute(
            f"insert into {self.table} (id, aggregatetype, aggregateid, type, payload) values ({marks})",
            (event_id, kind or self.kind, aggregate, "Changed", payload),
        )
        return event_id

    def insert_all(self, events: Iterable[tuple[str, str]]) -> None:
        """(aggregate, number) each, committed together."""
        events = list(events)
        with closing(self.connect()) as connection:
            for aggregate, number in events:
                self.insert(connection, aggregate, number)
            connection.commit()
        self.inserted += events

    @property
    def job(self) -> Job:
        return Job(self.name, self.url, self.table, self.cluster.servers)

    def relay(self, **changes: Any) -> int:
        """Sends what is there, in this process."""
        return relay_all(replace(self.job, **changes))

    def claimed_by(self) -> str | None:
        """The relay instance that claimed the table last."""
        found: str | None = self.query(f"select instance from {self.table}_relay")[0][0]
        return found

    def rows_left(self) -> int:
        return int(self.query(f"select count(*) from {self.table}")[0][0])

    def query(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            found: list[tuple[Any, ...]] = connection.execute(text, values).fetchall()
            return found

    def change(self, text: str, *values: object) -> None:
        with closing(self.connect()) as connection:
            connection.execute(text, values)
            connection.commit()

    def values(self) -> list[str | None]:
        return [value for _, _, value in self.cluster.read(self.topic)]

    def check(self) -> None:
        """Every committed event is in Kafka once, in the order of its aggregate, and the table is empty."""
        self.cluster.check_exactly(self.topic, self.inserted)
        assert self.rows_left() == 0


def events(count: int, aggregates: int = 3, first: int = 0) -> list[tuple[str, str]]:
    return [(f"a{number % aggregates}", str(number)) for number in range(first, first + count)]


def make_postgresql(cluster: Cluster, url: str, **options: Any) -> Shop:
    number = next(_numbers)
    table = f"outbox_{number}"
    with psycopg.connect(url) as connection:
        connection.execute(sql.postgresql(sql.TableName.parse(table), **options).encode())
    return _with_topic(Shop(cluster, url, table, "%s", f"order-p{number}"))


def make_sqlite(cluster: Cluster, directory: Path, *, journal: str = "wal") -> Shop:
    number = next(_numbers)
    path = directory / f"shop-{number}.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"pragma journal_mode = {journal}")
        connection.executescript(sql.sqlite(sql.TableName.parse("outbox")))
    return _with_topic(Shop(cluster, f"sqlite:///{path}", "outbox", "?", f"order-s{number}"))


def make_outbox(shop: Shop, **options: Any) -> None:
    """Once more, as ``onceflow outbox init`` makes it."""
    name = sql.TableName.parse(shop.table)
    if shop.mark == "?":
        with closing(sqlite3.connect(shop.url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(sql.sqlite(name))
    else:
        with psycopg.connect(shop.url) as connection:
            connection.execute(sql.postgresql(name, **options).encode())


def _with_topic(shop: Shop) -> Shop:
    make_topics(shop.cluster, [shop.topic])
    return shop


def make_topics(
    cluster: Cluster, names: Sequence[str], partitions: int = 3, config: dict[str, str] | None = None
) -> None:
    from confluent_kafka.cimpl import NewTopic

    new = [NewTopic(name, partitions, 1, config=config or {}) for name in names]
    for future in cluster.admin.create_topics(new, operation_timeout=60).values():
        future.result(60)
