"""Effects in each kind of store: where the readers of a place put them, and how a test reads them there."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
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


def effects_for(mode: str, kind: str, place: Place, request: pytest.FixtureRequest, directory: Path) -> Effects:
    """Of readers in this mode (``inbox``, ``claims``); ``directory`` is made for a ledger of claims."""
    return effects_of(kind, place, request) if mode == "inbox" else effects_elsewhere(kind, place, request, directory)


def effects_elsewhere(kind: str, place: Place, request: pytest.FixtureRequest, directory: Path) -> Effects:
    """In a ledger that the store has no part in, for handlers without a transaction. ``kind`` may be ``memory`` as well."""
    store = "memory:" if kind == "memory" else effects_of(kind, place, request).job.get("store", place.store)
    ledger = elsewhere(directory)
    return Effects(
        {"store": store, "mode": "claims", "ledger": ledger},
        lambda: effects_in(directory),
        lambda: set(_ask(ledger, _WORKERS)),
    )


def elsewhere(directory: Path) -> str:
    """A ledger that the store has no part in."""
    directory.mkdir(exist_ok=True)
    path = directory / "elsewhere.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE ledger (number INTEGER PRIMARY KEY, event TEXT, pid INTEGER)")
    return str(path)


def effects_in(directory: Path) -> list[str]:
    return _ask(str(directory / "elsewhere.db"), "SELECT event FROM ledger ORDER BY number")


def _ask(ledger: str, question: str) -> list[Any]:
    with closing(sqlite3.connect(ledger)) as connection:
        return [row[0] for row in connection.execute(question)]


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
