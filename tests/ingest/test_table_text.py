"""How PostgreSQL writes values and names as text, whatever the defaults of role, database and connection."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import sql
from tests.ingest.support import Row, rows_of, take, values

from onceflow.errors import InputError
from onceflow.ingest import tables
from onceflow.ingest.postgresql import PostgresqlTable
from onceflow.ingest.tables import TableOptions, TableSource

_numbers = itertools.count()
OTHERWISE = {
    "extra_float_digits": "-15",
    "datestyle": "German",
    "timezone": "Pacific/Chatham",
    "intervalstyle": "sql_standard",
    "bytea_output": "escape",
}


class Shop(NamedTuple):
    """A role with defaults of its own, and the connection of one who writes."""

    url: str
    role: str
    connection: psycopg.Connection[Any]

    def source(self, **options: Any) -> TableSource:
        given = TableOptions(**options)
        return TableSource(PostgresqlTable(f"{self.url}&user={self.role}", given), given)

    def take(self, positions: dict[str, str] | None = None, batches: int | None = None, **options: Any) -> list[Row]:
        with closing(self.source(**options)) as source:
            return take(source, {} if positions is None else positions, batches)

    def run(self, query: Any, *values: object) -> None:
        self.connection.execute(query, values or None)

    def default(self, **settings: str) -> None:
        """Of the role's later connections."""
        for name, value in settings.items():
            query = sql.SQL("ALTER ROLE {} SET {} = {}")
            self.run(query.format(sql.Identifier(self.role), sql.Identifier(name), sql.Literal(value)))


@pytest.fixture
def shop(postgresql: str) -> Iterator[Shop]:
    with psycopg.connect(postgresql, autocommit=True) as connection:
        role = f"reader_{next(_numbers)}"
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN SUPERUSER").format(sql.Identifier(role)))
        yield Shop(postgresql, role, connection)


def table(shop: Shop, definition: str) -> str:
    name = f"texts_{next(_numbers)}"
    shop.run(f"CREATE TABLE {name} ({definition})".encode())
    return name


@pytest.mark.parametrize("where", ["role", "connection"])
def test_neighbouring_floats_are_read_once_each(shop: Shop, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """With fewer digits than tell them apart, a position would stand before or behind the row that it is of."""
    monkeypatch.setattr(tables, "PAGE_ROWS", 7)
    name = floats(shop)
    if where == "role":
        shop.default(extra_float_digits="0")
    if where == "connection":
        shop = shop._replace(url=f"{shop.url}&options=-cextra_float_digits%3D-15")
    with closing(shop.source(table=name, rising="f", trust_order=True)) as source:
        check_floats(take(source, {}))


def test_a_pooler_that_gives_each_page_another_session(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was set at the start is not there any more; nor does anything of ours stay in a session that others get."""
    monkeypatch.setattr(tables, "PAGE_ROWS", 7)
    rows: list[Row] = []
    with closing(shop.source(table=floats(shop), rising="f", trust_order=True)) as source:
        assert isinstance(source._database, PostgresqlTable)
        session = source._database._connection
        source.restore({})
        for batch in source.batches():
            assert batch.rows is not None
            rows += rows_of(batch.rows)
            session.execute("SET extra_float_digits = -15")
        assert session.execute("SHOW extra_float_digits").fetchone() == ("-15",)
    check_floats(rows)


def floats(shop: Shop) -> str:
    """A table of neighbours."""
    name = table(shop, "f float8 PRIMARY KEY, n int")
    shop.run(f"INSERT INTO {name} SELECT 1700000000 + i * 0.00000123, i FROM generate_series(1, 50) i".encode())
    return name


def check_floats(rows: list[Row]) -> None:
    assert [json.loads(row.value)["n"] for row in rows] == list(range(1, 51))
    assert len({row.id for row in rows}) == 50


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("float8", "0.1 + i * 3e-16", "0.1000000000000003"),
        ("real", "(0.1 + i * 1e-8)::real", "0.10000001"),
        ("timestamptz", "'2026-10-25 00:30Z'::timestamptz + i * interval '1 h'", "2026-10-25 01:30:00+00"),
        ("timestamp", "'2026-01-12 01:30'::timestamp + i * interval '1 h'", "2026-01-12 02:30:00"),
        ("date", "'2026-01-12'::date + i", "2026-01-13"),
        ("interval", "i * interval '1 h' - interval '3 days 2 months'", "-2 mons -3 days +01:00:00"),
        ("bytea", "decode(lpad(to_hex(i), 4, '0'), 'hex')", r"\x0001"),
    ],
)
def test_ids_keys_and_rows_are_the_same_with_any_defaults(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, kind: str, value: str, text: str
) -> None:
    """A run that goes on where a run with other defaults ended reads on behind it."""
    monkeypatch.setattr(tables, "PAGE_ROWS", 2)
    name = table(shop, f"v {kind} PRIMARY KEY, n int")
    shop.run(f"INSERT INTO {name} SELECT {value}, i FROM generate_series(1, 9) i".encode())
    options: dict[str, Any] = {"table": name, "rising": "v", "key": "v", "trust_order": True}
    expected = shop.take(**options)
    assert [json.loads(row.value)["n"] for row in expected] == list(range(1, 10))
    assert (expected[0].id, expected[0].key) == (text, text)
    positions: dict[str, str] = {}
    found = shop.take(positions, 2, **options)
    shop.default(**OTHERWISE)
    assert [*found, *shop.take(positions, **options)] == expected
    assert shop.take(**options) == expected


ODD = [
    "vat%",
    "%s",
    "%(a)s",
    "%%",
    'say "%b"',
    "a.b",
    "{a}",
    "Gr\u00f6\u00dfe %",
    "two words",
    "'",
    "\\",
    "$1",
    ":a",
    "?",
]


@pytest.mark.parametrize("name", ODD)
def test_any_name_of_a_table_and_its_columns(shop: Shop, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(tables, "PAGE_ROWS", 2)
    of_table, key = sql.Identifier(f"odd {name}"), sql.Identifier(f"key {name}")
    query = sql.SQL("CREATE TABLE {} ({} bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {} text)")
    shop.run(query.format(of_table, sql.Identifier(name), key))
    for number in range(5):
        shop.run(sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(of_table, key, sql.Literal(f"k{number}")))
    options: dict[str, Any] = {"table": of_table.as_string(), "rising": name, "key": f"key {name}"}
    rows = shop.take(**options)
    assert [(row.id, row.key) for row in rows] == [(str(number + 1), f"k{number}") for number in range(5)]
    assert json.loads(values(rows)[0]) == {name: 1, f"key {name}": "k0"}
    positions: dict[str, str] = {}
    by_key: dict[str, Any] = {"table": of_table.as_string(), "rising": f"key {name}", "tiebreak": name, "delay_s": 0.0}
    assert len(shop.take(positions, 1, **by_key)) == 2
    assert len(shop.take(positions, **by_key)) == 3


def test_bytes_that_are_no_text_are_an_error_of_their_row(postgresql: str) -> None:
    """A database with SQL_ASCII keeps any; somebody is needed, and not another start."""
    name = f"ascii_{next(_numbers)}"
    with psycopg.connect(postgresql, autocommit=True) as connection:
        create = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'")
        connection.execute(create.format(sql.Identifier(name)))
    url = postgresql.replace("/postgres?", f"/{name}?")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)")
        connection.execute("INSERT INTO t (note) VALUES (E'good'), (E'a\\xffb')")
        given = TableOptions("t", "id")
        with (
            closing(TableSource(PostgresqlTable(url, given), given)) as source,
            pytest.raises(InputError, match=r"table t: a row holds text that is no UTF-8: .*0xff") as caught,
        ):
            take(source, {})
        assert not caught.value.retriable
        connection.execute("UPDATE t SET note = 'b' WHERE id = 2")
        with closing(TableSource(PostgresqlTable(url, given), given)) as source:
            assert len(take(source, {})) == 2
