"""SQLite files that hold text that is none, or that are replaced while they are read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.ingest.support import look, take
from tests.ingest.test_tables import Table, sqlite_table

from onceflow.errors import ConfigurationError, InputError, SourceChanged, SourceUnavailable
from onceflow.ingest import tables

GARBLED = "cast(x'61ff' as text)"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    made = sqlite_table(tmp_path)
    yield made
    made.connection.close()


def test_text_that_is_no_utf_8_is_an_error_of_its_row(table: Table) -> None:
    """And not one of the database, for which somebody would start again and again."""
    table.insert("good")
    table.run(f"INSERT INTO {{t}} (note) VALUES ({GARBLED})")
    with pytest.raises(
        InputError, match=f"row of {table.name} with id 2 holds text that is no UTF-8, in note"
    ) as caught:
        table.take({})
    assert not caught.value.retriable
    table.run("UPDATE {t} SET note = cast(note AS blob) WHERE id = 2")
    assert [row["note"] for row in table.take({})] == ["good", "Yf8="]


@pytest.mark.parametrize("column", ["id", "changed"])
def test_a_position_that_is_no_utf_8_is_refused(table: Table, column: str) -> None:
    name = f"{table.name}_text"
    table.run(f"CREATE TABLE {name} (id TEXT PRIMARY KEY NOT NULL, changed TEXT NOT NULL)")
    table.run(f"INSERT INTO {name} VALUES ('a', {GARBLED if column == 'changed' else 1}), ({GARBLED}, '1')")
    by_time = {"rising": "changed", "tiebreak": "id", "delay_s": 0.0}
    order = by_time if column == "changed" else {"trust_order": True}
    with pytest.raises(InputError, match=rf"{column} a\\xff"):
        table.take({}, table=name, **order)


@pytest.mark.parametrize(
    "column",
    [
        "id INTEGER PRIMARY KEY /* no AUTOINCREMENT */",
        "id INTEGER PRIMARY KEY, -- AUTOINCREMENT is slower\n more",
        "id INTEGER PRIMARY KEY, note TEXT DEFAULT 'it''s no autoincrement'",
        'id INTEGER PRIMARY KEY, "autoincrement" TEXT',
    ],
)
def test_a_word_in_a_comment_makes_no_number_rise(table: Table, column: str) -> None:
    """A deleted row's number would come again, behind the position."""
    table.run(f"CREATE TABLE {table.name}_plain ({column})")
    with pytest.raises(ConfigurationError, match="is not INTEGER PRIMARY KEY AUTOINCREMENT"):
        table.source(table=f"{table.name}_plain")


def test_autoincrement_is_found_behind_comments(table: Table) -> None:
    table.run(
        f"CREATE TABLE {table.name}_good (note TEXT DEFAULT 'a', -- of it's shop\n id INTEGER PRIMARY KEY autoincrement)"
    )
    table.source(table=f"{table.name}_good").close()


@pytest.mark.parametrize("index", ["lower(tenant), code", "code, lower(tenant)", "lower(code)", "code, tenant"])
def test_an_index_of_more_than_the_column_makes_it_not_unique(table: Table, index: str) -> None:
    """An expression has no name in the index: what is left looked like the column alone."""
    name = f"{table.name}_codes"
    table.run(f"CREATE TABLE {name} (tenant TEXT, code TEXT NOT NULL, changed INTEGER NOT NULL)")
    table.run(f"CREATE UNIQUE INDEX {name}_unique ON {name} ({index})")
    with pytest.raises(ConfigurationError, match="--tiebreak: code has no unique index of its own"):
        table.source(table=name, rising="changed", tiebreak="code")
    with pytest.raises(ConfigurationError, match="--rising: code is not"):
        table.source(table=name, rising="code", trust_order=True)


CODES = {
    "index": ("code TEXT COLLATE nocase NOT NULL", "CREATE UNIQUE INDEX {t}_unique ON {t} (code COLLATE binary)"),
    "key": ("code TEXT COLLATE nocase NOT NULL, PRIMARY KEY (code COLLATE binary)", "SELECT 1"),
    "looser index": ("code TEXT NOT NULL", "CREATE UNIQUE INDEX {t}_unique ON {t} (code COLLATE rtrim)"),
}


@pytest.mark.parametrize("is_rising", [True, False])
@pytest.mark.parametrize("how", ["index", "key", "looser index"])
def test_rows_are_told_apart_as_their_unique_index_does(
    table: Table, monkeypatch: pytest.MonkeyPatch, how: str, is_rising: bool
) -> None:
    """By the column's own collation a page that ends at a would go on behind A."""
    monkeypatch.setattr(tables, "PAGE_ROWS", 3)
    columns, index = CODES[how]
    name, codes = f"{table.name}_codes", [letter for pair in "aAbBcCdDeE" for letter in pair]
    table.run(f"CREATE TABLE {name} (changed INTEGER NOT NULL DEFAULT 1, {columns})")
    table.run(index.format(t=name))
    for code in codes:
        table.run(f"INSERT INTO {name} (code) VALUES ('{code}')")
    by_time: dict[str, Any] = {"rising": "changed", "tiebreak": "code", "delay_s": 0.0}
    order = {"rising": "code", "trust_order": True} if is_rising else by_time
    positions: dict[str, str] = {}
    found = [row["code"] for _ in range(5) for row in table.take(positions, batches=1, table=name, **order)]
    assert sorted(found) == sorted(codes)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_database_that_is_replaced_while_it_is_read(table: Table, tmp_path: Path, journal: str) -> None:
    """The old file stays open and has no name any more: an ingest that follows it would never see another row."""
    table.run(f"PRAGMA journal_mode = {journal}")
    table.insert("old")
    positions: dict[str, str] = {}
    source = table.source()
    assert len(take(source, positions)) == 1
    with closing(sqlite3.connect(tmp_path / "new.db")) as new:
        table.connection.backup(new)
    table.connection.close()
    (tmp_path / "new.db").replace(tmp_path / "shop.db")
    with pytest.raises(SourceUnavailable, match="was replaced") as caught:
        look(source, positions)
    assert caught.value.retriable
    source.close()
    with pytest.raises(SourceChanged):
        table.take(positions)
    assert len(table.take(positions, accept_new=True)) == 1


def test_a_page_ends_where_rows_are_wider_than_before(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """By those before it there would be ten thousand, each as large as a row may be."""
    monkeypatch.setattr(tables, "PAGE_CHARACTERS", 1000)
    table.insert(*["a"] * 150, *["b" * 600] * 9)
    with closing(table.source()) as source:
        source.restore({})
        pages = [batch.rows.num_rows for batch in source.batches() if batch.rows is not None]
    assert sum(pages) == 159
    assert max(page for page in pages[2:]) <= 2


BY_TIME: dict[str, Any] = {"rising": "changed", "tiebreak": "id", "delay_s": 0.0}


@pytest.mark.parametrize("kind", ["INTEGER", "DATETIME"])
@pytest.mark.parametrize(
    ("value", "said"), [("9e999", "has changed inf, and"), ("'tomorrow'", "has changed 'tomorrow', a text where")]
)
def test_a_value_that_nothing_is_larger_than_hides_no_row(table: Table, kind: str, value: str, said: str) -> None:
    """In SQLite every text is larger than every number, whatever the column was declared to be."""
    positions: dict[str, str] = {}
    table.run(f"ALTER TABLE {{t}} ADD COLUMN changed {kind} NOT NULL DEFAULT 1")
    table.insert("a", "b")
    assert len(table.take(positions, **BY_TIME)) == 2
    table.run(f"INSERT INTO {{t}} (note, changed) VALUES ('c', {value})")
    table.run("DELETE FROM {t} WHERE note = 'a'")
    with pytest.raises(InputError, match=f"{table.name}: a row {said}"):
        table.take(positions, **BY_TIME)
    table.run("UPDATE {t} SET changed = 2 WHERE note = 'c'")
    table.run("INSERT INTO {t} (note, changed) VALUES ('d', 3)")
    assert [row["note"] for row in table.take(positions, **BY_TIME)] == ["c", "d"]


@pytest.mark.parametrize(("kind", "options"), [("", ""), ("BLOB", ""), ("ANY", "STRICT")])
@pytest.mark.parametrize("page", [1, 100])
def test_two_rows_do_not_get_the_id_of_one_event(
    table: Table, monkeypatch: pytest.MonkeyPatch, page: int, kind: str, options: str
) -> None:
    """Under a unique index 1 and '1' are different."""
    monkeypatch.setattr(tables, "PAGE_ROWS", page)
    codes = coded(table, f"code {kind} NOT NULL UNIQUE", "1", "'1'", options=options)
    with pytest.raises(InputError, match="a row has code '1', a text where others have numbers"):
        table.take({}, **codes)


@pytest.mark.parametrize("kind", ["NUMERIC", "ANY", "INT_BLOB"])
def test_a_column_of_a_type_holds_numbers_and_texts_that_are_none(table: Table, kind: str) -> None:
    """SQLite makes a number of each text that is one; ANY is a type that it does not know, but for STRICT tables."""
    codes = coded(table, f"code {kind} NOT NULL UNIQUE", "'1'", "'a'")
    assert [row["code"] for row in table.take({}, **codes)] == [1, "a"]


def coded(table: Table, column: str, *codes: str, options: str = "") -> dict[str, Any]:
    """A table of rows of one time, and how to read it."""
    name = f"{table.name}_coded"
    table.run(f"CREATE TABLE {name} (changed INTEGER NOT NULL, {column}) {options}")
    table.run(f"INSERT INTO {name} VALUES " + ", ".join(f"(5, {code})" for code in codes))
    return {"table": name, "rising": "changed", "tiebreak": "code", "delay_s": 0.0}


@pytest.mark.parametrize(("first", "then"), [("'2026-11-22 10:00:00'", "1795402696"), ("1795402696", "'2026-11-22'")])
def test_numbers_among_texts_are_refused_also_where_the_others_are_gone(table: Table, first: str, then: str) -> None:
    positions: dict[str, str] = {}
    table.run("ALTER TABLE {t} ADD COLUMN changed")
    table.run(f"INSERT INTO {{t}} (note, changed) VALUES ('a', {first})")
    assert len(table.take(positions, **BY_TIME)) == 1
    table.run(f"INSERT INTO {{t}} (note, changed) VALUES ('b', {then})")
    with pytest.raises(InputError, match="a text where others have numbers"):
        table.take(positions, **BY_TIME)
    if then.startswith("'"):
        table.run("DELETE FROM {t} WHERE note = 'a'")
        with pytest.raises(InputError, match="a text where others have numbers"):
            table.take(positions, **BY_TIME)


def test_a_generated_column_is_a_column(table: Table) -> None:
    table.run("CREATE TABLE {t}_made (n INTEGER PRIMARY KEY, code AS ('c' || n), changed INTEGER AS (n * 10) STORED)")
    table.run("INSERT INTO {t}_made (n) VALUES (1), (2)")
    named: dict[str, Any] = {"table": f"{table.name}_made", "rising": "changed", "tiebreak": "n", "delay_s": 0.0}
    with closing(table.source(**named, key="code")) as source:
        rows = take(source, {})
    assert [(row.id, row.key) for row in rows] == [("10/1", "c1"), ("20/2", "c2")]
