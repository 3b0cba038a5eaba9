"""What the relay makes of rows: records, order, transactions that stay open or roll back."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from tests.faults.support import eventually
from tests.outbox.support import Shop, events, make_postgresql, make_sqlite, make_topics
from tests.outbox.worker import relay_all

from onceflow.errors import InputError, OnceflowError, OutboxMismatch, TopicMissing


def test_everything_comes_once_in_order_and_the_table_is_empty(shop: Shop) -> None:
    shop.insert_all(events(10))
    assert shop.relay(batch_rows=4) == 10
    shop.insert_all(events(5, first=10))
    assert shop.relay() == 5
    assert shop.relay() == 0
    shop.check()


def test_a_record_is_as_debezium_makes_it_and_carries_the_event_identity(shop: Shop) -> None:
    with closing(shop.connect()) as connection:
        first = shop.insert(connection, "7", '{"total": 3}')
        second = shop.insert(connection, "7", None)
        connection.commit()
    shop.relay()
    full, tombstone = shop.cluster.messages(shop.topic)
    assert (full.key(), json.loads(full.value())) == (b"7", {"total": 3})
    assert (tombstone.key(), tombstone.value()) == (b"7", None)
    incarnation = str(shop.query(f"select incarnation from {shop.table}_relay")[0][0])
    for sequence, (message, event_id) in enumerate([(full, first), (tombstone, second)]):
        assert dict(message.headers()) == {
            "id": event_id.encode(),
            "ce_specversion": b"1.0",
            "ce_id": event_id.encode(),
            "ce_source": f"/outbox/{shop.name}/{incarnation}".encode(),
            "ce_type": b"Changed",
            "ce_sequence": str(sequence).encode(),
        }
    assert full.timestamp()[1] == pytest.approx(tombstone.timestamp()[1], abs=60_000)


def test_types_go_to_topics_of_their_own(shop: Shop) -> None:
    other = f"{shop.kind}-other"
    make_topics(shop.cluster, [f"outbox.event.{other}"])
    with closing(shop.connect()) as connection:
        for number in range(6):
            shop.insert(connection, "1", str(number), kind=other if number % 2 else None)
        connection.commit()
    assert shop.relay(batch_rows=4) == 6
    assert shop.values() == ["0", "2", "4"]
    assert [value for _, _, value in shop.cluster.read(f"outbox.event.{other}")] == ["1", "3", "5"]


def test_rows_that_were_rolled_back_never_come(shop: Shop) -> None:
    with closing(shop.connect()) as connection:
        shop.insert(connection, "a0", '"rolled back"')
        connection.rollback()
    shop.insert_all(events(3))
    shop.relay()
    shop.check()


def test_a_type_that_no_topic_can_have_is_refused_with_all_of_them(shop: Shop) -> None:
    with closing(shop.connect()) as connection:
        for kind in ("a b", shop.kind, "x/y"):
            shop.insert(connection, "1", "1", kind=kind)
        connection.commit()
    with pytest.raises(InputError) as caught:
        shop.relay()
    assert caught.value.fields["aggregatetypes"] == ("a b", "x/y")
    assert shop.values() == []
    assert shop.rows_left() == 3


def test_a_missing_topic_stops_the_relay_and_loses_nothing(shop: Shop) -> None:
    with closing(shop.connect()) as connection:
        shop.insert(connection, "1", "1", kind=f"{shop.kind}-none")
        connection.commit()
    with pytest.raises(TopicMissing, match=f"{shop.kind}-none") as caught:
        shop.relay()
    assert "--create-topics" in caught.value.action
    assert shop.rows_left() == 1
    assert shop.relay(create_partitions=2) == 1
    assert len(shop.cluster.partitions(f"outbox.event.{shop.kind}-none")) == 2


def test_large_payloads_make_smaller_batches(shop: Shop) -> None:
    from onceflow.outbox.service import outbox_at
    from onceflow.outbox.table import Limits

    shop.insert_all([("a", f'"{number}{"x" * 100}"') for number in range(5)])
    table = outbox_at(shop.url, shop.table)
    table.open()
    try:
        assert len(table.take(table.place(), Limits(rows=10, size_bytes=150))) == 2
    finally:
        table.close()


# -------------------------------------------------------------------------------------- transactions side by side


def test_a_row_behind_an_open_transaction_is_neither_waited_for_nor_lost(shop_postgresql: Shop) -> None:
    shop = shop_postgresql
    with closing(shop.connect()) as slow:
        shop.insert(slow, "slow", "1")
        shop.insert_all([("fast", "2")])
        assert shop.relay() == 1, "the open transaction must not hold up others"
        slow.commit()
    shop.inserted.append(("slow", "1"))
    assert shop.relay() == 1
    shop.check()


def test_one_aggregate_has_positions_in_the_order_of_commits(shop_postgresql: Shop) -> None:
    """The second transaction's insert waits for the first one's commit, and only then takes its position."""
    shop = shop_postgresql
    with psycopg.connect(shop.url) as first, psycopg.connect(shop.url) as second, ThreadPoolExecutor() as background:
        shop.insert(first, "7", "1")
        waiting = background.submit(shop.insert, second, "7", "3")
        waits_for_lock(shop, second.info.backend_pid)
        shop.insert(first, "7", "2")
        first.commit()
        waiting.result(60)
        second.commit()
    assert shop.relay() == 3
    assert shop.values() == ["1", "2", "3"]


def waits_for_lock(shop: Shop, pid: int) -> None:
    query = "select count(*) from pg_locks where locktype = 'advisory' and not granted and pid = %s"
    eventually(lambda: shop.query(query, pid), lambda found: found == [(1,)], "the second transaction waits")


def test_positions_from_a_column_default_would_be_in_the_wrong_order(shop_postgresql: Shop) -> None:
    """Control: with the lock, but with positions taken before it, what commits last comes first."""
    shop = shop_postgresql
    shop.change(
        f"create or replace function {shop.table}_number() returns trigger language plpgsql as $$ begin "
        "perform pg_advisory_xact_lock(tg_relid::int, 1); return new; end $$"
    )
    shop.change(f"alter table {shop.table} alter position set default nextval('{shop.table}_position')")
    with psycopg.connect(shop.url) as first, psycopg.connect(shop.url) as second, ThreadPoolExecutor() as background:
        shop.insert(first, "7", "1")
        waiting = background.submit(shop.insert, second, "7", "3")
        waits_for_lock(shop, second.info.backend_pid)
        shop.insert(first, "7", "2")
        first.commit()
        waiting.result(60)
        second.commit()
    assert shop.relay() == 3
    assert shop.values() == ["1", "3", "2"]


# ----------------------------------------------------------------------------------------------- what is refused


def test_a_table_that_is_none_is_refused(shop: Shop) -> None:
    with pytest.raises(OutboxMismatch, match="no table"):
        shop.relay(table="nothing")
    shop.change("create table half (id text, type text, position integer)")
    with pytest.raises(OutboxMismatch, match="no column aggregatetype, aggregateid, payload"):
        shop.relay(table="half")
    shop.change("drop table half")


def test_a_second_name_on_the_same_table_is_refused(shop: Shop) -> None:
    shop.relay()
    with pytest.raises(OutboxMismatch, match="belongs to the relay"):
        shop.relay(name=f"{shop.name}-other")


def test_a_start_with_another_table_leaves_the_relay_that_runs_alone(shop: Shop, tmp_path: Path) -> None:
    """A wrong address: the one that is right would end as fenced."""
    other = make_postgresql(shop.cluster, shop.url) if shop.mark == "%s" else make_sqlite(shop.cluster, tmp_path)
    shop.insert_all(events(1))
    shop.relay()
    shop.insert_all(events(9, first=1))
    refused: list[str] = []

    def start_another(step: str, *_: int) -> None:
        if step == "TAKEN":
            with pytest.raises(OutboxMismatch, match="is of another table") as caught:
                relay_all(replace(other.job, name=shop.name))
            refused.append(caught.value.message)

    assert relay_all(shop.job, start_another) == 9
    assert len(refused) == 3
    shop.check()


def test_a_table_made_anew_is_refused(shop: Shop) -> None:
    shop.insert_all(events(1))
    shop.relay()
    shop.change(f"update {shop.table}_relay set incarnation = {shop.mark}", str(uuid.uuid4()))
    with pytest.raises(OutboxMismatch, match="another table"):
        shop.relay()


@pytest.mark.parametrize("batch", [0, 5])
def test_a_database_that_was_restored_is_refused(shop: Shop, batch: int) -> None:
    for number in range(2):
        shop.insert_all(events(1, first=number))
        shop.relay()
    shop.change(f"update {shop.table}_relay set batch = {shop.mark}", batch)
    with pytest.raises(OutboxMismatch, match=f"sent {batch} batches, Kafka has 2"):
        shop.relay()


def test_errors_show_no_password() -> None:
    from onceflow.outbox.service import outbox_at

    table = outbox_at("postgresql://me:geheim@127.0.0.1:1/shop?connect_timeout=2&sslpassword=geheim", "outbox")
    with pytest.raises(OnceflowError) as caught:
        table.open()
    assert caught.value.retriable
    assert "geheim" not in str(caught.value) + repr(caught.value) + table.address + repr(caught.value.fields)
