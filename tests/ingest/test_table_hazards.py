"""What would lose or repeat rows of a table: times of change, open transactions, equal values, spelling, crashes."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.faults.support import eventually
from tests.ingest.support import commit, ids, look, take, values
from tests.ingest.test_tables import Table, next_number, postgresql_table, sqlite_table
from tests.postgresql import is_gone, wal_writer_stopped

from onceflow.errors import ConfigurationError, InputError, SourceChanged, SourceUnavailable, SourceUnfinished
from onceflow.ingest import horizon, tables

BY_TIME: dict[str, Any] = {"rising": "changed", "tiebreak": "id", "delay_s": 0.0}


@pytest.fixture(params=["sqlite", "postgresql"])
def timed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    """A table with a time of change."""
    name = f"timed_{next_number()}"
    if request.param == "sqlite":
        create = "CREATE TABLE {t} (id INTEGER PRIMARY KEY, note TEXT, changed INTEGER)"
        made = Table(f"sqlite:///{tmp_path}/shop.db", name, create)
    else:
        create = "CREATE TABLE {t} (id bigint PRIMARY KEY, note text, changed timestamptz)"
        made = Table(request.getfixturevalue("postgresql"), name, create)
    yield made
    made.connection.close()


def at(table: Table, second: int) -> str:
    return (
        str(second)
        if table.url.startswith("sqlite")
        else f"'2026-05-01 10:00:00.25+02'::timestamptz + {second} * interval '1 s'"
    )


def put(table: Table, second: int, *numbers: int, note: str = "a") -> None:
    """Rows that are inserted, or changed, at a time."""
    for number in numbers:
        table.run(
            f"INSERT INTO {{t}} (id, note, changed) VALUES ({number}, '{note}', {at(table, second)}) "
            "ON CONFLICT (id) DO UPDATE SET note = excluded.note, changed = excluded.changed"
        )


def seen(rows: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(row["id"], row["note"]) for row in rows]


def test_rows_of_equal_times_in_pages(timed: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a page ends, and a run dies: between rows of the same time too."""
    monkeypatch.setattr(tables, "PAGE_ROWS", 2)
    put(timed, 1, 5, 3, 4)
    put(timed, 2, 1, 2, 6, 7)
    for batches in (1, 2):
        positions: dict[str, str] = {}
        found: list[dict[str, Any]] = []
        while more := timed.take(positions, batches, **BY_TIME):
            found += more
        assert [row["id"] for row in found] == [3, 4, 5, 1, 2, 6, 7]


def test_a_changed_row_comes_again_as_another_event(timed: Table) -> None:
    positions: dict[str, str] = {}
    put(timed, 1, 1, 2)
    source = timed.source(**BY_TIME)
    first = take(source, positions)
    put(timed, 2, 1, note="b")
    second = look(source, positions)
    source.close()
    assert [json.loads(value)["note"] for value in values(second)] == ["b"]
    assert len({*ids(first), *ids(second)}) == 3
    assert all(row.identity.sequence is None for row in first)
    assert ids(second)[0].endswith("/1")


def test_a_row_that_is_changed_while_pages_are_read_is_not_lost(timed: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PAGE_ROWS", 2)
    positions: dict[str, str] = {}
    put(timed, 1, 1, 2, 3, 4)
    source = timed.source(**BY_TIME)
    source.restore({})
    batches = source.batches()
    commit(positions, next(batches))
    put(timed, 2, 4, note="b")
    for batch in batches:
        commit(positions, batch)
    source.close()
    assert seen(timed.take(positions, **BY_TIME)) == [(4, "b")]


def test_a_time_that_was_taken_before_the_writing_is_waited_for(timed: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The delay: who took the time 1 writes it a moment after 2 became visible."""
    put(timed, 2, 2)
    positions: dict[str, str] = {}
    monkeypatch.setattr("onceflow.ingest.horizon.time.sleep", lambda seconds: put(timed, 1, 1) if seconds else None)
    assert seen(timed.take(positions, **{**BY_TIME, "delay_s": 0.01})) == [(1, "a"), (2, "a")]


def test_a_late_clock_and_a_late_transaction_have_a_delay_each(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn almost a delay after 2 became visible, by a clock that is late by that; and its transaction begins as much later."""
    create = "CREATE TABLE {t} (id bigint PRIMARY KEY, note text, changed int)"
    table, clock = Table(postgresql, f"timed_{next_number()}", create), [0.0]
    table.run("INSERT INTO {t} VALUES (2, 'a', 2)")
    positions: dict[str, str] = {}
    with psycopg.connect(postgresql) as late, closing(table.source(**{**BY_TIME, "delay_s": 5.0})) as source:

        def sleep(seconds: float) -> None:
            clock[0] += seconds
            if clock[0] > 9.8:
                late.execute("SELECT 1")  # begins its transaction

        still = SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep)
        monkeypatch.setattr("onceflow.ingest.horizon.time", still)
        monkeypatch.setattr(horizon, "SETTLE_S", -1.0)
        assert take(source, positions) == []
        late.execute(sql.SQL("INSERT INTO {} VALUES (1, 'a', 1)").format(sql.Identifier(table.name)))
        late.commit()
        assert ids(look(source, positions)) == ["1/1", "2/2"]
    table.connection.close()


def test_a_noted_transaction_that_is_prepared_is_waited_for_under_its_new_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process has no transaction any more; its rows are not visible yet all the same."""
    monkeypatch.setattr(horizon, "SETTLE_S", -1.0)
    found: list[set[horizon.Writer]] = [
        {("3/7", 11), ("prepared transaction old", None)},
        {("3/8", 11), ("prepared transaction old", None), ("prepared transaction 1", None)},
        {("3/9", 11), ("prepared transaction 1", None), ("prepared transaction later", None)},
        {("prepared transaction later", None)},
    ]
    waiting = horizon.Horizon(lambda: 7, iter(found).__next__)
    assert [waiting.reached() for _ in range(4)] == [None, None, None, 7]
    assert waiting.kept_back_by() == ""


@pytest.mark.parametrize("delay_s", [0.0, 600.0])
def test_whoever_is_stopped_waits_for_nothing_more(monkeypatch: pytest.MonkeyPatch, delay_s: float) -> None:
    """Neither for the delay, nor for a transaction that stays open."""
    monkeypatch.setattr(horizon, "SETTLE_S", math.inf)
    waiting: list[horizon.Horizon] = []

    def open_for_ever() -> set[horizon.Writer]:
        waiting[0].stop()
        return {("3/7", 11)}

    def largest() -> int:
        if delay_s:
            waiting[0].stop()
        return 7

    waiting.append(horizon.Horizon(largest, open_for_ever, delay_s=delay_s))
    assert waiting[0].reached() is None


def test_without_the_delay_it_would_be_skipped(timed: Table) -> None:
    """The control."""
    positions: dict[str, str] = {}
    put(timed, 2, 2)
    assert seen(timed.take(positions, **BY_TIME)) == [(2, "a")]
    put(timed, 1, 1)
    assert timed.take(positions, **BY_TIME) == []


def test_an_open_transaction_that_has_not_written_yet_is_waited_for(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its now() is the time of its beginning, whenever it writes: a lock on the table does not tell of it yet."""
    monkeypatch.setattr(horizon, "SETTLE_S", 0.05)
    create = "CREATE TABLE {t} (id bigint PRIMARY KEY, note text, changed timestamptz DEFAULT now())"
    table = Table(postgresql, f"timed_{next_number()}", create)
    insert = sql.SQL("INSERT INTO {} (id, note) VALUES ({}, 'a')")
    positions: dict[str, str] = {}
    source = table.source(**BY_TIME)
    with psycopg.connect(postgresql) as late:
        late.execute("SELECT 1")
        table.run("INSERT INTO {t} (id, note) VALUES (2, 'a')")
        assert take(source, positions) == []
        with pytest.raises(SourceUnfinished, match=f"process {late.info.backend_pid}"):
            source.check_end()
        late.execute(insert.format(sql.Identifier(table.name), sql.Literal(1)))
        late.commit()
        assert [json.loads(value)["id"] for value in values(look(source, positions))] == [1, 2]
    source.check_end()
    source.close()
    table.connection.close()


def test_a_tiebreak_must_be_unique_and_never_null(timed: Table) -> None:
    with pytest.raises(ConfigurationError, match="--tiebreak: note has no unique index"):
        timed.source(**{**BY_TIME, "tiebreak": "note"})
    with pytest.raises(ConfigurationError, match="--tiebreak"):
        timed.source(**{**BY_TIME, "tiebreak": "nobody"})
    timed.run("INSERT INTO {t} VALUES (1, 'a', NULL)")
    with pytest.raises(InputError, match="NULL"):
        timed.take({}, **BY_TIME)


def test_a_tiebreak_is_unique_as_its_values_are_compared(postgresql: str) -> None:
    """Its index tells a from A, its collation does not: a page that ends at a would go on behind A.

    The server of the tests has no ICU, so the catalogue alone says of the collation that it is such a one.
    """
    create = "CREATE COLLATION {t} (provider = libc, locale = 'C')"
    table = Table(postgresql, f"codes_{next_number()}", create)
    table.run("UPDATE pg_collation SET collisdeterministic = false WHERE collname = '{t}'")
    table.run("CREATE TABLE {t} (code text COLLATE {t} NOT NULL, plain text NOT NULL, changed int NOT NULL)")
    table.run('CREATE UNIQUE INDEX ON {t} (code COLLATE "C")')
    table.run('CREATE UNIQUE INDEX ON {t} (plain COLLATE "C")')
    with closing(table.connection):
        with pytest.raises(ConfigurationError, match="--tiebreak: code has no unique index"):
            table.source(**{**BY_TIME, "tiebreak": "code"})
        table.source(**{**BY_TIME, "tiebreak": "plain"}).close()
        table.run("CREATE UNIQUE INDEX ON {t} (code)")
        table.source(**{**BY_TIME, "tiebreak": "code"}).close()


def test_another_order_is_refused(timed: Table) -> None:
    """The position 7 of ``id`` says nothing of ``changed``."""
    positions: dict[str, str] = {}
    put(timed, 1, 1, 2)
    timed.take(positions, **BY_TIME)
    with pytest.raises(SourceChanged, match="in the order of changed, id, not of id"):
        timed.take(positions, rising="id", trust_order=True)
    assert len(timed.take(positions, rising="id", trust_order=True, accept_new=True)) == 2


# -------------------------------------------------------------------------------------------------- which table it is


def test_a_table_spelled_otherwise_is_the_same(postgresql: str, tmp_path: Path) -> None:
    for table, spelled in [(postgresql_table(postgresql), "public.{}"), (sqlite_table(tmp_path), "{}")]:
        positions: dict[str, str] = {}
        table.insert("a")
        table.take(positions)
        table.name = spelled.format(table.name.upper() if "sqlite" in table.url else table.name)
        assert table.take(positions) == []
        table.insert("b")
        assert [row["note"] for row in table.take(positions)] == ["b"]
        table.connection.close()


def test_a_renamed_table_is_the_same(postgresql: str) -> None:
    table = postgresql_table(postgresql)
    positions: dict[str, str] = {}
    table.insert("a")
    table.take(positions)
    table.run("ALTER TABLE {t} RENAME TO {t}_old")
    table.name += "_old"
    assert table.take(positions) == []
    table.connection.close()


def test_a_column_that_is_added_while_it_is_read(timed: Table) -> None:
    positions: dict[str, str] = {}
    put(timed, 1, 1)
    source = timed.source(**BY_TIME)
    take(source, positions)
    timed.run("ALTER TABLE {t} ADD COLUMN more text")
    put(timed, 2, 2)
    assert [json.loads(value)["more"] for value in values(look(source, positions))] == [None]
    source.close()


def test_what_the_database_refuses_is_an_error_of_ours(timed: Table) -> None:
    put(timed, 1, 1)
    source = timed.source(**BY_TIME)
    timed.run("DROP TABLE {t}")
    with pytest.raises((ConfigurationError, SourceUnavailable), match=timed.name):
        take(source, {})
    source.close()


def test_child_tables_are_refused(postgresql: str) -> None:
    """The parent's index covers no row of theirs, so a number may be there twice."""
    table = postgresql_table(postgresql)
    table.run("CREATE TABLE {t}_child () INHERITS ({t})")
    with pytest.raises(ConfigurationError, match="child tables"):
        table.source()
    table.connection.close()


# -------------------------------------------------------------------------------------------- commits not yet on disk


def rows_after_a_crash(table: Table, *, read: bool) -> int:
    """A row that is committed asynchronously, and perhaps read by an ingest; how many are left after a crash of the server."""
    source = table.source()
    with psycopg.connect(table.url) as service:
        service.execute("set synchronous_commit = off")
        with wal_writer_stopped(table.url):
            service.execute(sql.SQL("INSERT INTO {} (note) VALUES ('a')").format(sql.Identifier(table.name)))
            service.commit()
            if read:
                assert len(take(source, {})) == 1
        # The server notices a little later that one of its processes was killed; until then it answers.
        eventually(lambda: is_gone(service), bool, "the crash of the server")
    source.close()
    table.connection.close()
    return eventually(lambda: _count(table), lambda count: count >= 0, "the server is back")


def _count(table: Table) -> int:
    try:
        with closing(psycopg.connect(table.url)) as connection:
            query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table.name))
            found = connection.execute(query).fetchone()
            return -1 if found is None else int(found[0])
    except psycopg.OperationalError:
        return -1


@pytest.mark.faults
@pytest.mark.parametrize("read", [True, False])
def test_what_was_read_survives_a_crash_of_the_server(postgresql: str, read: bool) -> None:
    """Else its number would be given again, behind the position. Not read, it is lost: the control."""
    table = postgresql_table(postgresql)
    assert rows_after_a_crash(table, read=read) == int(read)


def test_a_role_that_may_only_read(postgresql: str) -> None:
    table = postgresql_table(postgresql)
    table.insert("a")
    table.url += "&options=-cdefault_transaction_read_only%3Don"
    assert len(table.take({})) == 1
    table.connection.close()


def test_what_was_read_of_sqlite_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log before the file: what a checkpoint moves meanwhile is in one of them."""
    table = sqlite_table(tmp_path)
    table.run("PRAGMA journal_mode = wal")
    table.insert("a")
    synced: list[str] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").readlink().name)
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    table.take({})
    assert synced == ["shop.db-wal", "shop.db", tmp_path.name]
    table.connection.close()


def test_sqlite_that_is_locked_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onceflow.ingest import sqlite as module

    monkeypatch.setattr(module, "_BUSY_S", 0.05)
    table = sqlite_table(tmp_path)
    table.insert("a")
    source = table.source()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SourceUnavailable, match="locked"):
            take(source, {})
    assert len(take(source, {})) == 1
    source.close()
    table.connection.close()


@pytest.mark.parametrize("kind", ["timestamptz", "date", "float8", "numeric"])
@pytest.mark.parametrize("value", ["infinity", "NaN"])
def test_a_value_that_nothing_is_larger_than_hides_no_row(postgresql: str, kind: str, value: str) -> None:
    if value == "NaN" and kind in ("timestamptz", "date"):
        pytest.skip("a time is always one")
    create = f"CREATE TABLE {{t}} (id bigint PRIMARY KEY, changed {kind} NOT NULL)"
    table, now = (
        Table(postgresql, f"largest_{next_number()}", create),
        "now()" if kind in ("timestamptz", "date") else "1",
    )
    with closing(table.connection):
        table.run(f"INSERT INTO {{t}} VALUES (1, {now}), (2, '{value}')")
        with pytest.raises(InputError, match=rf"{table.name}: a row has changed (?i:{value}), and nothing is larger"):
            table.take({}, **BY_TIME)
        table.run(f"UPDATE {{t}} SET changed = {now} WHERE id = 2")
        assert [row["id"] for row in table.take({}, **BY_TIME)] == [1, 2]


def test_a_word_for_it_in_a_text_is_a_text(postgresql: str) -> None:
    table = Table(postgresql, f"largest_{next_number()}", "CREATE TABLE {t} (id text PRIMARY KEY)")
    with closing(table.connection):
        table.run("INSERT INTO {t} VALUES ('Infinity')")
        assert len(table.take({}, trust_order=True)) == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_row_without_a_tiebreak_that_comes_while_the_delay_passes_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A unique column may have none in more than one row: they would be one event, and rows behind them never read."""
    url = f"sqlite:///{tmp_path}/shop.db" if kind == "sqlite" else request.getfixturevalue("postgresql")
    table = Table(url, f"coded_{next_number()}", "CREATE TABLE {t} (code text UNIQUE, changed int NOT NULL)")
    positions: dict[str, str] = {}
    options: dict[str, Any] = {"rising": "changed", "tiebreak": "code", "delay_s": 0.01}
    table.run("INSERT INTO {t} VALUES ('a', 1), ('b', 2)")

    def sleep(seconds: float) -> None:
        if seconds:
            table.run("INSERT INTO {t} VALUES (NULL, 2)")

    monkeypatch.setattr("onceflow.ingest.horizon.time.sleep", sleep)
    with closing(table.connection):
        with pytest.raises(InputError, match=f"column changed or code of {table.name} holds NULL"):
            table.take(positions, **options)
        assert positions == {}
        monkeypatch.undo()
        table.run("DELETE FROM {t} WHERE code IS NULL")
        assert [row["code"] for row in table.take(positions, **options)] == ["a", "b"]


def test_a_column_that_may_be_null_from_now_on_is_looked_into(postgresql: str) -> None:
    """Rows without a value are behind no position, and would be read by none of them."""
    create = "CREATE TABLE {t} (id bigint PRIMARY KEY, changed int NOT NULL)"
    table, positions = Table(postgresql, f"timed_{next_number()}", create), dict[str, str]()
    with closing(table.connection), closing(table.source(**BY_TIME)) as source:
        table.run("INSERT INTO {t} VALUES (1, 1)")
        assert ids(take(source, positions)) == ["1/1"]
        table.run("ALTER TABLE {t} ALTER COLUMN changed DROP NOT NULL")
        table.run("INSERT INTO {t} VALUES (2, NULL)")
        with pytest.raises(InputError, match="holds NULL"):
            look(source, positions)
        table.run("UPDATE {t} SET changed = 2 WHERE id = 2")
        assert ids(look(source, positions)) == ["2/2"]


def test_a_materialized_view_is_trusted_only_if_somebody_says_so(postgresql: str) -> None:
    """A refresh may show a row later than those that were written after it, whenever its transaction was open."""
    create = "CREATE TABLE {t} (id bigint PRIMARY KEY, changed int NOT NULL)"
    table = Table(postgresql, f"timed_{next_number()}", create)
    table.run("INSERT INTO {t} VALUES (1, 1)")
    table.run("CREATE MATERIALIZED VIEW {t}_kept AS SELECT * FROM {t}")
    table.run("CREATE UNIQUE INDEX ON {t}_kept (id)")
    kept: dict[str, Any] = {**BY_TIME, "table": f"{table.name}_kept"}
    with closing(table.connection):
        with pytest.raises(ConfigurationError, match=f"{table.name}_kept is a materialized view, .* add --trust-order"):
            table.source(**kept)
        assert [row["id"] for row in table.take({}, **kept, trust_order=True)] == [1]
