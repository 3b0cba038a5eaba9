"""The SQL that ``onceflow outbox init`` prints, and the tables that the relay takes."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from tests.faults.support import Cluster
from tests.outbox.support import Shop, events, make_outbox, make_sqlite, make_topics

from onceflow.errors import ConfigurationError, OutboxMismatch, OutboxUnavailable
from onceflow.outbox import arriving, sql
from onceflow.outbox.checks import check_rows
from onceflow.outbox.position import Sent
from onceflow.outbox.postgresql import PostgresqlOutbox
from onceflow.outbox.service import outbox_at
from onceflow.outbox.table import Limits, load

DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "outbox.md").read_text()


@pytest.mark.parametrize("text", ["Outbox", "a b", "a.b.c", ".a", "a.", "a;drop", "", "x" * 51, "1a"])
def test_names_that_could_not_stand_in_sql_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        sql.TableName.parse(text)


def test_a_name_may_have_a_schema() -> None:
    assert str(sql.TableName.parse("shop.outbox").relay) == "shop.outbox_relay"


def test_the_command_prints_sql_that_can_run_twice(shop: Shop) -> None:
    database = "sqlite" if shop.mark == "?" else "postgresql"
    command = [sys.executable, "-m", "onceflow.cli", "outbox", "init", database, "--table", shop.table]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    shop.insert_all(events(2))
    shop.relay()
    if database == "sqlite":
        with closing(sqlite3.connect(shop.url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(printed)
    else:
        with psycopg.connect(shop.url) as connection:
            connection.execute(printed.encode())
    shop.insert_all(events(2, first=2))
    assert shop.relay() == 2
    shop.check()


@pytest.mark.parametrize(
    ("kind", "payload"),
    [("bytea", b"\x00\xff"), ("text", "plain"), ("json", '{"a":  1}'), ("thumbnail", b"\x00\xff")],
)
def test_payloads_of_other_types_go_as_they_are(
    cluster: Cluster, postgresql: str, kind: str, payload: str | bytes
) -> None:
    table = sql.TableName.parse(f"public.box_{kind}")
    with psycopg.connect(postgresql) as connection:
        if kind == "thumbnail":
            connection.execute("create domain photo as bytea")
            connection.execute("create domain thumbnail as photo")
        connection.execute(sql.postgresql(table).replace("jsonb,", f"{kind},").encode())
    shop = Shop(cluster, postgresql, str(table), "%s", f"box-{kind}")
    make_topics(cluster, [shop.topic])
    with closing(shop.connect()) as connection:
        shop.insert(connection, "1", payload)
        connection.commit()
    shop.relay()
    [message] = cluster.messages(shop.topic)
    assert message.value() == (payload.encode() if isinstance(payload, str) else payload)


@pytest.mark.parametrize(
    ("types", "payload"),
    [
        (("jsonb", "bytea using convert_to(payload::text, 'UTF8')"), '{"a": 1}'),
        (("bytea", "jsonb using convert_from(payload, 'UTF8')::jsonb"), b'{"a": "b"}'),
    ],
    ids=["to bytes", "from bytes"],
)
def test_a_payload_whose_type_is_altered_while_the_relay_runs_goes_as_it_is(
    shop_postgresql: Shop, types: tuple[str, str], payload: str | bytes
) -> None:
    """It went as PostgreSQL's text of the bytes, or as Python's of the JSON, and the rows were deleted."""
    shop = shop_postgresql
    first, second = types
    if first != "jsonb":
        shop.change(f"alter table {shop.table} alter payload type {first} using ''")
    table = outbox_at(shop.url, shop.table)
    table.open()
    with closing(table), closing(shop.connect()) as connection:
        shop.insert(connection, "7", payload)
        connection.commit()
        taken = table.take(table.place(), Limits())
        shop.change(f"alter table {shop.table} alter payload type {second}")
        assert [row.payload for row in table.take(table.place(), Limits())] == [row.payload for row in taken]


def test_nobody_alters_the_type_between_the_question_and_the_rows(shop_postgresql: Shop) -> None:
    shop = shop_postgresql
    shop.insert_all(events(1))
    table = PostgresqlOutbox(shop.url, sql.TableName.parse(shop.table))
    table.open()
    with closing(table), table._all_rows(), closing(shop.connect()) as other:
        assert not table._holds_bytes()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute(f"lock table {shop.table} in access exclusive mode nowait")


def test_a_table_without_the_trigger_is_refused(shop_postgresql: Shop) -> None:
    shop = shop_postgresql
    shop.change(f"alter table {shop.table} disable trigger {shop.table}_number")
    with pytest.raises(OutboxMismatch, match="missing or disabled"):
        shop.relay()


def test_a_role_that_may_only_insert_can_use_it(shop_postgresql: Shop) -> None:
    shop = shop_postgresql
    with psycopg.connect(shop.url) as connection:
        connection.execute(f"create role clerk_{shop.table}".encode())
        connection.execute(f"grant insert on {shop.table} to clerk_{shop.table}".encode())
        connection.execute(f"set role clerk_{shop.table}".encode())
        shop.insert(connection, "1", "1")
        connection.commit()
    assert shop.relay() == 1


def granted(shop: Shop, *grants: str) -> str:
    """The address for a relay whose role has these rights."""
    role = f"relay_{shop.table}"
    shop.change(f"create role {role}")
    for grant in grants:
        shop.change(f"grant {grant} to {role}")
    return f"{shop.url}{'&' if '?' in shop.url else '?'}options=-c%20role%3D{role}"


@pytest.mark.parametrize("lacking", ["select", "delete", "select _relay", "update _relay"])
def test_a_right_that_is_lacking_is_told_before_anything_is_sent(shop_postgresql: Shop, lacking: str) -> None:
    """DELETE is needed behind Kafka's commit alone: the events would be out, and who heard of an error not know it."""
    shop = shop_postgresql
    shop.insert_all(events(2))
    rights = ["select", "delete", "select _relay", "update _relay"]
    url = granted(shop, *(on_table(shop, right) for right in rights if right != lacking))
    with pytest.raises(OutboxMismatch, match=r"permission denied|lacks DELETE") as caught:
        shop.relay(url=url)
    assert f"SELECT and DELETE on {shop.table}, SELECT and UPDATE on {shop.table}_relay" in caught.value.action
    assert (shop.values(), shop.rows_left()) == ([], 2)
    shop.change(f"grant {on_table(shop, lacking)} to relay_{shop.table}")
    assert shop.relay(url=url) == 2


def on_table(shop: Shop, right: str) -> str:
    """``update _relay``: UPDATE on the table beside the outbox."""
    operation, _, suffix = right.partition(" ")
    return f"{operation} on {shop.table}{suffix}"


@pytest.mark.parametrize("lacking", ["select", "insert"])
def test_a_right_on_the_table_of_refused_rows_is_told_before_anything_is_sent(
    shop_postgresql: Shop, lacking: str
) -> None:
    shop = shop_postgresql
    shop.insert_all(events(2))
    rights = ["select", "delete", "select _relay", "update _relay", "select _refused", "insert _refused"]
    there = [on_table(shop, right) for right in rights if right != f"{lacking} _refused"]
    url = granted(shop, *there)
    with pytest.raises(OutboxMismatch, match=r"permission denied|lacks INSERT") as caught:
        shop.relay(url=url, dead_letters=True)
    assert f"SELECT and INSERT on {shop.table}_refused" in caught.value.action
    assert (shop.values(), shop.claimed_by()) == ([], None)
    assert shop.relay(url=url) == 2
    shop.change(f"grant {lacking} on {shop.table}_refused to relay_{shop.table}")
    assert shop.relay(url=url, dead_letters=True) == 0


def test_what_refuses_the_deletion_is_told_with_what_is_in_kafka(shop: Shop) -> None:
    """Who believed that nothing was sent would send the rows in another way."""
    shop.insert_all(events(1))
    if shop.mark == "?":
        shop.change("create trigger kept before delete on outbox begin select raise(abort, 'kept'); end")
    else:
        shop.change(f"create table {shop.table}_audit as select id as event from {shop.table}")
        shop.change(f"alter table {shop.table}_audit add foreign key (event) references {shop.table} (id)")
    with pytest.raises(
        OutboxMismatch, match="batch 1 is committed in Kafka, and this relay has deleted none of its rows"
    ):
        shop.relay()
    assert (shop.values(), shop.rows_left()) == (["0"], 1)
    shop.change("drop trigger kept" if shop.mark == "?" else f"drop table {shop.table}_audit")
    assert shop.relay() == 0
    shop.check()


def test_an_outbox_is_made_once_more_without_notify(shop_postgresql: Shop) -> None:
    """Whoever wants PREPARE TRANSACTION is told so; the trigger would refuse it."""
    shop = shop_postgresql
    assert first_heard(shop) == ""
    make_outbox(shop, notify=False)
    assert first_heard(shop) == "behind it"
    make_outbox(shop)
    assert first_heard(shop) == ""


def first_heard(shop: Shop) -> str:
    """Of an event and of what is told behind it."""
    with psycopg.connect(shop.url, autocommit=True) as listener:
        listener.execute(f"listen {sql.CHANNEL}".encode())
        shop.insert_all(events(1))
        shop.change(f"notify {sql.CHANNEL}, 'behind it'")
        return next(listener.notifies(timeout=60)).payload


DEBEZIUM = """create table {} (id uuid primary key, aggregatetype varchar(255) not null, aggregateid varchar(255) not null,
type varchar(255) not null, payload jsonb)"""


def test_a_table_of_debezium_is_taken_over_as_documented(cluster: Cluster, postgresql: str) -> None:
    """With all of its rows deleted, as the page says: with one left PostgreSQL refuses the column."""
    [statement] = re.findall(r"`(alter table outbox add column position [^`]*)`", DOCUMENTATION)
    shop = Shop(cluster, postgresql, "debezium", "%s", "debezium")
    make_topics(cluster, [shop.topic])
    shop.change(DEBEZIUM.format(shop.table))
    shop.change(f"insert into {shop.table} values (gen_random_uuid(), 'debezium', '1', 'Changed', '1')")
    alter = statement.replace("table outbox", f"table {shop.table}")
    with pytest.raises(psycopg.errors.NotNullViolation):
        shop.change(alter)
    shop.change(f"delete from {shop.table}")
    shop.change(alter)
    make_outbox(shop)
    shop.insert_all(events(2))
    assert shop.relay() == 2
    shop.check()


@pytest.mark.parametrize(
    "policies", [("for select using (aggregateid <> '7')", "for delete using (true)"), ("for select using (true)",)]
)
def test_row_level_security_is_refused_before_anything_is_sent(
    shop_postgresql: Shop, policies: tuple[str, ...]
) -> None:
    """Rows that the relay may not see would wait without a word; those that it may not delete would be sent for ever."""
    shop = shop_postgresql
    role = f"relay_{shop.table}"
    shop.insert_all(events(1))
    for statement in (
        f"create role {role}",
        f"grant select, delete on {shop.table} to {role}",
        f"grant select, update on {shop.table}_relay to {role}",
        f"alter table {shop.table} enable row level security",
        *(f"create policy p{number} on {shop.table} {policy}" for number, policy in enumerate(policies)),
    ):
        shop.change(statement)
    with closing(psycopg.connect(shop.url)) as connection:
        shop.insert(connection, "7", "1")
        connection.commit()
    separator = "&" if "?" in shop.url else "?"
    with pytest.raises(OutboxMismatch, match="row-level security"):
        shop.relay(url=f"{shop.url}{separator}options=-c%20role%3D{role}")
    assert shop.values() == []
    assert shop.rows_left() == 2


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be read as the header of one" * 20)
    for path in ("text.db", "none.db"):
        with pytest.raises(OutboxMismatch):
            outbox_at(f"sqlite:///{tmp_path / path}", "outbox").open()
    assert not (tmp_path / "none.db").exists()


def box_of_ids(path: Path, declared: str, *ids: object, is_strict: bool = False) -> Path:
    """A SQLite outbox whose column ``id`` is declared so."""
    made = sql.sqlite(sql.TableName.parse("outbox")).replace("id            text ", f"id            {declared} ", 1)
    if declared == "any" and is_strict:
        made = made.replace(");", ") strict;", 1)  # elsewhere such a column makes a number of what looks like one
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(made)
        query = "insert into outbox (id, aggregatetype, aggregateid, type) values (?, 'order', '7', 'Changed')"
        connection.executemany(query, [(each,) for each in ids])
        connection.commit()
    return path


@pytest.mark.parametrize("declared", ["", "blob", "any"])
@pytest.mark.parametrize(("number", "text"), [(1, "1"), (1.5, "1.5")])
def test_a_number_is_no_id_where_a_text_of_the_same_letters_is_another_one(
    tmp_path: Path, declared: str, number: float, text: str
) -> None:
    """The table holds both, and in Kafka they would have one name: a reader takes the second for a repetition."""
    outbox = outbox_at(f"sqlite:///{box_of_ids(tmp_path / 'shop.db', declared, text, is_strict=True)}", "outbox")
    outbox.open()
    assert [row.id for row in outbox.take(outbox.place(), Limits())] == [text]
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("update outbox set id = ?", (number,))
        connection.commit()
    with pytest.raises(
        OutboxMismatch, match=rf"position 1: its id is the number {text}, in a column that keeps"
    ) as caught:
        outbox.take(outbox.place(), Limits())
    outbox.close()
    assert "text" in caught.value.action


@pytest.mark.parametrize("declared", ["integer", "varchar(9)", "numeric", "TEXT", "any"])
def test_elsewhere_the_column_makes_them_one(tmp_path: Path, declared: str) -> None:
    path = box_of_ids(tmp_path / "shop.db", declared, 1)
    with pytest.raises(sqlite3.IntegrityError):
        box_of_ids(path, declared, "1")
    outbox = outbox_at(f"sqlite:///{path}", "outbox")
    outbox.open()
    assert [row.id for row in outbox.take(outbox.place(), Limits())] == ["1"]
    outbox.close()


def test_beginning_anew_as_documented(shop: Shop) -> None:
    shop.insert_all(events(2))
    shop.relay()
    shop.change(f"update {shop.table}_relay set batch = 0")
    with pytest.raises(OutboxMismatch, match=r"docs/outbox\.md"):
        shop.relay()
    [(statement, sqlite)] = re.findall(r"(update outbox_relay set .*);  -- SQLite: (.*)", DOCUMENTATION)
    if shop.mark == "?":
        statement = statement.replace("gen_random_uuid()", sqlite)
    shop.change(statement.replace("outbox_relay", f"{shop.table}_relay"))
    shop.insert_all(events(2, first=2))
    assert shop.relay(name=f"{shop.name}-anew") == 2
    shop.check()


def test_a_position_names_its_rows_in_few_words() -> None:
    sent = Sent("i", 3, 10).following((position, f"id{position}") for position in [4, 5, 6, 9, 11, 12])
    assert (sent.batch, sent.events, sent.rows) == (4, 16, ((4, 6), (9, 9), (11, 12)))
    assert list(sent.positions()) == [4, 5, 6, 9, 11, 12]
    assert Sent.from_json(sent.to_json()) == sent


def test_a_row_whose_id_is_null_is_the_one_that_was_sent() -> None:
    """Its letter is committed by then: the relay could neither go on nor back."""
    sent = Sent("x").following(
        [(row.position, row.id) for row in load([(5, None, "a", "b", "c", None, None)], Limits())]
    )
    check_rows("here", sent, [(5, None)])
    with pytest.raises(OutboxMismatch):
        check_rows("here", sent, [(5, "another")])


def test_a_column_of_another_type_is_not_asked_for_without_end(shop_postgresql: Shop) -> None:
    shop = shop_postgresql
    shop.insert_all(events(1))
    shop.change(f"alter table {shop.table} alter column inserted_at drop default, alter column inserted_at type text")
    with pytest.raises(OutboxMismatch, match=r"isfinite\(text\)"):
        shop.relay()


def test_what_is_taken_from_sqlite_is_on_disk(shop_sqlite: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service without sync may have had its log emptied into the file; our own commit syncs the log alone."""
    shop_sqlite.insert_all(events(1))
    synced: set[str] = set()
    fsync = os.fsync

    def noted(file: int) -> None:
        synced.add(Path(f"/proc/self/fd/{file}").readlink().name)
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    assert shop_sqlite.relay() == 1
    assert Path(shop_sqlite.url.removeprefix("sqlite:///")).name in synced


def test_a_refusal_that_rolls_back_by_itself_is_told_as_what_it_is(shop_sqlite: Shop) -> None:
    """SQLite has ended the transaction by then; a second rollback would fail, and its error hide the first."""
    shop_sqlite.insert_all(events(1))
    shop_sqlite.change(
        "create trigger kept before delete on outbox begin select raise(rollback, 'rows are kept here'); end"
    )
    with pytest.raises(OutboxMismatch, match="rows are kept here"):
        shop_sqlite.relay()


def test_a_table_that_was_renamed_is_not_waited_for_without_end_although_services_go_on_to_write(
    shop_sqlite: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = outbox_at(shop_sqlite.url, "outbox")
    table.open()
    table.close()
    shop_sqlite.change("alter table outbox rename to outbox_before")
    shop_sqlite.change("create table orders (number integer)")
    with pytest.raises(OutboxUnavailable, match="waiting for"):
        table.open()
    table.close()
    monkeypatch.setattr(arriving, "_WHOLE_S", 0.0)
    shop_sqlite.change("insert into orders values (1)")
    with pytest.raises(OutboxMismatch, match="no table outbox"):
        table.open()
    table.close()


def test_a_database_that_is_replaced_between_two_looks_is_told_as_that(cluster: Cluster, tmp_path: Path) -> None:
    """SQLite says that the old one is read-only, or that its disk has an error."""
    shop = make_sqlite(cluster, tmp_path, journal="delete")
    table = outbox_at(shop.url, "outbox")
    table.open()
    path = Path(shop.url.removeprefix("sqlite:///"))
    with closing(table), closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(tmp_path / "new.db")) as new:
        old.backup(new)
        (tmp_path / "new.db").replace(path)
        with pytest.raises(OutboxUnavailable, match="replaced or removed"):
            table.claim(shop.name, "instance", over=None)


def test_a_database_that_is_gone_is_told_as_one_that_may_come_back(
    shop_sqlite: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what stands there instead, and does not change any more, as what it is."""
    table = outbox_at(shop_sqlite.url, "outbox")
    path = Path(shop_sqlite.url.removeprefix("sqlite:///"))
    table.open()
    path.unlink()
    with pytest.raises(OutboxUnavailable, match="replaced or removed"):
        table.take(table.place(), Limits())
    table.close()
    for content in (None, "", "no database" * 100):
        if content is not None:
            path.write_text(content)
        with pytest.raises(OutboxUnavailable, match="waiting for"):
            table.open()
        table.close()
    monkeypatch.setattr(arriving, "_RESTS_S", 0.0)
    with pytest.raises(OutboxMismatch, match="not a database"):
        table.open()
    table.close()
