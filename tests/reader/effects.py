"""Effects in each kind of store: where the readers of a place put them, and how a test reads them there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
import pytest
import redis
from tests.reader.support import Place


@dataclass(frozen=True)
class Effects:
    """``job`` says which store. ``texts`` are in the order they were written, ``workers`` the processes that did it."""

    job: dict[str, Any]
    texts: Callable[[], list[str]]
    workers: Callable[[], set[int]]


def effects_of(kind: str, place: Place, request: pytest.FixtureRequest) -> Effects:
    """Of a place whose readers have the transaction of their store, which is as empty as its ledger."""
    if kind == "postgresql":
        return _in_postgresql(place, request.getfixturevalue("database").url)
    if kind == "redis":
        return _in_redis(place, request.getfixturevalue("redis_server").url)
    return Effects({}, place.effects, lambda: {row[0] for row in place.ledger.execute(_WORKERS)})


_WORKERS: LiteralString = "SELECT DISTINCT pid FROM ledger"


def _in_postgresql(place: Place, server: str) -> Effects:
    """In a schema of its own."""
    schema = place.topic.replace("-", "_")
    url = f"{server}&options=-csearch_path%3D{schema}"

    def execute(statement: LiteralString) -> list[Any]:
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return [row[0] for row in cursor] if cursor.description else []

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    execute("CREATE TABLE ledger (number serial PRIMARY KEY, event text, pid integer)")
    return Effects(
        {"store": url, "mark": "%s"},
        lambda: execute("SELECT event FROM ledger ORDER BY number"),
        lambda: set(execute(_WORKERS)),
    )


def _in_redis(place: Place, url: str) -> Effects:
    def ask(question: Callable[[Any], Any]) -> Any:
        with closing(redis.Redis.from_url(url, decode_responses=True)) as client:
            return question(client)

    return Effects(
        {"store": url, "mode": "redis"},
        lambda: ask(lambda client: client.lrange(place.topic, 0, -1)),
        lambda: set(map(int, ask(lambda client: client.smembers(f"{place.topic}:pids")))),
    )
