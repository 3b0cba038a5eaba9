"""Rows that Kafka can never take: they stop the relay, or are set aside with a letter that tells of them."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.faults.support import Cluster
from tests.forkserver import ForkServer
from tests.outbox.support import Shop, events, make_postgresql, make_topics
from tests.outbox.worker import relay_all

from onceflow.errors import InputError, OutboxMismatch, ProgressConflict, RecordTooLarge
from onceflow.events import identity_of
from onceflow.ingest.committer import SourceCommitter
from onceflow.kafka.settings import ClusterSettings
from onceflow.outbox import sql
from onceflow.outbox.records import as_records, unsendable
from onceflow.outbox.service import KIND
from onceflow.outbox.table import Limits, load

LIMIT_BYTES = 2000


@pytest.fixture
def narrow(shop: Shop) -> Shop:
    """An outbox whose topic takes small records only."""
    shop.kind += "-narrow"
    make_topics(shop.cluster, [shop.topic], config={"max.message.bytes": str(LIMIT_BYTES)})
    return shop


def insert_with_large_ones(shop: Shop, large: set[int], count: int = 6) -> dict[int, str]:
    """Numbers as payloads, of one aggregate; some are too large, even compressed. Their ids."""
    found = {}
    with closing(shop.connect()) as connection:
        for number in range(count):
            payload = json.dumps(random.Random(number).randbytes(5 * LIMIT_BYTES).hex())
            event_id = shop.insert(connection, "7", payload if number in large else str(number))
            if number in large:
                found[number] = event_id
            else:
                shop.inserted.append(("7", str(number)))
        connection.commit()
    return found


def letters(shop: Shop) -> list[dict[str, Any]]:
    return [json.loads(value or "") for _, _, value in shop.cluster.read(f"outbox.dead-letter.{shop.name}")]


def set_aside(shop: Shop) -> list[tuple[Any, ...]]:
    query = f"select cast(id as varchar(99)) from {shop.table}_refused order by position"
    return shop.query(query)


def test_a_row_that_is_too_large_stops_the_relay_and_is_named(narrow: Shop) -> None:
    ids = insert_with_large_ones(narrow, {1})
    with pytest.raises(RecordTooLarge) as caught:
        narrow.relay()
    assert ids[1] in caught.value.message
    assert "--refused dead-letter" in caught.value.action
    assert narrow.values() == []
    assert narrow.rows_left() == 6


def test_rows_are_set_aside_and_told_of_and_the_others_keep_their_order(narrow: Shop) -> None:
    ids = insert_with_large_ones(narrow, {1, 2, 4})
    with closing(narrow.connect()) as connection:
        nameless = narrow.insert(connection, "7", "1", kind="a b")
        connection.commit()
    options = {"dead_letters": True, "create_partitions": 1}
    assert narrow.relay(**options, batch_rows=10) == 7
    narrow.check()
    told = letters(narrow)
    assert sorted(letter["id"] for letter in told) == sorted([*ids.values(), nameless])
    assert {letter["aggregateid"] for letter in told} == {"7"}
    assert all("larger than the topic accepts" in letter["reason"] for letter in told if letter["id"] != nameless)
    assert all(letter["size_bytes"] > LIMIT_BYTES for letter in told if letter["id"] != nameless)
    assert set_aside(narrow) == [(ids[1],), (ids[2],), (ids[4],), (nameless,)]
    assert narrow.relay(**options) == 0


def test_killed_between_the_letter_and_the_setting_aside(narrow: Shop, workers: ForkServer) -> None:
    """The position names the rows that are refused."""
    ids = insert_with_large_ones(narrow, {1}, count=4)
    job = replace(narrow.job, dead_letters=True, create_partitions=1)
    ended = workers.run(replace(job, interrupt=("COMMITTED", 1, int(signal.SIGKILL))))
    assert ended.signal == signal.SIGKILL, ended.text
    assert set_aside(narrow) == []
    assert workers.run(job).error == ""
    assert set_aside(narrow) == [(ids[1],)]
    assert len(letters(narrow)) == 1
    narrow.check()


def test_without_a_place_for_them_nothing_is_begun(shop: Shop) -> None:
    shop.change(f"drop table {shop.table}_refused")
    shop.insert_all(events(1))
    with pytest.raises(OutboxMismatch, match="_refused"):
        shop.relay(dead_letters=True)
    assert shop.relay() == 1


def test_a_start_without_a_place_for_them_leaves_the_relay_that_runs_alone(shop: Shop) -> None:
    shop.change(f"drop table {shop.table}_refused")
    shop.insert_all(events(8))
    refused: list[str] = []

    def start_another(step: str, *_: int) -> None:
        if step == "TAKEN":
            with pytest.raises(OutboxMismatch, match="_refused") as caught:
                shop.relay(dead_letters=True)
            refused.append(caught.value.message)

    assert relay_all(shop.job, start_another) == 8
    assert len(refused) == 2
    shop.check()


# --------------------------------------------------------------------------------------------------------- whole rows


def add_column(shop: Shop, table: str) -> None:
    """A column of the user's own."""
    shop.change(f"alter table {table} add column tenant varchar(9) default 'nobody'")


def insert_for_a_tenant(shop: Shop) -> tuple[Any, ...]:
    """A row that no topic takes; all of it."""
    with closing(shop.connect()) as connection:
        event_id = shop.insert(connection, "7", "1", kind="a b")
        connection.execute(
            f"update {shop.table} set inserted_at = '2001-02-03T04:05:06Z', tenant = 'mine' where id = {shop.mark}",
            (event_id,),
        )
        connection.commit()
    return whole_row(shop, shop.table)


def whole_row(shop: Shop, table: str) -> tuple[Any, ...]:
    columns = "id, aggregatetype, aggregateid, type, payload, inserted_at, position, tenant"
    [row] = shop.query(f"select {columns} from {table}")
    return row


def test_a_row_is_set_aside_as_a_whole(shop: Shop) -> None:
    """The time of its insertion and the columns that the user has added are nowhere else."""
    add_column(shop, shop.table)
    if shop.mark == "%s":  # elsewhere SQL cannot add a column that may be there
        make = sql.postgresql(sql.TableName.parse(shop.table))
        for _ in range(2):
            with psycopg.connect(shop.url) as connection:
                connection.execute(make.encode())
    else:
        add_column(shop, f"{shop.table}_refused")
    row = insert_for_a_tenant(shop)
    assert shop.relay(dead_letters=True, create_partitions=1) == 1
    assert shop.rows_left() == 0
    assert whole_row(shop, f"{shop.table}_refused") == row
    assert "mine" in row


def test_a_generated_column_is_set_aside_as_well(shop_sqlite: Shop) -> None:
    shop = shop_sqlite
    shop.change("alter table outbox add column size integer generated always as (length(payload)) virtual")
    shop.change("drop table outbox_refused")
    with closing(sqlite3.connect(shop.url.removeprefix("sqlite:///"))) as connection:
        connection.executescript(sql.sqlite(sql.TableName.parse("outbox")))
    with closing(shop.connect()) as connection:
        shop.insert(connection, "7", "12345", kind="a b")
        connection.commit()
    assert shop.relay(dead_letters=True, create_partitions=1) == 1
    assert shop.query("select size from outbox_refused") == [(5,)]


def test_where_a_column_would_be_lost_nothing_is_begun_and_the_way_on_is_told(shop: Shop) -> None:
    add_column(shop, shop.table)
    row = insert_for_a_tenant(shop)
    with pytest.raises(OutboxMismatch, match="has no column tenant") as caught:
        shop.relay(dead_letters=True, create_partitions=1)
    assert whole_row(shop, shop.table) == row
    shop.change(caught.value.action.partition(" (for PostgreSQL")[0])
    assert shop.relay(dead_letters=True, create_partitions=1) == 1
    assert whole_row(shop, f"{shop.table}_refused") == row


@pytest.mark.parametrize("name", ["order", "Tenant Id", 'a "b"'])
def test_the_way_on_is_told_for_a_column_of_any_name(shop: Shop, name: str) -> None:
    """PostgreSQL makes small letters of a name without quotes, and a keyword is none."""
    column = name.replace('"', '""')
    shop.change(f'alter table {shop.table} add column "{column}" varchar(9)')
    with closing(shop.connect()) as connection:
        event_id = shop.insert(connection, "7", "1", kind="a b")
        connection.execute(
            f'update {shop.table} set "{column}" = {shop.mark} where id = {shop.mark}', ("mine", event_id)
        )
        connection.commit()
    with pytest.raises(OutboxMismatch, match=f"has no column {name}") as caught:
        shop.relay(dead_letters=True, create_partitions=1)
    shop.change(caught.value.action.partition(" (for PostgreSQL")[0])
    assert shop.relay(dead_letters=True, create_partitions=1) == 1
    assert shop.query(f'select "{column}" from {shop.table}_refused') == [("mine",)]


COMPUTED = {"?": "generated always as (7) virtual", "%s": "generated always as (7) stored"}


def test_a_column_that_is_computed_where_rows_are_set_aside_is_refused_before_anything_is_sent(shop: Shop) -> None:
    """No value can be put into it: after Kafka's commit the relay could neither go on nor back."""
    shop.change(f"alter table {shop.table} add column size integer")
    shop.change(f"alter table {shop.table}_refused add column size integer {COMPUTED[shop.mark]}")
    with closing(shop.connect()) as connection:
        shop.insert(connection, "7", "1", kind="a b")
        connection.commit()
    with pytest.raises(OutboxMismatch, match=r"_refused computes its column size"):
        shop.relay(dead_letters=True, create_partitions=1)
    assert shop.rows_left() == 1
    shop.change(f"alter table {shop.table}_refused drop column size")
    shop.change(f"alter table {shop.table}_refused add column size integer")
    assert shop.relay(dead_letters=True, create_partitions=1) == 1
    assert len(letters(shop)) == 1


def test_a_column_that_numbers_itself_where_rows_are_set_aside_is_refused(shop_postgresql: Shop) -> None:
    shop = shop_postgresql
    shop.change(f"alter table {shop.table}_refused drop column position")
    shop.change(f"alter table {shop.table}_refused add column position bigint generated always as identity")
    with pytest.raises(OutboxMismatch, match=r"_refused computes its column position"):
        shop.relay(dead_letters=True, create_partitions=1)


def test_a_column_that_comes_while_the_relay_runs_is_not_lost(shop: Shop) -> None:
    """The row is out by then, as a letter; it stays in the table until it can be set aside as a whole."""
    with closing(shop.connect()) as connection:
        shop.insert(connection, "7", "1", kind="a b")
        connection.commit()

    def add_at_the_commit(step: str, *_: int) -> None:
        if step == "TAKEN":
            add_column(shop, shop.table)

    job = replace(shop.job, dead_letters=True, create_partitions=1)
    with pytest.raises(OutboxMismatch, match="has no column tenant"):
        relay_all(job, add_at_the_commit)
    assert shop.rows_left() == 1
    add_column(shop, f"{shop.table}_refused")
    assert shop.relay(dead_letters=True, create_partitions=1) == 0
    assert whole_row(shop, f"{shop.table}_refused")[-1] == "nobody"
    assert shop.rows_left() == 0
    assert len(letters(shop)) == 1


# ------------------------------------------------------------------------------------------------ text that is none


COLUMNS = ("id", "aggregatetype", "aggregateid", "type", "payload")


def insert_garbled(shop: Shop) -> None:
    """SQLite keeps any bytes as text; a row for each column, and rows between them whose order must be kept."""
    for number, column in enumerate(COLUMNS):
        shop.insert_all([("7", f"{number} before")])
        with closing(shop.connect()) as connection:
            event_id = shop.insert(connection, "7", "{}", event_id=f"garbled-{column}")
            connection.execute(f"update outbox set {column} = cast(x'61ff' as text) where id = ?", (event_id,))
            connection.commit()
    shop.insert_all([("7", "the last")])


def test_text_that_is_no_utf_8_stops_the_relay_and_each_row_is_named(shop_sqlite: Shop) -> None:
    """It is not an error of the database, for which the relay would begin again and again."""
    shop = shop_sqlite
    insert_garbled(shop)
    with pytest.raises(InputError) as caught:
        shop.relay(batch_rows=20)
    assert not caught.value.retriable
    assert caught.value.fields["positions"] == (2, 4, 6, 8, 10)
    for position, column in zip((2, 4, 6, 8, 10), COLUMNS, strict=True):
        event_id = "a\\xff" if column == "id" else f"garbled-{column}"
        assert f"position {position}, id {event_id}: its {column} is no UTF-8" in caught.value.message
    assert shop.values() == []
    assert shop.rows_left() == 11
    shop.change("update outbox set payload = cast(payload as blob) where position = 10")
    shop.change("delete from outbox where position in (2, 4, 6, 8)")
    assert shop.relay() == 7
    assert [message.value() for message in shop.cluster.messages(shop.topic)][-2:] == [b"a\xff", b"the last"]


def test_text_that_is_no_utf_8_is_set_aside_as_it_stands(shop_sqlite: Shop) -> None:
    shop = shop_sqlite
    insert_garbled(shop)
    assert shop.relay(dead_letters=True, create_partitions=1, batch_rows=20) == 11
    shop.check()
    told = letters(shop)
    assert [letter["reason"] for letter in told] == [f"its {column} is no UTF-8" for column in COLUMNS]
    assert [told[number][column] for number, column in enumerate(COLUMNS[:4])] == ["a\\xff"] * 4
    query = "select hex(id), hex(aggregatetype), hex(aggregateid), hex(type), hex(payload) from outbox_refused order by position"
    aside = shop.query(query)
    assert [row[number] for number, row in enumerate(aside)] == ["61FF"] * 5


@pytest.mark.parametrize("column", COLUMNS[:4])
def test_a_null_is_no_name(shop_postgresql: Shop, column: str) -> None:
    """Where the user's own table allows it: as the text "None" it would be the id, or the key, of every such event."""
    shop = shop_postgresql
    if column == "id":
        shop.change(f"alter table {shop.table} drop constraint {shop.table}_pkey")
    shop.change(f"alter table {shop.table} alter column {column} drop not null")
    shop.insert_all(events(1))
    with closing(shop.connect()) as connection:
        event_id = shop.insert(connection, "7", "1")
        connection.execute(f"update {shop.table} set {column} = null where id = %s", (event_id,))
        connection.commit()
    with pytest.raises(InputError, match=f"position 2, id .*: its {column} is null"):
        shop.relay()
    assert shop.relay(dead_letters=True, create_partitions=1) == 2
    assert [letter["reason"] for letter in letters(shop)] == [f"its {column} is null"]
    assert shop.rows_left() == 0


def test_letters_of_events_without_an_id_are_told_apart(shop_postgresql: Shop) -> None:
    """A reader would take the second one for a repetition of the first."""
    shop = shop_postgresql
    shop.change(f"alter table {shop.table} drop constraint {shop.table}_pkey")
    for column in COLUMNS[:4]:
        shop.change(f"alter table {shop.table} alter column {column} drop not null")
    shop.insert_all(events(3))
    shop.change(f"update {shop.table} set id = null, aggregateid = null, type = null where position > 1")
    assert shop.relay(dead_letters=True, create_partitions=1) == 3
    told = shop.cluster.messages(f"outbox.dead-letter.{shop.name}")
    found = [identity_of(letter.headers()) for letter in told]
    assert [(each.id, each.type) for each in found if each] == [("position:2", ""), ("position:3", "")]
    assert [letter.key() for letter in told] == [None, None]
    assert [[letter[name] for name in COLUMNS[:4]] for letter in letters(shop)] == [[None, shop.kind, None, None]] * 2
    assert set_aside(shop) == [(None,), (None,)]


def test_letters_of_long_ids_are_told_apart() -> None:
    """They are cut in the letter, and may be the same as far as it goes."""
    rows = load([(number, "x" * 300 + str(number), "a b", "7", "Changed", b"{}", None) for number in (1, 2)], Limits())
    [(_, batch)] = as_records(rows, "/outbox", 0, unsendable(rows), "letters")
    found = [identity_of([(each["key"], each["value"]) for each in row]) for row in batch.column("headers").to_pylist()]
    assert [each.id for each in found if each] == ["position:1", "position:2"]


def test_a_constraint_of_the_refused_rows_table_is_told(shop_postgresql: Shop) -> None:
    """To begin again every two seconds would help nobody."""
    shop = shop_postgresql
    shop.change(f"alter table {shop.table} alter column type drop not null")
    shop.change(f"alter table {shop.table}_refused alter column type set not null")
    shop.insert_all(events(1))
    shop.change(f"update {shop.table} set type = null")
    with pytest.raises(OutboxMismatch, match=f"{shop.table}_refused.*not-null"):
        shop.relay(dead_letters=True, create_partitions=1)


def test_bytes_are_no_name_either() -> None:
    """SQLite keeps what it is given, whatever the column says."""
    rows = load([(1, b"\x01\x02", "order", "7", "Changed", b"{}", None)], Limits())
    assert unsendable(rows) == {1: "its id is bytes, and no text"}


def test_an_empty_id_is_no_name_either(shop_sqlite: Shop) -> None:
    """No header is made of it: a reader could not tell a repetition of the event."""
    shop = shop_sqlite
    shop.insert_all(events(1))
    shop.change("update outbox set id = ''")
    with pytest.raises(InputError, match=r"position 1, id .*: its id is empty"):
        shop.relay()
    assert shop.relay(dead_letters=True, create_partitions=1) == 1
    [letter] = shop.cluster.messages(f"outbox.dead-letter.{shop.name}")
    assert dict(letter.headers())["ce_id"] == b"position:1"


def test_a_row_from_before_1970_is_named_or_set_aside(shop: Shop) -> None:
    shop.insert_all(events(1))
    with closing(shop.connect()) as connection:
        event_id = shop.insert(connection, "a0", "1")
        old = f"update {shop.table} set inserted_at = '1969-12-31 12:00:00Z' where id = {shop.mark}"
        connection.execute(old, (event_id,))
        connection.commit()
    with pytest.raises(InputError, match=f"{event_id}: its inserted_at is before 1970"):
        shop.relay()
    assert shop.relay(dead_letters=True, create_partitions=1) == 2
    shop.check()
    assert [letter["id"] for letter in letters(shop)] == [event_id]


def insert_of_another_century(shop: Shop, numbers: set[int], count: int = 12) -> list[str]:
    """Events of three aggregates, so in several partitions; the ids of those that have a time that no broker takes."""
    found = []
    with closing(shop.connect()) as connection:
        for number in range(count):
            event_id = shop.insert(connection, f"a{number % 3}", str(number))
            if number in numbers:
                found.append(event_id)
                late = f"update {shop.table} set inserted_at = '2101-01-01 00:00:00Z' where id = {shop.mark}"
                connection.execute(late, (event_id,))
            else:
                shop.inserted.append((f"a{number % 3}", str(number)))
        connection.commit()
    return found


def test_rows_whose_time_the_broker_refuses_are_named_or_set_aside(shop: Shop) -> None:
    """It refuses a whole batch of them (``message.timestamp.after.max.ms``), and says which records are at fault."""
    ids = insert_of_another_century(shop, {1, 4, 5, 11})
    with pytest.raises(InputError, match=r"Timestamp 4133980800000 .* is out of range") as caught:
        shop.relay(batch_rows=20)
    assert not caught.value.retriable
    assert any(each in caught.value.message for each in ids)
    assert set(caught.value.fields["positions"]) <= {2, 5, 6, 12}
    assert (shop.values(), shop.rows_left()) == ([], 12)
    assert shop.relay(dead_letters=True, create_partitions=1, batch_rows=20) == 12
    shop.check()
    told = letters(shop)
    assert sorted(letter["id"] for letter in told) == sorted(ids)
    assert all("Timestamp 4133980800000" in letter["reason"] for letter in told)
    assert [each for (each,) in set_aside(shop)] == ids


def test_text_of_a_database_without_an_encoding(cluster: Cluster, postgresql: str) -> None:
    """PostgreSQL's SQL_ASCII: it keeps any bytes as text too, and says nothing of what they mean."""
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute("create database shop_ascii encoding 'SQL_ASCII' locale 'C' template template0")
    shop = make_postgresql(cluster, postgresql.replace("/postgres?", "/shop_ascii?"))
    shop.change(f"alter table {shop.table} alter payload type text")
    shop.insert_all(events(2))
    shop.relay()
    shop.check()
    shop.change(f"insert into {shop.table} values (gen_random_uuid(), %s, '1', 'Changed', E'\\xff')", shop.kind)
    with pytest.raises(OutboxMismatch, match="a row cannot be read"):
        shop.relay()


def test_a_row_of_an_infinite_time_is_sent(shop_postgresql: Shop) -> None:
    shop = shop_postgresql
    shop.insert_all(events(1))
    shop.change(f"update {shop.table} set inserted_at = 'infinity'")
    assert shop.relay() == 1
    shop.check()


# ------------------------------------------------------------------------------------ what the cluster has forgotten


def forget_progress(shop: Shop) -> None:
    """As the cluster does when nothing was committed for ``offsets.retention.minutes``."""
    group = f"onceflow-{KIND}-{shop.name}"
    shop.cluster.admin.delete_consumer_groups([group], request_timeout=60)[group].result(60)


def test_a_relay_that_rested_for_too_long_goes_on_by_the_table(shop: Shop) -> None:
    shop.insert_all(events(3))
    shop.relay()
    forget_progress(shop)
    settings = ClusterSettings.of(shop.cluster.servers)
    with (
        SourceCommitter(shop.name, settings, kind=KIND) as careful,
        pytest.raises(ProgressConflict, match="no progress"),
    ):
        careful.start()
    shop.insert_all(events(3, first=3))
    shop.relay()
    shop.check()


def test_and_not_where_the_table_disagrees(shop: Shop) -> None:
    for number in range(2):
        shop.insert_all(events(1, first=number))
        shop.relay()
    forget_progress(shop)
    shop.change(f"update {shop.table}_relay set batch = {shop.mark}", 0)
    with pytest.raises(OutboxMismatch, match="sent 0 batches, Kafka has 2"):
        shop.relay()
