"""Columns that are called as something else in the SQL of the ingest is: a name is taken for a column before all else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from tests.ingest.support import look, take
from tests.ingest.test_tables import Table, next_number

from onceflow.errors import ConfigurationError, SourceUnavailable
from onceflow.ingest import tables

ALIASES = ("t", "a", "c", "d", "i", "n", "s")
OTHERS = ("name", "oid", "pid", "relation", "database", "row_to_json", "max", "pg_catalog", "?column?")
NUMBER = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}


@pytest.fixture(params=NUMBER)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The address of a database, and its definition of a rising number."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/shop.db" if is_sqlite else request.getfixturevalue("postgresql")
    return url, NUMBER[request.param]


@contextmanager
def passing(table: Table) -> Iterator[Table]:
    """Others may give a table of theirs the same name."""
    with closing(table.connection):
        try:
            yield table
        finally:
            table.connection.rollback()
            table.run("DROP TABLE IF EXISTS {t}")


@pytest.fixture
def made(place: tuple[str, str]) -> Iterator[Callable[..., Table]]:
    """Makes tables, from their columns; ``{number}`` is a rising number."""
    url, number = place
    with ExitStack() as stack:
        yield lambda columns, name="": stack.enter_context(
            passing(
                Table(url, name or f"named_{next_number()}", f"CREATE TABLE {{t}} ({columns.format(number=number)})")
            )
        )


def test_columns_called_as_all_that_a_query_names(made: Callable[..., Table], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PAGE_ROWS", 2)
    names = (*ALIASES, *OTHERS)
    table = made("id {number}, " + ", ".join(f'"{name}" text' for name in names))
    columns = ", ".join(f'"{name}"' for name in names)
    expected = [{"id": number, **{name: f"{name} {number}" for name in names}} for number in range(1, 6)]
    for row in expected:
        texts = ", ".join(f"'{row[name]}'" for name in names)
        table.run(f"INSERT INTO {{t}} ({columns}) VALUES ({texts})")
    assert table.take({}) == expected


@pytest.mark.parametrize("name", [*ALIASES, *OTHERS, "itself"])
def test_a_rising_column_a_tiebreak_and_a_key_of_any_such_name(
    made: Callable[..., Table], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """And of the name of the table itself."""
    monkeypatch.setattr(tables, "PAGE_ROWS", 2)
    table = made(f'"{name}" {{number}}, note text', name="itself" if name == "itself" else "")
    for _ in range(5):
        table.run("INSERT INTO {t} (note) VALUES ('a')")
    expected = [{name: number, "note": "a"} for number in range(1, 6)]
    assert table.take({}, rising=name, key=name) == expected
    assert table.take({}, rising="note", tiebreak=name, delay_s=0.0) == expected
    with closing(table.source(rising=name, key=name)) as source:
        assert [(row.id, row.key) for row in take(source, {})] == [(str(number), str(number)) for number in range(1, 6)]


@pytest.mark.parametrize("name", [*ALIASES, "itself"])
def test_a_row_is_not_the_value_of_a_column_that_is_a_row_itself(postgresql: str, name: str) -> None:
    """Which can be written as JSON too: the other columns would be lost without a word."""
    address = f"address_{next_number()}"
    create = f"CREATE TYPE {address} AS (x int, id int)"
    with passing(Table(postgresql, "itself" if name == "itself" else f"named_{next_number()}", create)) as table:
        table.run(f"CREATE TABLE {{t}} (id {NUMBER['postgresql']}, note text, {name} {address})")
        table.run(f"INSERT INTO {{t}} (note, {name}) VALUES ('a', row(7, 8)), ('b', null)")
        assert table.take({}) == [{"id": 1, "note": "a", name: {"x": 7, "id": 8}}, {"id": 2, "note": "b", name: None}]


def test_a_column_that_is_renamed_while_pages_are_read_is_no_text(tmp_path: Path) -> None:
    """SQLite takes a name in quotes that no column has for a text, which is larger than every number."""
    create = f"CREATE TABLE {{t}} (id {NUMBER['sqlite']}, note TEXT)"
    with passing(Table(f"sqlite:///{tmp_path}/shop.db", "orders", create)) as table, closing(table.source()) as source:
        table.insert("a")
        positions: dict[str, str] = {}
        assert len(take(source, positions)) == 1
        table.run("ALTER TABLE {t} RENAME COLUMN id TO number")
        with pytest.raises(SourceUnavailable, match=r"no such column: orders\.id"):
            look(source, positions)


def test_a_key_that_is_renamed_while_pages_are_read_is_named(made: Callable[..., Table]) -> None:
    table, positions = made("id {number}, note text"), dict[str, str]()
    table.insert("a")
    with closing(table.source(key="note")) as source:
        assert len(take(source, positions)) == 1
        table.run("ALTER TABLE {t} RENAME COLUMN note TO remark")
        table.run("INSERT INTO {t} (remark) VALUES ('b')")
        with pytest.raises(ConfigurationError, match="note"):
            look(source, positions)
