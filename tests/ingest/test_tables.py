"""Tables of a real SQLite and a real PostgreSQL: no row missed that becomes visible late, none read twice."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from psycopg import sql
from tests.ingest.support import ids, look, rows_of, take, values

from onceflow.errors import ConfigurationError, InputError, SourceChanged, SourceUnavailable, SourceUnfinished
from onceflow.ingest import horizon, tables
from onceflow.ingest import postgresql as postgresql_tables
from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.events import Committed, Event, Finished, RowsToCome, Started, Waits
from onceflow.ingest.runner import Ingest
from onceflow.ingest.tables import TableOptions, TablePosition, TableSource, connect
from onceflow.kafka.settings import ClusterSettings
from onceflow.outbox.service import outbox_at
from onceflow.reader.stores import open_store

if TYPE_CHECKING:
    from tests.conftest import Reader, TopicFactory

    from onceflow.broker import EmbeddedBroker

_numbers = itertools.count()


def next_number() -> int:
    """For a name of its own."""
    return next(_numbers)


class Table:
    """An empty table with a rising id and a note, and the connection of one who writes to it."""

    def __init__(self, url: str, name: str, create: str) -> None:
        self.url = url
        self.name = name
        self.connection: Any = psycopg.connect(url) if url.startswith("postgresql") else sqlite3.connect(url[10:])
        self.run(create)

    def run(self, statement: str) -> None:
        """A statement about ``{t}``, committed."""
        self.connection.execute(statement.format(t=self.name))
        self.connection.commit()

    def insert(self, *notes: str) -> None:
        for note in notes:
            self.run(f"INSERT INTO {{t}} (note) VALUES ('{note}')")

    def source(self, **options: Any) -> TableSource:
        given = TableOptions(**{"table": self.name, "rising": "id", **options})
        return TableSource(connect(self.url, given), given)

    def take(self, positions: dict[str, str], batches: int | None = None, **options: Any) -> list[dict[str, Any]]:
        """A run of its own."""
        source = self.source(**options)
        try:
            return [json.loads(value) for value in values(take(source, positions, batches))]
        finally:
            source.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    is_sqlite = request.param == "sqlite"
    made = sqlite_table(tmp_path) if is_sqlite else postgresql_table(request.getfixturevalue("postgresql"))
    yield made
    made.connection.close()


def sqlite_table(directory: Path) -> Table:
    create = "CREATE TABLE {t} (id INTEGER PRIMARY KEY AUTOINCREMENT, note TEXT)"
    return Table(f"sqlite:///{directory}/shop.db", f"orders_{next(_numbers)}", create)


def postgresql_table(url: str, column: str = "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY") -> Table:
    return Table(url, f"orders_{next(_numbers)}", f"CREATE TABLE {{t}} (id {column}, note text)")


@pytest.fixture
def orders(postgresql: str) -> Iterator[Table]:
    made = postgresql_table(postgresql)
    yield made
    made.connection.close()


def test_every_row_once_in_pages(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PAGE_ROWS", 3)
    positions: dict[str, str] = {}
    table.insert(*"abcdefgh")
    found = table.take(positions, batches=2) + table.take(positions) + table.take(positions)
    table.insert("a", "a")
    found += table.take(positions)
    assert found == [{"id": number, "note": note} for number, note in enumerate("abcdefghaa", 1)]


@pytest.mark.parametrize("options", [{}, {"rising": "note", "tiebreak": "id"}], ids=["one column", "tiebreak"])
def test_the_rows_to_come_are_counted_or_estimated(
    table: Table, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Few are counted, behind each position. Of many it is known about how many there are, or nothing."""
    options = {**options, "delay_s": 0.0} if options else {}
    table.insert(*(f"note {number}" for number in range(9)))
    positions: dict[str, str] = {}
    assert to_come(table, positions, **options) == RowsToCome(9)
    monkeypatch.setattr(tables, "COUNTED_ROWS", 8)
    many = to_come(table, positions, **options)
    if table.url.startswith("sqlite"):
        assert many == RowsToCome(9, is_estimate=True), "there are as many numbers"
    else:
        assert many is not None, "as many as the planner thinks"
        assert many.is_estimate
    monkeypatch.setattr(tables, "COUNTED_ROWS", 10_000)
    table.take(positions, **options)
    assert to_come(table, positions, **options) == RowsToCome(0)
    table.insert("note a", "note b")
    assert to_come(table, positions, **options) == RowsToCome(2)


def test_numbers_that_are_no_count_of_rows_estimate_nothing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's rising column may be a time in nanoseconds: far apart, so more numbers than the file has room for."""
    monkeypatch.setattr(tables, "COUNTED_ROWS", 1)
    name = f"{table.name}_times"
    table.run(f"CREATE TABLE {name} (id bigint PRIMARY KEY)")
    table.run(f"INSERT INTO {name} VALUES (1760000000000000000), (1760000001000000000), (1760000002000000000)")
    with closing(table.source(table=name, trust_order=True)) as source:
        source.restore({})
        found = source.rows_to_come()
    if table.url.startswith("sqlite"):
        assert found is None
    else:
        assert found is not None, "the planner knows"
        assert found.is_estimate
        assert found.count < 1_000_000


def test_old_statistics_estimate_nothing(orders: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    orders.insert("a")
    orders.run("ANALYZE {t}")
    orders.insert(*"bcdefghij")
    monkeypatch.setattr(tables, "COUNTED_ROWS", 3)
    with closing(orders.source()) as source:
        database: Any = source._database
        monkeypatch.setattr(database, "_ask_table", _as_if_one_row(database._ask_table))
        source.restore({})
        assert source.rows_to_come() is None


def _as_if_one_row(ask: Any) -> Any:
    """The planner scales its statistics with the table's pages; here it believes in what they say."""

    def asked(query: Any, values: Any) -> Any:
        found = ask(query, values)
        if isinstance(found[0][0], list):
            found[0][0][0]["Plan"]["Plans"][0]["Plan Rows"] = 1
        return found

    return asked


def test_a_number_of_rows_that_nobody_can_tell_holds_no_ingest_up(
    orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is gone when they are asked for: it is the look that is refused. An expensive count is not made."""
    orders.insert("a")
    orders.run("ANALYZE {t}")
    monkeypatch.setattr(postgresql_tables, "_CHEAP", 0.0)
    assert to_come(orders, {}) == RowsToCome(1, is_estimate=True)
    with closing(orders.source()) as source:
        source.restore({})
        orders.run("DROP TABLE {t}")
        assert source.rows_to_come() is None
        with pytest.raises(ConfigurationError, match="there is no table"):
            list(source.batches())


def to_come(table: Table, positions: dict[str, str], **options: Any) -> RowsToCome | None:
    with closing(table.source(**options)) as source:
        source.restore(positions)
        return source.rows_to_come()


def test_wide_rows_come_in_small_pages(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is held in memory whole; narrow rows come in large ones."""
    monkeypatch.setattr(tables, "FIRST_PAGE_ROWS", 2)
    monkeypatch.setattr(tables, "PAGE_CHARACTERS", 1000)
    notes = ["a"] * 30 + ["b" * 400] * 50 + ["c" * 2000] * 3
    table.insert(*notes)
    source = table.source()
    source.restore({})
    pages = [[row.value for row in rows_of(batch.rows)] for batch in source.batches() if batch.rows is not None]
    source.close()
    assert [json.loads(value)["note"] for page in pages for value in page] == notes
    sizes = [len(page) for page in pages]
    assert sizes[0] == 2
    assert sizes[1] > 20
    assert sizes[-1] == 1


def test_numbers_that_json_lacks_arrive_alike(table: Table) -> None:
    """SQLite keeps no NaN."""
    name, kind = f"{table.name}_real", "real" if table.url.startswith("sqlite") else "float8"
    number = (
        "INTEGER PRIMARY KEY AUTOINCREMENT" if kind == "real" else "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    )
    table.run(f"CREATE TABLE {name} (id {number}, v {kind})")
    found = ["1e999", "-1e999", "2.5"] if kind == "real" else ["'Infinity'", "'-Infinity'", "2.5", "'NaN'"]
    for value in found:
        table.run(f"INSERT INTO {name} (v) VALUES ({value})")
    source = table.source(table=name, key="v")
    rows = take(source, {})
    source.close()
    expected = ["Infinity", "-Infinity", 2.5, "NaN"][: len(found)]
    assert [json.loads(value)["v"] for value in values(rows)] == expected
    assert [row.key for row in rows] == [str(value) for value in expected]


def test_texts_of_digits_give_no_sequence(table: Table) -> None:
    """Their order is another: a reader would take 9 behind 10 for an event that it has handled."""
    name = f"{table.name}_text"
    table.run(f"CREATE TABLE {name} (id text PRIMARY KEY NOT NULL, note text)")
    table.run(f"INSERT INTO {name} VALUES ('9', 'a'), ('10', 'b')")
    source = table.source(table=name, trust_order=True)
    rows = take(source, {})
    source.close()
    assert ids(rows) == ["10", "9"]
    assert [row.identity.sequence for row in rows] == [None, None]


def test_names_and_keys(table: Table) -> None:
    table.insert("a", "b")
    source = table.source(key="note")
    rows = take(source, {})
    source.close()
    assert ids(rows) == ["1", "2"]
    assert [row.identity.sequence for row in rows] == [1, 2]
    assert [row.key for row in rows] == ["a", "b"]
    [uri] = {row.identity.source for row in rows}
    assert uri.startswith(table.url.split(":")[0])
    assert table.name in uri


def test_numbers_that_begin_anew_are_refused(table: Table) -> None:
    positions: dict[str, str] = {}
    table.insert("a", "b")
    first = table.source()
    before = take(first, positions)
    first.close()
    if table.url.startswith("sqlite"):
        table.run("DELETE FROM {t}")
        table.run("DELETE FROM sqlite_sequence WHERE name = '{t}'")
    else:
        table.run("TRUNCATE {t} RESTART IDENTITY")
    table.insert("c")
    if table.url.startswith("sqlite"):
        assert table.take(positions) == [], "it is noted first"
    with pytest.raises(SourceChanged, match="began anew"):
        table.take(positions)
    again = table.source(accept_new=True)
    after = take(again, positions)
    again.close()
    assert values(after) == ['{"id":1,"note":"c"}'] or json.loads(after[0].value) == {"id": 1, "note": "c"}
    assert not {row.identity for row in before} & {row.identity for row in after}


def test_another_table_of_that_name_is_refused(table: Table, tmp_path: Path) -> None:
    positions: dict[str, str] = {}
    table.insert("a")
    table.take(positions)
    if table.url.startswith("sqlite"):
        other = sqlite3.connect(tmp_path / "other.db")
        other.execute(f"CREATE TABLE {table.name} (id INTEGER PRIMARY KEY AUTOINCREMENT, note TEXT)")
        other.close()
        table.url = f"sqlite:///{tmp_path}/other.db"
    else:
        table.run("DROP TABLE {t}")
        table.run("CREATE TABLE {t} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)")
    with pytest.raises(SourceChanged, match="not the table that was read"):
        table.take(positions)


def test_another_table_does_not_come_into_the_topic_of_the_first_one(table: Table) -> None:
    positions: dict[str, str] = {}
    table.insert("a")
    table.take(positions)
    table.run("CREATE TABLE {t}_other AS SELECT * FROM {t}")
    table.run("CREATE UNIQUE INDEX {t}_unique ON {t}_other (id)")
    other = f"{table.name}_other"
    with pytest.raises(
        SourceChanged, match=rf"{other} was never read under this name, but .*{table.name} up to '?1"
    ) as caught:
        table.take(positions, table=other, trust_order=True)
    assert "a name of its own" in caught.value.action
    assert table.take(positions, table=other, trust_order=True, accept_new=True) == [{"id": 1, "note": "a"}]
    assert table.take(positions, table=other, trust_order=True) == []
    table.insert("b")
    assert table.take(positions) == [{"id": 2, "note": "b"}], "from then on both may be read"


def test_a_renamed_table_goes_on_where_the_database_knows_it(orders: Table) -> None:
    positions: dict[str, str] = {}
    orders.insert("a")
    orders.take(positions)
    orders.run("ALTER TABLE {t} RENAME TO {t}_renamed")
    orders.name += "_renamed"
    orders.insert("b")
    assert orders.take(positions) == [{"id": 2, "note": "b"}]


@pytest.mark.parametrize("options", [{}, {"trust_order": True}, {"tiebreak": "note"}])
def test_a_view_is_called_a_view(table: Table, options: dict[str, Any]) -> None:
    table.run("CREATE VIEW {t}_view AS SELECT * FROM {t}")
    with pytest.raises(
        ConfigurationError, match=f"{table.name}_view is a view, and nothing keeps its rows in an order"
    ):
        table.source(table=f"{table.name}_view", **options)


def test_a_materialized_view_may_be_trusted(orders: Table) -> None:
    """It has rows of its own, which a unique index covers."""
    orders.insert("a", "b")
    orders.run("CREATE MATERIALIZED VIEW {t}_kept AS SELECT * FROM {t}")
    orders.run("CREATE UNIQUE INDEX ON {t}_kept (id)")
    kept, positions = f"{orders.name}_kept", dict[str, str]()
    with pytest.raises(ConfigurationError, match="--trust-order"):
        orders.source(table=kept)
    assert [row["note"] for row in orders.take(positions, table=kept, trust_order=True)] == ["a", "b"]
    orders.insert("c")
    orders.run("REFRESH MATERIALIZED VIEW {t}_kept")
    assert [row["note"] for row in orders.take(positions, table=kept, trust_order=True)] == ["c"]


def test_deleting_what_was_read_changes_nothing(table: Table) -> None:
    positions: dict[str, str] = {}
    table.insert("a", "b")
    table.take(positions)
    table.run("DELETE FROM {t}")
    assert table.take(positions) == []
    table.insert("c")
    assert table.take(positions) == [{"id": 3, "note": "c"}]


def test_mistakes_are_named_together(table: Table) -> None:
    with pytest.raises(ConfigurationError) as caught:
        table.source(rising="nothing", key="nobody")
    assert "--rising" in caught.value.message
    assert "--key" in caught.value.message
    with pytest.raises(ConfigurationError, match="there is no table missing"):
        table.source(table="missing")


def test_a_column_that_cannot_be_trusted_is_refused(table: Table) -> None:
    table.run("CREATE TABLE {t}_plain (id integer PRIMARY KEY, note text)")
    table.run("INSERT INTO {t}_plain VALUES (7, 'x')")
    name = f"{table.name}_plain"
    with pytest.raises(ConfigurationError, match="--trust-order"):
        table.source(table=name)
    assert table.take({}, table=name, trust_order=True) == [{"id": 7, "note": "x"}]
    with pytest.raises(ConfigurationError, match=r"unique|AUTOINCREMENT"):
        table.source(table=name, rising="note", trust_order=True)


def test_nulls_are_refused(table: Table) -> None:
    table.run("CREATE TABLE {t}_null (id integer UNIQUE, note text)")
    table.run("INSERT INTO {t}_null VALUES (NULL, 'x')")
    with pytest.raises(InputError, match="NULL"):
        table.take({}, table=f"{table.name}_null", trust_order=True)


def test_no_database(tmp_path: Path) -> None:
    options = TableOptions("t", "id")
    for url in (f"sqlite:///{tmp_path}/none.db", f"postgresql://nobody@/none?host={tmp_path}"):
        with pytest.raises(SourceUnavailable):
            connect(url, options)


def test_three_slashes_name_a_file_of_this_directory_and_four_an_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule of the readers' stores and of the outbox: one URL means one file."""
    table, options = sqlite_table(tmp_path), TableOptions("t", "id")
    monkeypatch.chdir(tmp_path)
    assert Path(vars(open_store("sqlite:///shop.db"))["_path"]).samefile("shop.db")
    assert vars(outbox_at("sqlite:///shop.db", "outbox"))["_path"].samefile("shop.db")
    table.insert("a")
    positions: dict[str, str] = {}
    assert [row["note"] for row in table.take(positions)] == ["a"]
    table.insert("b")
    table.url = "sqlite:///shop.db"
    assert [row["note"] for row in table.take(positions)] == ["b"], "the same table, at the same position"
    monkeypatch.chdir("/")
    with pytest.raises(SourceUnavailable, match=r"there is no file /shop\.db") as raised:
        connect("sqlite:///shop.db", options)
    assert "sqlite:////var/lib/shop.db is absolute" in raised.value.action
    table.connection.close()


@pytest.mark.parametrize("kind", ["text", "directory"])
def test_what_is_no_sqlite_database_is_a_mistake_that_no_later_start_mends(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "shop.csv"
    if kind == "directory":
        path.mkdir()
    else:
        path.write_text("id,note\n1,a\n")
    with pytest.raises(ConfigurationError, match=f"{path} is not a SQLite database") as raised:
        connect(f"sqlite:///{path}", TableOptions("orders", "id"))
    assert not raised.value.retriable
    assert "--file" in raised.value.action


def test_a_table_keeps_the_name_of_its_events_however_its_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ce_source`` is made of the absolute path, and has three slashes in it."""
    table = sqlite_table(tmp_path)
    monkeypatch.chdir(tmp_path)
    for url in (table.url, "sqlite:///shop.db", "sqlite:///shop%2Edb"):
        source = connect(url, TableOptions(table.name, "id"))
        assert source.uri == f"sqlite://{tmp_path}/shop.db/{table.name}"
        source.close()
    table.connection.close()


_URI = re.compile(  # RFC 3986, appendix B, with the characters that each part may have
    r"[a-z]+://(?:[\w.~:-]|%[0-9A-F]{2})*(?:[\w.~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*"
    r"(?:\?(?:[\w.~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?#(?:[\w.~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*",
    re.ASCII,
)


def source_of(table: Table, name: str) -> str:
    """The ``ce_source`` of an event of another table in the same place."""
    quoted = '"' + name.replace('"', '""') + '"'
    made = Table(table.url, quoted, "CREATE TABLE {t} (id bigint PRIMARY KEY)")
    made.run("INSERT INTO {t} VALUES (1)")
    made.connection.close()
    spelled = quoted if table.url.startswith("postgresql") else name
    source = table.source(table=spelled, trust_order=True)
    try:
        [row] = take(source, {})
    finally:
        source.close()
    return row.identity.source


@pytest.mark.parametrize("name", ["a b", "a#b", "größe", "50%", "[a]", 'say"so"', "a%zz", "tab\tbed"])
def test_the_source_of_a_table_is_a_uri_whatever_its_name(table: Table, name: str) -> None:
    source = source_of(table, name)
    assert _URI.fullmatch(source), source
    assert unquote(urlsplit(source).path).endswith(name)


@pytest.mark.parametrize("name", ["Orders", "a.b", "a%20b", "a?b", "a/b", "a:b@c", "it's", "a+b~c"])
def test_a_name_that_may_stand_in_a_uri_does_not_change(table: Table, name: str) -> None:
    """Another source would be other events."""
    source = source_of(table, name)
    assert source.partition("#")[0].endswith(name)
    assert source.endswith(f"-{name}") or not table.url.startswith("sqlite")
    assert _URI.fullmatch(source), source


def test_no_two_tables_of_a_file_have_one_source(tmp_path: Path) -> None:
    table = sqlite_table(tmp_path)
    assert source_of(table, "a b") != source_of(table, "a%20b")
    table.connection.close()


def test_a_source_that_is_committed_goes_on_as_it_is(tmp_path: Path) -> None:
    """Also one that a version before has not escaped."""
    positions: dict[str, str] = {}
    table = Table(f"sqlite:///{tmp_path}/shop.db", "a b", 'CREATE TABLE "{t}" (id INTEGER PRIMARY KEY AUTOINCREMENT)')
    table.run('INSERT INTO "{t}" DEFAULT VALUES')
    table.take(positions)
    [(key, text)] = positions.items()
    before = replace(TablePosition.of(text), source="sqlite:///shop.db/a b#1-a b")
    table.run('INSERT INTO "{t}" DEFAULT VALUES')
    source = table.source()
    rows = take(source, {key: before.text()})
    source.close()
    assert [(row.id, row.identity.source) for row in rows] == [("2", before.source)]
    table.connection.close()


@pytest.mark.parametrize("url", ["sqlite:///", "sqlite://shop.db", "sqlite:///shop.db?mode=rw", "sqlite:///shop#1.db"])
def test_a_url_that_names_no_file_is_a_mistake(url: str) -> None:
    with pytest.raises(ConfigurationError, match="names no file"):
        connect(url, TableOptions("t", "id"))


def test_sqlite_values_keep_their_types(tmp_path: Path) -> None:
    create = "CREATE TABLE {t} (id INTEGER PRIMARY KEY AUTOINCREMENT, note)"
    table = Table(f"sqlite:///{tmp_path}/shop.db", "untyped", create)
    table.connection.execute(f"INSERT INTO {table.name} (note) VALUES (?), (?), (?), (NULL)", (0.1 + 0.2, b"\xff", 7))
    table.connection.commit()
    assert [row["note"] for row in table.take({})] == [0.1 + 0.2, "/w==", 7, None]
    table.connection.close()


def test_a_row_that_becomes_visible_late_is_not_skipped(orders: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open transaction holds number 1 while 2 is committed: nothing is read before it ends, and then both."""
    monkeypatch.setattr(horizon, "SETTLE_S", 0.05)
    positions: dict[str, str] = {}
    with psycopg.connect(orders.url) as late:
        late.execute(sql.SQL("INSERT INTO {} (note) VALUES ('late')").format(sql.Identifier(orders.name)))
        orders.insert("early")
        source = orders.source()
        assert take(source, positions) == []
        with pytest.raises(SourceUnfinished, match="open transactions"):
            source.check_end()
        orders.insert("later")
        assert look(source, positions) == []
        late.commit()
    notes = [json.loads(value)["note"] for value in values(look(source, positions))]
    notes += [json.loads(value)["note"] for value in values(look(source, positions))]
    source.check_end()
    source.close()
    assert notes == ["late", "early", "later"]


def test_a_number_that_was_drawn_before_the_insert_is_waited_for(
    orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As object-relational mappers do: until the INSERT the transaction has a lock on the sequence alone."""
    monkeypatch.setattr(horizon, "SETTLE_S", 0.05)
    positions: dict[str, str] = {}
    insert = sql.SQL("INSERT INTO {} OVERRIDING SYSTEM VALUE VALUES (%s, 'late')").format(sql.Identifier(orders.name))
    with psycopg.connect(orders.url) as late, closing(orders.source()) as source:
        drawn = late.execute("SELECT nextval(pg_get_serial_sequence(%s, 'id'))", [orders.name]).fetchone()
        orders.insert("early")
        assert take(source, positions) == []
        with pytest.raises(SourceUnfinished, match="open transactions"):
            source.check_end()
        late.execute(insert, drawn)
        late.commit()
        assert [json.loads(value)["note"] for value in values(look(source, positions))] == ["late", "early"]
        source.check_end()


def test_what_came_after_the_horizon_waits_for_the_next_one(orders: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 is open and 2 committed; then 3 is open and 4 committed, and 1 ends: 2 may be read now, 4 may not."""
    monkeypatch.setattr(horizon, "SETTLE_S", 0.05)
    positions: dict[str, str] = {}
    insert = sql.SQL("INSERT INTO {} (note) VALUES ('late')").format(sql.Identifier(orders.name))
    source = orders.source()
    with psycopg.connect(orders.url) as first, psycopg.connect(orders.url) as second:
        first.execute(insert)
        orders.insert("early")
        assert take(source, positions) == []
        second.execute(insert)
        orders.insert("early")
        first.commit()
        assert ids(look(source, positions)) == ["1", "2"]
        assert look(source, positions) == []
        second.commit()
    assert ids(look(source, positions)) == ["3", "4"]
    source.close()


def test_without_the_horizon_a_late_row_is_skipped(orders: Table) -> None:
    """The control: an order that is trusted and does not hold."""
    positions: dict[str, str] = {}
    with psycopg.connect(orders.url) as late:
        late.execute(sql.SQL("INSERT INTO {} (note) VALUES ('late')").format(sql.Identifier(orders.name)))
        orders.insert("early")
        found = orders.take(positions, trust_order=True)
        late.commit()
    found += orders.take(positions, trust_order=True)
    assert [row["note"] for row in found] == ["early"]


def test_readers_and_writers_of_other_tables_keep_nothing_back(orders: Table, postgresql: str) -> None:
    other = postgresql_table(postgresql)
    orders.insert("a")
    with psycopg.connect(orders.url) as busy:
        busy.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(orders.name)))
        busy.execute(sql.SQL("INSERT INTO {} (note) VALUES ('b')").format(sql.Identifier(other.name)))
        assert orders.take({}) == [{"id": 1, "note": "a"}]
    other.connection.close()


@pytest.mark.parametrize("column", ["bigserial PRIMARY KEY", "bigint GENERATED ALWAYS AS IDENTITY (CACHE 20) UNIQUE"])
def test_sequences_with_a_cache_are_refused(postgresql: str, column: str) -> None:
    table = postgresql_table(postgresql, column)
    if "CACHE" in column:
        with pytest.raises(ConfigurationError, match="cache 1"):
            table.source()
    else:
        table.source().close()
    table.connection.close()


def test_an_ingest_that_is_stopped_does_not_wait_for_the_delay(
    table: Table, broker: EmbeddedBroker, topic: TopicFactory
) -> None:
    """Ctrl-C while it lets the time pass behind which nothing is missing."""
    table.run("ALTER TABLE {t} ADD COLUMN changed integer NOT NULL DEFAULT 1")
    table.insert("a")
    told: list[Event] = []
    with (
        closing(table.source(rising="changed", tiebreak="id", delay_s=600.0)) as source,
        SourceCommitter(table.name, ClusterSettings.of(broker.bootstrap_servers)) as committer,
    ):

        def tell(event: Event) -> None:
            told.append(event)
            ingest.stop()

        ingest = Ingest(table.name, topic(), source, tell)
        assert ingest.run(committer, follow=True) == 0
    assert told[1:] == [Finished(table.name, 0, "stopped")]


def test_into_kafka(table: Table, broker: EmbeddedBroker, topic: TopicFactory, read: Reader) -> None:
    """It is told how many rows are to come, and, by one that follows, that none is left."""
    target, name = topic(), f"table-{table.name}"
    settings = ClusterSettings.of(broker.bootstrap_servers)
    table.insert("a", "a")
    for rows, resumed in ((2, False), (1, True)):
        started = Started(name, target, resumed, None, RowsToCome(rows))
        told = followed_until_it_waits(table, name, target, settings)
        assert told == [started, Committed(rows, 0), Waits(), Finished(name, rows, "stopped")]
        table.insert("b")
    assert [json.loads(message.value() or b"")["note"] for message in read(target)] == ["a", "a", "b"]


def followed_until_it_waits(table: Table, name: str, target: str, settings: ClusterSettings) -> list[Event]:
    told: list[Event] = []

    def tell(event: Event) -> None:
        told.append(event)
        if isinstance(event, Waits):
            ingest.stop()

    with closing(table.source()) as source, SourceCommitter(name, settings) as committer:
        ingest = Ingest(name, target, source, tell)
        ingest.run(committer, follow=True)
    return told
