"""Every store of ours passes the public kit, on real servers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis

from onceflow.reader.stores.memory import MemoryStore
from onceflow.reader.stores.postgresql import PostgresqlStore
from onceflow.reader.stores.redis import RedisStore
from onceflow.reader.stores.sqlite import SqliteStore
from onceflow.testing import STORE_CHECKS, StoreCheck, StoreSubject

if TYPE_CHECKING:
    from tests.reader.servers import Server


every_check = pytest.mark.parametrize("check", STORE_CHECKS, ids=str)


class SqliteLines:
    """Effects in a table beside the store's own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE lines (line TEXT)")

    def write(self, handle: Any, text: str) -> None:
        handle.execute("INSERT INTO lines VALUES (?)", (text,))

    def read(self) -> list[str]:
        with closing(sqlite3.connect(self._path)) as connection:
            return [line for (line,) in connection.execute("SELECT line FROM lines")]


class PostgresqlLines:
    def __init__(self, url: str) -> None:
        self._url = url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS lines (line text)")

    def write(self, handle: Any, text: str) -> None:
        handle.execute("INSERT INTO lines VALUES (%s)", (text,))

    def read(self) -> list[str]:
        with psycopg.connect(self._url) as connection:
            return [line for (line,) in connection.execute("SELECT line FROM lines")]


class RedisLines:
    def __init__(self, url: str) -> None:
        self._url = url

    def write(self, handle: Any, text: str) -> None:
        handle.rpush("lines", text)

    def read(self) -> list[str]:
        with closing(redis.Redis.from_url(self._url, decode_responses=True)) as client:
            return [str(line) for line in client.lrange("lines", 0, -1)]


@every_check
def test_memory(check: StoreCheck) -> None:
    check(StoreSubject(make=MemoryStore))


@every_check
def test_sqlite(check: StoreCheck, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    check(StoreSubject(make=lambda: SqliteStore(path), effects=SqliteLines(path)))


@every_check
def test_postgresql(check: StoreCheck, postgresql: Server) -> None:
    url = postgresql.url
    check(StoreSubject(make=lambda: PostgresqlStore(url), effects=PostgresqlLines(url)))


@every_check
def test_redis(check: StoreCheck, redis_server: Server) -> None:
    url = redis_server.url
    check(StoreSubject(make=lambda: RedisStore(url), effects=RedisLines(url)))
