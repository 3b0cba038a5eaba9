"""A table that is another one, or whose numbers begin anew, while it is followed or between two runs; and what only looks so."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from tests.faults.support import eventually
from tests.ingest.support import Row, ids, look, take
from tests.ingest.test_tables import Table, next_number, postgresql_table, sqlite_table

from onceflow.errors import ConfigurationError, InputError, OnceflowError, SourceChanged, SourceUnavailable
from onceflow.ingest import horizon, tables
from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.events import Committed, Event
from onceflow.ingest.runner import Ingest
from onceflow.ingest.tables import TablePosition, TableSource
from onceflow.kafka.settings import ClusterSettings

if TYPE_CHECKING:
    from tests.conftest import Reader, TopicFactory

    from onceflow.broker import EmbeddedBroker

SQLITE = "CREATE TABLE {t} (id INTEGER PRIMARY KEY AUTOINCREMENT, note TEXT)"
POSTGRESQL = "CREATE TABLE {t} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)"
ROWS = "INSERT INTO {t} (note) VALUES "

SQLITE_ANEW = {
    "dropped": ["DROP TABLE {t}", SQLITE],
    "emptied": ["DELETE FROM {t}", "DELETE FROM sqlite_sequence WHERE name = '{t}'"],
}
POSTGRESQL_ANEW = {
    "dropped": ["DROP TABLE {t}", POSTGRESQL],
    "truncated": ["TRUNCATE {t} RESTART IDENTITY"],
    "restarted": ["DELETE FROM {t}", "ALTER TABLE {t} ALTER COLUMN id RESTART"],
    "swapped": ["ALTER TABLE {t} RENAME TO {t}_old", POSTGRESQL],
    "another sequence": [
        "DELETE FROM {t}",
        "ALTER TABLE {t} ALTER COLUMN id DROP IDENTITY",
        "ALTER TABLE {t} ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY",
    ],
}
SET_BACK = ["DELETE FROM {t}", "SELECT setval(pg_get_serial_sequence('{t}', 'id'), 1, false)"]


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Table]:
    made = sqlite_table(tmp_path)
    yield made
    made.connection.close()


@pytest.fixture
def orders(postgresql: str) -> Iterator[Table]:
    made = postgresql_table(postgresql)
    yield made
    made.connection.rollback()
    made.connection.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def table(request: pytest.FixtureRequest) -> Table:
    made: Table = request.getfixturevalue("lite" if request.param == "sqlite" else "orders")
    return made


def rows(count: int) -> str:
    return ROWS + ", ".join(["('a')"] * count)


def at_once(table: Table, *statements: str) -> None:
    """In one transaction: nobody sees a state between."""
    if table.url.startswith("sqlite"):
        table.connection.execute("BEGIN IMMEDIATE")
    for statement in statements:
        table.connection.execute(statement.format(t=table.name))
    table.connection.commit()


def refused(source: TableSource, positions: dict[str, str]) -> None:
    """By this look or the next one, and no row before that."""
    found: list[Any] = []

    def two_looks() -> None:
        look(source, positions, rows=found)
        look(source, positions, rows=found)

    with pytest.raises(SourceChanged):
        two_looks()
    assert found == []


ANEW = [
    *[pytest.param("sqlite", way, id=f"sqlite-{name}") for name, way in SQLITE_ANEW.items()],
    *[pytest.param("postgresql", way, id=f"postgresql-{name}") for name, way in POSTGRESQL_ANEW.items()],
    pytest.param("postgresql", SET_BACK, id="postgresql-set back"),
]


@pytest.mark.parametrize(("table", "way"), ANEW, indirect=["table"])
def test_numbers_that_begin_anew_while_they_are_followed(table: Table, way: list[str]) -> None:
    """Once seen, it is refused by every later start: by then the numbers may have passed the position."""
    positions: dict[str, str] = {}
    table.run(rows(5))
    with closing(table.source()) as source:
        assert ids(take(source, positions)) == ["1", "2", "3", "4", "5"]
        at_once(table, *way, rows(3))
        refused(source, positions)
    table.run(rows(4))
    with pytest.raises(SourceChanged):
        table.take(positions)
    assert [row["id"] for row in table.take(positions, accept_new=True)] == [1, 2, 3, 4, 5, 6, 7]
    table.run(rows(1))
    assert [row["id"] for row in table.take(positions)] == [8]


@pytest.mark.parametrize(("table", "way"), ANEW, indirect=["table"])
def test_control_who_looks_at_the_rows_alone_loses_those_up_to_the_position(
    table: Table, monkeypatch: pytest.MonkeyPatch, way: list[str]
) -> None:
    """Neither at the sequence nor, in PostgreSQL, at what the table's name stands for; and nobody is told."""
    positions: dict[str, str] = {}
    table.run(rows(5))
    with closing(table.source()) as source:
        monkeypatch.setattr(source._database, "numbers", lambda: None)
        monkeypatch.setattr(source._database, "_check_name", lambda: None, raising=False)
        assert ids(take(source, positions)) == ["1", "2", "3", "4", "5"]
        at_once(table, *way, rows(3))
        assert look(source, positions) == []
        table.run(rows(6))
        assert ids(look(source, positions)) == ["6", "7", "8", "9"]
        source.check_end()


@pytest.mark.parametrize("is_followed", [True, False])
@pytest.mark.parametrize("way", POSTGRESQL_ANEW.values(), ids=POSTGRESQL_ANEW)
def test_numbers_that_have_passed_the_position_before_anybody_looks(
    orders: Table, way: list[str], is_followed: bool
) -> None:
    """No number tells any more: the rows behind the position would be lost, and those before it come as if nothing was."""
    positions: dict[str, str] = {}
    orders.run(rows(5))
    with closing(orders.source()) as source:
        assert len(take(source, positions)) == 5
        at_once(orders, *way, rows(9))
        if is_followed:
            refused(source, positions)
    with pytest.raises(SourceChanged):
        orders.take(positions)


@pytest.mark.parametrize("way", POSTGRESQL_ANEW.values(), ids=POSTGRESQL_ANEW)
def test_between_two_pages(orders: Table, monkeypatch: pytest.MonkeyPatch, way: list[str]) -> None:
    monkeypatch.setattr(tables, "PAGE_ROWS", 2)
    orders.run(rows(5))
    with closing(orders.source()) as source:
        source.restore({})
        batches = source.batches()
        next(batches)
        at_once(orders, *way, rows(9))
        with pytest.raises(SourceChanged):
            next(batches)


def test_between_the_largest_number_and_the_page(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a look has found out before the table was made anew does not count for the other one."""
    way = SQLITE_ANEW["dropped"] if table.url.startswith("sqlite") else POSTGRESQL_ANEW["dropped"]
    positions: dict[str, str] = {}
    table.run(rows(5))
    with closing(table.source()) as source:
        assert len(take(source, positions)) == 5
        table.run(rows(1))
        reached = source._database.horizon.reached

        def made_anew() -> Any:
            found = reached()
            at_once(table, *way, rows(3))
            return found

        monkeypatch.setattr(source._database.horizon, "reached", made_anew)
        refused(source, positions)


def test_the_last_number_is_that_of_the_same_state_as_the_rows(lite: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that finds nothing in a table that was made anew is not believed for numbers that were drawn behind it."""
    positions: dict[str, str] = {}
    lite.run("PRAGMA journal_mode = wal")
    lite.run(rows(5))
    with closing(lite.source()) as source:
        assert len(take(source, positions)) == 5
        lite.run(rows(1))
        reached, numbers = source._database.horizon.reached, source._database.numbers

        def made_anew() -> Any:
            found = reached()
            at_once(lite, *SQLITE_ANEW["dropped"], rows(3))
            monkeypatch.setattr(source._database, "numbers", drawn_meanwhile)
            return found

        def drawn_meanwhile() -> Any:
            lite.run(rows(4))
            return numbers()

        monkeypatch.setattr(source._database.horizon, "reached", made_anew)
        refused(source, positions)


def test_what_was_read_before_it_is_kept(lite: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PAGE_ROWS", 2)
    lite.run(rows(5))
    with closing(lite.source()) as source:
        source.restore({})
        batches = source.batches()
        first = next(batches)
        at_once(lite, *SQLITE_ANEW["dropped"], rows(1))
        [last] = list(batches)
        assert last.rows is None
        assert TablePosition.of(next(iter(first.positions.values())) or "").value == 2
        position = TablePosition.of(next(iter(last.positions.values())) or "")
        assert position.value == 2
        assert "began anew, the last one is 1" in position.refused
        with pytest.raises(SourceChanged, match="began anew, the last one is 1"):
            source.check_end()


def test_it_is_committed_before_it_is_refused(
    lite: Table, broker: EmbeddedBroker, topic: TopicFactory, read: Reader
) -> None:
    """Whoever starts it again, and again, does not start it on other numbers."""
    target, name = topic(), f"anew-{next_number()}"
    lite.run(rows(5))

    def made_anew(event: Event) -> None:
        if isinstance(event, Committed) and event.rows:
            at_once(lite, *SQLITE_ANEW["dropped"], rows(3))

    def run(tell: Callable[[Event], None], *, follow: bool) -> None:
        with (
            closing(lite.source()) as source,
            SourceCommitter(name, ClusterSettings.of(broker.bootstrap_servers)) as committer,
        ):
            Ingest(name, target, source, tell).run(committer, follow=follow)

    with pytest.raises(SourceChanged):
        run(made_anew, follow=True)
    lite.run(rows(9))
    for _ in range(2):
        with pytest.raises(SourceChanged):
            run(lambda event: None, follow=False)
    assert len(read(target)) == 5


@pytest.mark.parametrize(
    ("table", "way"),
    [*ANEW[: len(SQLITE_ANEW)], ANEW[-1]],
    indirect=["table"],
)
def test_a_start_that_finds_it_notes_it_too(table: Table, way: list[str]) -> None:
    """Refused alone, the next start would find numbers that have passed the position, and nothing to say."""
    positions: dict[str, str] = {}
    table.run(rows(5))
    table.take(positions)
    at_once(table, *way, rows(3))
    with closing(table.source()) as source:
        assert take(source, positions) == []
        with pytest.raises(SourceChanged, match="began anew, the last one is 3"):
            source.check_end()
        with pytest.raises(SourceChanged, match="began anew, the last one is 3"):
            look(source, positions)
    table.run(rows(9))
    with pytest.raises(SourceChanged, match="began anew, the last one is 3"):
        table.take(positions)
    assert [row["id"] for row in table.take(positions, accept_new=True)] == list(range(1, 13))


@pytest.mark.parametrize(
    ("table", "way"),
    [*ANEW[: len(SQLITE_ANEW)], ANEW[-1]],
    indirect=["table"],
)
def test_a_start_notes_what_it_saw_before_it_had_fenced_whoever_runs(table: Table, way: list[str]) -> None:
    """The numbers pass the position while it waits for its turn; then nothing tells any more."""
    positions: dict[str, str] = {}
    table.run(rows(5))
    table.take(positions)
    at_once(table, *way, rows(3))
    with closing(table.source()) as source:
        source.restore(dict(positions))
        table.run(rows(6))
        assert take(source, positions) == []
        with pytest.raises(SourceChanged, match="began anew, the last one is 3"):
            source.check_end()
    with pytest.raises(SourceChanged, match="began anew, the last one is 3"):
        table.take(positions)
    with closing(table.source(accept_new=True)) as source:
        source.restore(dict(positions))
        assert len(take(source, positions)) == 9


def test_a_start_that_is_to_begin_anew_does_so_when_the_numbers_pass_the_position_meanwhile(lite: Table) -> None:
    positions: dict[str, str] = {}
    lite.run(rows(5))
    lite.take(positions)
    at_once(lite, *SQLITE_ANEW["dropped"], rows(3))
    with closing(lite.source(accept_new=True)) as source:
        source.restore(dict(positions))
        lite.run(rows(6))
        assert len(take(source, positions)) == 9


def test_what_a_start_saw_says_nothing_of_a_position_that_another_one_has_committed_meanwhile(lite: Table) -> None:
    """That one was told to read the table from its beginning."""
    positions: dict[str, str] = {}
    lite.run(rows(5))
    lite.take(positions)
    at_once(lite, *SQLITE_ANEW["dropped"], rows(3))
    with closing(lite.source()) as source:
        source.restore(dict(positions))
        assert len(lite.take(positions, accept_new=True)) == 3
        lite.run(rows(6))
        assert len(take(source, positions)) == 6
        source.check_end()


# ------------------------------------------------------------------------------------------------ what only looks so

SQLITE_SAME = {
    "vacuum": ["VACUUM"],
    "column added": ["ALTER TABLE {t} ADD COLUMN more TEXT DEFAULT 'b'"],
    "column renamed": ["ALTER TABLE {t} RENAME COLUMN note TO remark", "ALTER TABLE {t} RENAME COLUMN remark TO note"],
    "index": ["CREATE INDEX {t}_note ON {t} (note)", "REINDEX", "ANALYZE", "DROP INDEX {t}_note"],
    "other tables": ["CREATE TABLE {t}_other (id INTEGER PRIMARY KEY AUTOINCREMENT)", "DROP TABLE {t}_other"],
    "emptied": ["DELETE FROM {t}"],
    "sequence forgotten": ["DELETE FROM sqlite_sequence WHERE name = '{t}'"],
    "made anew with its rows": [
        "CREATE TABLE {t}_new (id INTEGER PRIMARY KEY AUTOINCREMENT, note TEXT NOT NULL)",
        "INSERT INTO {t}_new SELECT * FROM {t}",
        "DROP TABLE {t}",
        "ALTER TABLE {t}_new RENAME TO {t}",
    ],
}
POSTGRESQL_SAME = {
    "vacuum": ["VACUUM FULL {t}", "VACUUM {t}", "ANALYZE {t}"],
    "cluster": ["CLUSTER {t} USING {t}_pkey"],
    "reindex": ["REINDEX TABLE {t}", "REINDEX TABLE CONCURRENTLY {t}"],
    "column added": ["ALTER TABLE {t} ADD COLUMN more text DEFAULT clock_timestamp()::text"],
    "column changed": ["ALTER TABLE {t} ALTER COLUMN note TYPE varchar(9)"],
    "larger numbers": ["ALTER TABLE {t} ALTER COLUMN id TYPE bigint"],
    "larger maximum": ["ALTER TABLE {t} ALTER COLUMN id SET MAXVALUE 1000000"],
    "unlogged": ["ALTER TABLE {t} SET UNLOGGED"],
    "emptied": ["DELETE FROM {t}"],
    "truncated": ["TRUNCATE {t}"],
    "sequence set to what it is": ["SELECT setval(pg_get_serial_sequence('{t}', 'id'), max(id) + 1, false) FROM {t}"],
    "sequence renamed": ["ALTER SEQUENCE {t}_id_seq RENAME TO {t}_numbers"],
    "key made anew": ["ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", "ALTER TABLE {t} ADD PRIMARY KEY (id)"],
    "table renamed there and back": ["ALTER TABLE {t} RENAME TO {t}_x", "ALTER TABLE {t}_x RENAME TO {t}"],
    "dropped sequences of others": ["CREATE TABLE {t}_other (id serial)", "DROP TABLE {t}_other"],
}
SAME = [
    *[pytest.param("sqlite", way, id=f"sqlite-{name}") for name, way in SQLITE_SAME.items()],
    *[pytest.param("postgresql", way, id=f"postgresql-{name}") for name, way in POSTGRESQL_SAME.items()],
]


@pytest.mark.parametrize("is_followed", [True, False])
@pytest.mark.parametrize(("kind", "way"), SAME)
def test_a_table_that_is_changed_is_the_same(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, way: list[str], is_followed: bool
) -> None:
    if kind == "sqlite":
        table = sqlite_table(tmp_path)
    else:
        table = postgresql_table(request.getfixturevalue("postgresql"), "int GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
        table.connection.autocommit = True
    positions: dict[str, str] = {}
    table.run(rows(3))
    with closing(table.connection), closing(table.source()) as source:
        assert len(take(source, positions)) == 3
        for statement in way:
            table.run(statement)
        assert not is_followed or look(source, positions) == []
        table.run(rows(2))
        if is_followed:
            assert ids(look(source, positions)) == ["4", "5"]
        assert [row["id"] for row in table.take(positions)] == ([] if is_followed else [4, 5])


def test_a_sequence_that_was_set_forward_is_taken_on_trust(orders: Table) -> None:
    """It could have been set back, and have come here from there."""
    positions: dict[str, str] = {}
    orders.run(rows(3))
    orders.take(positions)
    orders.run("ALTER TABLE {t} ALTER COLUMN id RESTART WITH 1000")
    orders.run(rows(1))
    with pytest.raises(SourceChanged, match="--trust-order goes on as well"):
        orders.take(positions)
    assert [row["id"] for row in orders.take(positions, trust_order=True)] == [1000]
    orders.run(rows(1))
    assert [row["id"] for row in orders.take(positions)] == [1001]


def test_a_position_of_an_earlier_version_learns_which_numbers_it_counts(orders: Table) -> None:
    positions: dict[str, str] = {}
    orders.run(rows(3))
    orders.take(positions)
    [(key, text)] = positions.items()
    positions[key] = replace(TablePosition.of(text), series=()).text()
    assert orders.take(positions) == []
    assert positions == {key: text}


# ---------------------------------------------------------------------------------------------- what a number stands for


def test_a_number_that_the_sequence_has_not_given_is_refused(postgresql: str) -> None:
    """The position would be there, and what the sequence gives next is behind it."""
    table = postgresql_table(postgresql, "bigserial PRIMARY KEY")
    positions: dict[str, str] = {}
    table.run(rows(2))
    with closing(table.connection), closing(table.source()) as source:
        assert len(take(source, positions)) == 2
        table.run("INSERT INTO {t} (id, note) VALUES (1000, 'by hand')")
        with pytest.raises(InputError, match="a row has id 1000, which its sequence has not given"):
            look(source, positions)
        table.run("SELECT setval(pg_get_serial_sequence('{t}', 'id'), 1000)")
        assert [row["id"] for row in table.take(positions)] == [1000]


def insert_into(table: Table) -> sql.Composed:
    return sql.SQL("INSERT INTO {} (note) VALUES ('late')").format(sql.Identifier(table.name))


def test_a_number_by_hand_that_the_sequence_passes_while_rows_are_waited_for(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who draws a smaller one meanwhile was not noted, and by then nothing tells that it was given by hand."""
    monkeypatch.setattr(horizon, "SETTLE_S", -1.0)
    table, positions, found = postgresql_table(postgresql, "bigserial PRIMARY KEY"), dict[str, str](), list[Row]()
    table.run(rows(2))
    with (
        closing(table.connection),
        closing(table.source()) as source,
        psycopg.connect(postgresql) as noted,
        psycopg.connect(postgresql) as late,
    ):
        noted.execute(insert_into(table))
        table.run("INSERT INTO {t} (id, note) VALUES (1000, 'by hand')")
        with suppress(InputError):
            take(source, positions)
        late.execute(insert_into(table))
        table.run("SELECT setval(pg_get_serial_sequence('{t}', 'id'), 1000)")
        noted.commit()
        look(source, positions, rows=found)
        late.commit()
        look(source, positions, rows=found)
    assert ids(found) == ["1", "2", "3", "4", "1000"]


def test_numbers_that_begin_anew_before_the_first_row_is_read(orders: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writers that were waited for are those of rows that are gone: no position has told the series yet."""
    monkeypatch.setattr(horizon, "SETTLE_S", -1.0)
    positions: dict[str, str] = {}
    orders.run(rows(5))
    with closing(orders.source()) as source, psycopg.connect(orders.url) as late:
        with psycopg.connect(orders.url) as noted:
            noted.execute(insert_into(orders))
            assert take(source, positions) == []
        orders.run("TRUNCATE {t} RESTART IDENTITY")
        late.execute(insert_into(orders))
        orders.run(rows(1))
        with pytest.raises(SourceUnavailable, match="began anew while its first rows were waited for"):
            look(source, positions)
        assert orders.take(positions) == []
        late.commit()
    assert [row["id"] for row in orders.take(positions)] == [1, 2]


def test_a_sequence_may_give_numbers_with_a_fraction(postgresql: str) -> None:
    table = postgresql_table(postgresql, "numeric(9, 2) PRIMARY KEY")
    with closing(table.connection):
        table.run("CREATE SEQUENCE {t}_numbers OWNED BY {t}.id")
        table.run("ALTER TABLE {t} ALTER COLUMN id SET DEFAULT nextval('{t}_numbers')")
        positions: dict[str, str] = {}
        table.run(rows(2))
        assert [row["id"] for row in table.take(positions)] == [1.0, 2.0]
        table.run(rows(1))
        assert [row["id"] for row in table.take(positions)] == [3.0]


def test_a_row_that_sqlite_is_given_a_number_for_is_read(lite: Table) -> None:
    """The next number is behind the largest one, whoever gave it."""
    positions: dict[str, str] = {}
    lite.run(rows(2))
    lite.take(positions)
    lite.run("UPDATE {t} SET id = 100 WHERE id = 2")
    assert [row["id"] for row in lite.take(positions)] == [100]
    lite.run(rows(1))
    assert [row["id"] for row in lite.take(positions)] == [101]


def test_rows_that_a_policy_hides_are_not_passed_over(orders: Table) -> None:
    """They may be shown later, behind the position."""
    role = f"clerk_{next_number()}"
    orders.run(f"CREATE ROLE {role} LOGIN")
    orders.run(f"GRANT SELECT ON {{t}}, {{t}}_id_seq TO {role}")
    orders.run("INSERT INTO {t} (note) VALUES ('hidden'), ('shown')")
    owner, orders.url = orders.url, f"{orders.url}&user={role}"
    with closing(orders.source()) as source:
        orders.run("CREATE POLICY {t}_shown ON {t} FOR SELECT USING (note = 'shown')")
        orders.run("ALTER TABLE {t} ENABLE ROW LEVEL SECURITY")
        with pytest.raises(ConfigurationError, match="row-level security"):
            take(source, {})
    with pytest.raises(ConfigurationError, match=f"row level security hides rows of {orders.name}"):
        orders.source()
    assert [row["id"] for row in orders.take({}, trust_order=True)] == [2]
    orders.run(f"ALTER ROLE {role} BYPASSRLS")
    assert [row["id"] for row in orders.take({})] == [1, 2]
    orders.url = owner
    orders.run(f"DROP OWNED BY {role}")
    orders.run(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "change", ["ALTER COLUMN id SET CACHE 20", "ALTER COLUMN id SET INCREMENT -1", "ALTER COLUMN id DROP IDENTITY"]
)
def test_numbers_that_rise_no_more_are_noticed(orders: Table, change: str) -> None:
    positions: dict[str, str] = {}
    orders.run(rows(2))
    with closing(orders.source()) as source:
        assert len(take(source, positions)) == 2
        orders.run(f"ALTER TABLE {{t}} {change}")
        with pytest.raises(ConfigurationError, match="no identity or serial column with a rising sequence of cache 1"):
            look(source, positions)


@pytest.mark.parametrize("options", [{}, {"trust_order": True}, {"rising": "note", "tiebreak": "id", "delay_s": 0.0}])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", "id has no unique index of its own"),
        ("CREATE TABLE {t}_child () INHERITS ({t})", "has child tables by inheritance"),
    ],
)
def test_a_table_that_is_no_longer_one_of_unique_rows_is_noticed(
    orders: Table, options: dict[str, Any], change: str, said: str
) -> None:
    """The writers of a child are not waited for, and a page may end between equal values."""
    positions: dict[str, str] = {}
    orders.run(rows(2))
    with closing(orders.source(**options)) as source:
        assert len(take(source, positions)) == 2
        at_once(orders, change, "INSERT INTO {t} (note) VALUES ('b')")
        with pytest.raises(ConfigurationError, match=said):
            look(source, positions)


def test_a_sequence_that_does_not_give_the_numbers_tells_nothing(postgresql: str) -> None:
    """It is the column's own, but its default draws from another one."""
    table = postgresql_table(postgresql, "bigserial PRIMARY KEY")
    table.run("CREATE SEQUENCE {t}_other CACHE 50")
    table.run("ALTER TABLE {t} ALTER COLUMN id SET DEFAULT nextval('{t}_other')")
    with closing(table.connection), pytest.raises(ConfigurationError, match="no identity or serial column"):
        table.source()


def test_a_role_must_see_where_the_sequence_stands(orders: Table) -> None:
    role = f"clerk_{next_number()}"
    orders.run(f"CREATE ROLE {role} LOGIN")
    orders.run(f"GRANT SELECT ON {{t}} TO {role}")
    orders.run(rows(1))
    owner, orders.url = orders.url, f"{orders.url}&user={role}"
    with pytest.raises(ConfigurationError, match=f'GRANT SELECT ON SEQUENCE "public"."{orders.name}_id_seq"'):
        orders.source()
    assert len(orders.take({}, trust_order=True)) == 1
    orders.run(f"GRANT SELECT ON SEQUENCE {{t}}_id_seq TO {role}")
    assert len(orders.take({})) == 1
    orders.url = owner
    orders.run(f"DROP OWNED BY {role}")
    orders.run(f"DROP ROLE {role}")


# ------------------------------------------------------------------------------------------ where no sequence tells it

BY_TRUST: list[dict[str, Any]] = [
    {"trust_order": True},
    {"rising": "note", "tiebreak": "id", "delay_s": 0.0},
]


@pytest.mark.parametrize("options", BY_TRUST)
@pytest.mark.parametrize("way", ["dropped", "swapped"])
def test_another_table_of_the_name_is_not_read_on_trust(orders: Table, options: dict[str, Any], way: str) -> None:
    positions: dict[str, str] = {}
    orders.run(rows(5))
    with closing(orders.source(**options)) as source:
        assert len(take(source, positions)) == 5
        at_once(orders, *POSTGRESQL_ANEW[way], rows(9))
        with pytest.raises(SourceChanged, match="is not the table that was read before"):
            look(source, positions)


@pytest.mark.parametrize("options", [{}, *BY_TRUST])
def test_a_table_without_its_unique_index_is_not_read(lite: Table, options: dict[str, Any]) -> None:
    positions: dict[str, str] = {}
    lite.run(rows(5))
    with closing(lite.source(**options)) as source:
        assert len(take(source, positions)) == 5
        at_once(lite, "DROP TABLE {t}", "CREATE TABLE {t} (id INTEGER NOT NULL, note TEXT NOT NULL)")
        lite.run("INSERT INTO {t} VALUES (6, 'a'), (6, 'b')")
        with pytest.raises(
            ConfigurationError, match=r"no unique index of its own|is not INTEGER PRIMARY KEY AUTOINCREMENT"
        ):
            look(source, positions)


def test_a_table_that_is_gone_is_named(orders: Table) -> None:
    orders.run(rows(1))
    with closing(orders.source()) as source:
        take(source, {})
        orders.run("DROP TABLE {t}")
        with pytest.raises(OnceflowError, match=f"there is no table .*{orders.name}.* any more"):
            look(source, {})


def test_a_look_waits_for_a_sequence_without_a_lock_on_the_table(orders: Table) -> None:
    """Who changes the sequence first and the table then would else be one of two that wait for each other."""
    orders.run(rows(1))
    with closing(orders.source()) as source, psycopg.connect(orders.url) as other, ThreadPoolExecutor() as looking:
        assert len(take(source, {})) == 1
        orders.run(rows(1))
        reached = source._database.horizon.reached

        def while_it_is_changed() -> Any:
            found = reached()
            other.execute(sql.SQL("ALTER SEQUENCE {} MAXVALUE 100").format(sql.Identifier(f"{orders.name}_id_seq")))
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(source._database.horizon, "reached", while_it_is_changed)
            found = looking.submit(look, source, {})
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
            eventually(
                lambda: orders.connection.execute(waiting, [f"{orders.name}_id_seq"]).fetchone()[0],
                lambda count: count == 1,
                "the look waits",
            )
            orders.connection.rollback()
            other.execute(sql.SQL("ALTER TABLE {} ADD COLUMN more text").format(sql.Identifier(orders.name)))
            other.commit()
            assert ids(found.result()) == ["2"]


# ------------------------------------------------------------------------------------- the same table in another place


def moved(table: Table, directory: Path) -> None:
    """By a copy of the file, or as by a dump that is restored."""
    if table.url.startswith("sqlite"):
        with closing(sqlite3.connect(directory / "copy.db")) as copy:
            table.connection.backup(copy)
        table.connection.close()
        (directory / "copy.db").replace(directory / "shop.db")
        table.connection = sqlite3.connect(directory / "shop.db")
        return
    statements = [
        "CREATE TABLE {t}_copy (LIKE {t} INCLUDING ALL)",
        "INSERT INTO {t}_copy OVERRIDING SYSTEM VALUE SELECT * FROM {t}",
        "SELECT setval(pg_get_serial_sequence('{t}_copy', 'id'), nextval(pg_get_serial_sequence('{t}', 'id')))",
        "DROP TABLE {t}",
        "ALTER TABLE {t}_copy RENAME TO {t}",
    ]
    at_once(table, *statements)


def test_a_table_that_was_moved_goes_on_by_hand_under_the_name_of_its_events(table: Table, tmp_path: Path) -> None:
    """Read from its beginning every event would be another one to its readers."""
    positions: dict[str, str] = {}
    table.run(rows(3))
    with closing(table.source()) as source:
        before = take(source, positions)
    moved(table, tmp_path)
    with pytest.raises(SourceChanged, match="not the table that was read before"):
        table.take(positions)
    with closing(table.source(accept_same=True)) as source:
        assert take(source, positions) == []
    table.run(rows(1))
    with closing(table.source()) as source:
        [row] = take(source, positions)
    assert {row.identity.source} == {found.identity.source for found in before}
    assert row.id not in ids(before)


def test_a_table_that_comes_back_has_other_events_than_the_first_time(tmp_path: Path) -> None:
    """A database, another one in its place, and the first one again; the table is made anew each time."""
    positions: dict[str, str] = {}
    identities: list[tuple[str, str]] = []
    for place in ("first", "second", "first", "second"):
        (tmp_path / place).mkdir(exist_ok=True)
        anew = Table(f"sqlite:///{tmp_path}/{place}/shop.db", "orders", "DROP TABLE IF EXISTS orders")
        at_once(anew, SQLITE, rows(3))
        anew.connection.close()
        (tmp_path / "shop.db").unlink(missing_ok=True)
        (tmp_path / "shop.db").hardlink_to(tmp_path / place / "shop.db")
        anew.url = f"sqlite:///{tmp_path}/shop.db"
        with closing(anew.source(accept_new=True)) as source:
            identities += [(row.identity.source, row.id) for row in take(source, positions)]
    assert len(set(identities)) == len(identities) == 12


def test_a_table_of_another_order_or_of_fewer_numbers_is_not_the_same(table: Table, tmp_path: Path) -> None:
    positions: dict[str, str] = {}
    table.run(rows(3))
    table.take(positions)
    at_once(table, *(SQLITE_ANEW if table.url.startswith("sqlite") else POSTGRESQL_ANEW)["dropped"], rows(2))
    with pytest.raises(SourceChanged):
        table.take(positions, accept_same=True)
    table.run(rows(2))
    with pytest.raises(SourceChanged):
        table.take(positions, accept_same=True, rising="note", tiebreak="id")
    assert [row["id"] for row in table.take(positions, accept_same=True)] == [4]
