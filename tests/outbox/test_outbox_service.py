"""A relay that runs on: woken by commits, over connections that break, a database and a broker that go away."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from operator import lt
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from tests.faults.support import Cluster, eventually
from tests.left_open import left_open
from tests.outbox.cut import CuttingProxy
from tests.outbox.support import Shop, events, make_postgresql, make_sqlite
from tests.postgresql import is_gone, wal_writer_stopped
from tests.undefended import abort_commits_without_an_answer

from onceflow.broker import EmbeddedBroker
from onceflow.errors import Fenced, OnceflowError, OutboxUnavailable
from onceflow.ingest import committer as committer_module
from onceflow.ingest.committer import SourceCommitter
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.outbox import postgresql as postgresql_module
from onceflow.outbox import relay as relay_module
from onceflow.outbox.service import KIND, OutboxService, outbox_at
from onceflow.outbox.table import Limits, load
from onceflow.outbox.waker import Waker
from onceflow.verify.wire import Direction, Do, Rule, Wire, apis

NEVER_S = 3600.0
BATCH = 4
END_ALL = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'onceflow outbox'"


@contextmanager
def running(shop: Shop, *, url: str | None = None) -> Iterator[OutboxService]:
    """The service in a thread; ended in order, and whatever it raised is raised here."""
    with Waker() as waker, ThreadPoolExecutor() as background:
        table = outbox_at(url or shop.url, shop.table)
        service = OutboxService(shop.name, table, ClusterSettings.of(shop.cluster.servers), waker, limits=Limits(4))
        service.on_trouble = lambda error: troubles(service).append(error)
        done = background.submit(service.run)
        try:
            eventually(lambda: service._is_started or done.done(), bool, "the relay starts")
            yield service
        finally:
            waker.wake()
            done.result(120)


def troubles(service: OutboxService) -> list[OnceflowError]:
    found: list[OnceflowError] = service.__dict__.setdefault("troubles", [])
    return found


def all_sent(shop: Shop) -> None:
    eventually(shop.rows_left, lambda left: left == 0, "rows left in the table", 120)


def test_a_commit_wakes_the_relay(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a poll that never comes: the relay would wait for ever."""
    monkeypatch.setattr(relay_module, "POLL_S", NEVER_S)
    with running(shop) as service:
        for number in range(3):
            shop.insert_all(events(6, first=6 * number))
            all_sent(shop)
    assert service.sent == 18
    shop.check()


@pytest.mark.parametrize("step", ["COMMITTED", "FORGOTTEN"])
def test_what_is_sent_is_counted_once_whatever_happens_behind_the_commit(
    step: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes away when the first batch is in Kafka, or is deleted: the count is that of the events sent."""
    broken = iter([True])
    start = relay_module.Relay.__init__

    def breaking(relay: relay_module.Relay, *args: Any, **options: Any) -> None:
        start(relay, *args, **options, on_step=break_once)

    def break_once(now: str) -> None:
        if now == step and next(broken, False):
            raise OutboxUnavailable("the database went away", action="wait")

    monkeypatch.setattr(relay_module.Relay, "__init__", breaking)
    shop.insert_all(events(3))
    with running(shop) as service:
        all_sent(shop)
        shop.insert_all(events(5, first=3))
        all_sent(shop)
    assert len(troubles(service)) == 1
    assert service.sent == 8
    shop.check()


def test_a_relay_that_rests_commits_its_position_now_and_then(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster forgets offsets and transactional ids that nothing was committed to for a week."""
    shop.insert_all(events(2))
    shop.relay()
    before = next_batch(shop)
    monkeypatch.setattr(committer_module, "retention_s", lambda *_: 0.004)
    monkeypatch.setattr(relay_module, "POLL_S", 0.01)
    with running(shop):
        eventually(lambda: next_batch(shop), partial(lt, before + 2), "commits of nothing")
    shop.insert_all(events(2, first=2))
    shop.relay()
    shop.check()


def next_batch(shop: Shop) -> int:
    """The progress that is committed: its offset is the number of the next batch."""
    asked = ConsumerGroupTopicPartitions(f"onceflow-outbox-{shop.name}")
    (found,) = shop.cluster.admin.list_consumer_group_offsets([asked]).values()
    (progress,) = found.result(60).topic_partitions
    return int(progress.offset)


def test_without_notify_the_relay_polls(cluster: Cluster, postgresql: str) -> None:
    shop = make_postgresql(cluster, postgresql, notify=False)
    with running(shop):
        shop.insert_all(events(3))
        all_sent(shop)
    shop.check()


def test_a_row_behind_an_open_transaction_wakes_the_relay_at_its_commit(
    shop_postgresql: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "POLL_S", NEVER_S)
    shop = shop_postgresql
    with running(shop), closing(shop.connect()) as slow:
        shop.insert(slow, "slow", "1")
        shop.insert_all([("fast", "2")])
        eventually(lambda: shop.cluster.read(shop.topic), lambda rows: len(rows) == 1, "the other one's event")
        slow.commit()
        all_sent(shop)
    assert shop.values().count("1") == 1


def test_connections_that_are_cut_again_and_again(shop_postgresql: Shop) -> None:
    shop = shop_postgresql
    with running(shop) as service:
        for number in range(3):
            shop.insert_all(events(40, first=40 * number))
            eventually(lambda: shop.query(END_ALL), bool, "a connection to cut")
            eventually(lambda: len(troubles(service)), partial(lt, number), "the relay notices")
        all_sent(shop)
    assert all(isinstance(error, OutboxUnavailable) for error in troubles(service))
    shop.check()


def test_a_connection_cut_before_its_cursor_is_closed_leaves_nothing_to_the_garbage_collector(
    shop_postgresql: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose warning would come in the middle of something else."""
    shop = shop_postgresql

    def cut(*arguments: Any) -> Any:
        rows = load(*arguments)
        shop.query(END_ALL)
        return rows

    monkeypatch.setattr(postgresql_module, "load", cut)
    shop.insert_all(events(3))
    with left_open() as texts, closing(outbox_at(shop.url, shop.table)) as table:
        table.open()
        with pytest.raises(OutboxUnavailable):
            table.take(table.place(), Limits(4))
    assert texts == []


@pytest.mark.parametrize("commit", [1, 2, 3])
def test_a_connection_cut_between_a_commit_and_its_answer(shop_postgresql: Shop, commit: int) -> None:
    """The first COMMIT is that of taking, the second that of deleting, the third that of taking the next batch."""
    shop = shop_postgresql
    shop.insert_all(events(8))
    with CuttingProxy(shop.url, cut_at=commit) as proxy, running(shop, url=proxy.url) as service:
        assert proxy.cut.wait(120)
        all_sent(shop)
    assert len(troubles(service)) == 1
    shop.check()


@pytest.mark.faults
def test_the_database_is_killed_while_the_relay_runs(shop_postgresql: Shop) -> None:
    """The process that serves the relay is killed, and the server takes all others with it and recovers by itself."""
    shop = shop_postgresql
    of_relay = "select pid from pg_stat_activity where application_name = 'onceflow outbox'"
    with running(shop) as service:
        shop.insert_all(events(20))
        with psycopg.connect(shop.url) as other:
            [(process,)] = eventually(lambda: shop.query(of_relay), lambda rows: len(rows) == 1, "the relay's process")
            os.kill(process, signal.SIGKILL)
            eventually(lambda: is_gone(other), bool, "the crash of the server")
        eventually(lambda: rows_once_it_is_back(shop), lambda rows: rows is not None, "the server is back")
        shop.insert_all(events(20, first=20))
        all_sent(shop)
    assert troubles(service)
    shop.check()


def test_a_server_that_takes_no_writes_for_a_while_is_waited_for(cluster: Cluster, postgresql: str) -> None:
    """A failover: the address leads to the standby, which is promoted a moment later."""
    with psycopg.connect(postgresql, autocommit=True) as administrator:
        administrator.execute("create database shop_failover")
        url = postgresql.replace("/postgres?", "/shop_failover?")
        shop = make_postgresql(cluster, f"{url}&options=-c%20default_transaction_read_only%3Doff")
        with running(shop, url=url) as service:
            administrator.execute("alter database shop_failover set default_transaction_read_only = on")
            administrator.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'shop_failover'"
            )
            shop.insert_all(events(3))
            eventually(lambda: read_only(service), bool, "the relay is refused")
            administrator.execute("alter database shop_failover reset default_transaction_read_only")
            all_sent(shop)
    assert "target_session_attrs=read-write" in read_only(service)[0].action
    shop.check()


def read_only(service: OutboxService) -> list[OnceflowError]:
    return [error for error in troubles(service) if "read-only transaction" in error.message]


@pytest.mark.faults
@pytest.mark.parametrize(("api", "number"), [(apis.PRODUCE, 0), (apis.TXN_OFFSET_COMMIT, 1), (apis.END_TXN, 1)])
def test_an_answer_of_the_broker_is_lost(shop_sqlite: Shop, api: int, number: int) -> None:
    """The connection breaks after the request had its effect; the first commit of all is that of the claim."""
    relay_with_a_lost_answer(shop_sqlite, api, number)
    shop_sqlite.check()


@pytest.mark.faults
def test_control_who_aborts_a_commit_without_an_answer_sends_its_rows_twice(
    shop_sqlite: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    abort_commits_without_an_answer(monkeypatch, committer_module)
    relay_with_a_lost_answer(shop_sqlite, apis.END_TXN, 1)
    sent = [str(number) for _, number in shop_sqlite.inserted]
    assert sorted(map(str, shop_sqlite.values())) == sorted([*sent, *sent[:BATCH]])


def relay_with_a_lost_answer(shop: Shop, api: int, number: int) -> None:
    """All rows, in batches; whoever relays them believes that each was sent once."""
    shop.insert_all(events(9))
    settings = ClusterSettings.of(shop.cluster.servers)
    table = outbox_at(shop.url, shop.table)
    table.open()
    with closing(table), Wire() as wire, SourceCommitter(shop.name, settings, kind=KIND) as committer:
        loss = wire.rules.add(Rule(Do.CUT, frozenset({api}), Direction.ANSWER, first=number, count=1))
        committer._client.close()
        committer._client = KafkaClient({**settings.for_protocol(), "proxy_url": wire.url}, patience_s=60)
        relay = relay_module.Relay(shop.name, table, committer, limits=Limits(BATCH))
        relay.start()
        assert sum(iter(relay.step, 0)) == 9
        assert loss.applied == 1


@pytest.mark.faults
def test_the_broker_is_killed_while_the_relay_runs(postgresql: str, tmp_path: Path) -> None:
    """The relay is a process of its own: sockets that break are left to the collector, which warns in other tests."""
    broker = EmbeddedBroker(tmp_path / "broker", heap_mb=256)
    broker.start()
    cluster = Cluster(broker)
    try:
        shop = make_postgresql(cluster, postgresql)
        with relaying(shop):
            shop.insert_all(events(6))
            all_sent(shop)
            broker.kill()
            shop.insert_all(events(6, first=6))
            broker.start()
            all_sent(shop)
        shop.check()
    finally:
        cluster.close()
        broker.kill()


def test_a_relay_that_was_cut_off_gives_way_to_a_newer_one(shop_postgresql: Shop) -> None:
    shop = shop_postgresql
    with Waker() as waker, ThreadPoolExecutor() as background:
        service = OutboxService(
            shop.name, outbox_at(shop.url, shop.table), ClusterSettings.of(shop.cluster.servers), waker
        )
        done = background.submit(service.run)
        eventually(lambda: service._is_started or done.done(), bool, "the relay starts")
        shop.relay()
        shop.query(END_ALL)
        try:
            with pytest.raises(Fenced, match="took over"):
                done.result(60)
        finally:
            waker.wake()


def test_sqlite_without_a_write_ahead_log(cluster: Cluster, tmp_path: Path) -> None:
    """There readers and writers shut each other out for moments."""
    shop = make_sqlite(cluster, tmp_path, journal="delete")
    with running(shop):
        for number in range(40):
            shop.insert_all(events(1, first=number))
        all_sent(shop)
    shop.check()


def test_a_database_that_is_replaced_is_looked_at_anew(cluster: Cluster, tmp_path: Path) -> None:
    """The old file stays open and has no name any more: the relay would never see another row in it."""
    shop = make_sqlite(cluster, tmp_path, journal="delete")
    path = Path(shop.url.removeprefix("sqlite:///"))
    with running(shop) as service:
        shop.insert_all(events(3))
        all_sent(shop)
        eventually(lambda: service.sent, lambda sent: sent == 3, "the relay has counted them")
        with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(tmp_path / "new.db")) as new:
            old.backup(new)
        (tmp_path / "new.db").replace(path)
        shop.insert_all(events(3, first=3))
        all_sent(shop)
    [trouble] = troubles(service)
    assert "replaced or removed" in trouble.message
    shop.check()


def test_a_database_that_is_removed_and_copied_back_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    """``rm`` and ``cp`` take as long as they take; half of the copy is there for a while."""
    shop = make_sqlite(cluster, tmp_path, journal="delete")
    path, copy, half = Path(shop.url.removeprefix("sqlite:///")), tmp_path / "copy.db", tmp_path / "half.db"

    def told(text: str) -> int:
        return sum(text in error.message for error in troubles(service))

    with running(shop) as service:
        shop.insert_all(events(3))
        all_sent(shop)
        eventually(lambda: service.sent, lambda sent: sent == 3, "the relay has counted them")
        with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(copy)) as new:
            old.backup(new)
        half.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
        path.unlink()
        eventually(partial(told, f"there is no file {path}; waiting for {path}"), partial(lt, 1), "it looks twice")
        subprocess.run(["cp", half, path], check=True, timeout=60)
        eventually(partial(told, "malformed; waiting"), partial(lt, 0), "it sees the half")
        subprocess.run(["cp", copy, path], check=True, timeout=60)
        shop.insert_all(events(3, first=3))
        all_sent(shop)
    assert all(isinstance(error, OutboxUnavailable) for error in troubles(service))
    shop.check()


def test_writers_side_by_side_some_of_which_roll_back(shop: Shop) -> None:
    """Each event has the number that its aggregate has reached, counted in the same transaction."""
    shop.change(f"create table {shop.table}_count (aggregate varchar(9) primary key, n integer not null)")
    for aggregate in "abc":
        shop.change(f"insert into {shop.table}_count values ({shop.mark}, 0)", aggregate)
    with running(shop), ThreadPoolExecutor() as writers:
        committed = sum(writers.map(partial(write_some, shop), range(4)))
        all_sent(shop)
    counts = dict(shop.query(f"select aggregate, n from {shop.table}_count"))
    assert sum(counts.values()) == committed
    shop.cluster.check_exactly(shop.topic, [(a, str(n)) for a, count in counts.items() for n in range(1, count + 1)])


def write_some(shop: Shop, writer: int) -> int:
    committed = 0
    with closing(shop.connect()) as connection:
        for number in range(25):
            aggregates = sorted({"abc"[(writer + number) % 3], "abc"[number % 3]})
            if shop.mark == "?":
                connection.execute("begin immediate")
            for aggregate in aggregates:
                count = f"update {shop.table}_count set n = n + 1 where aggregate = {shop.mark} returning n"
                [(n,)] = connection.execute(count, (aggregate,)).fetchall()
                shop.insert(connection, aggregate, str(n))
            if number % 4 == 3:
                connection.rollback()
            else:
                connection.commit()
                committed += len(aggregates)
    return committed


# ------------------------------------------------------------------------------------------- commits not yet on disk


def crash_after(shop: Shop, look: str) -> list[tuple[object, ...]]:
    """An event committed asynchronously, seen by ``look``, and what is left after a crash of the server."""
    with psycopg.connect(shop.url) as service:
        service.execute("set synchronous_commit = off")
        with wal_writer_stopped(shop.url):
            shop.insert(service, "1", "1")
            service.commit()
            assert seen(shop, look) == 1
        # The server notices a little later that one of its processes was killed; until then it answers.
        eventually(lambda: is_gone(service), bool, "the crash of the server")
    return eventually(lambda: rows_once_it_is_back(shop), lambda rows: rows is not None, "the server is back") or []


def seen(shop: Shop, look: str) -> int:
    if look == "plain":
        return shop.rows_left()
    table = outbox_at(f"{shop.url}&options=-csynchronous_commit%3Doff", shop.table)  # as a role may have it by default
    table.open()
    try:
        return len(table.take(table.place(), Limits()))
    finally:
        table.close()


def rows_once_it_is_back(shop: Shop) -> list[tuple[object, ...]] | None:
    try:
        return shop.query(f"select position from {shop.table}")
    except psycopg.OperationalError:
        return None


@pytest.mark.faults
def test_what_the_relay_has_taken_survives_a_crash_of_the_server(shop_postgresql: Shop) -> None:
    assert crash_after(shop_postgresql, "take") == [(1,)]


@pytest.mark.faults
def test_what_a_plain_select_has_seen_may_be_gone_after_a_crash(shop_postgresql: Shop) -> None:
    """Control: it would be in Kafka, and never have happened."""
    assert crash_after(shop_postgresql, "plain") == []


# ------------------------------------------------------------------------------------------------------ command line


def onceflow(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "onceflow.cli", "outbox", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def output(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_the_command_relays_once(shop: Shop) -> None:
    shop.insert_all(events(5))
    servers = shop.cluster.servers
    relay = onceflow(
        "relay", shop.name, "--from", shop.url, "--table", shop.table, "--once", "--bootstrap-servers", servers
    )
    code, out, err = output(relay)
    assert (code, err) == (0, "")
    starts, sends, sent = out.splitlines()
    assert starts.startswith(f"relay {shop.name} starts: ")
    assert sends.startswith(f"relay {shop.name} sends ")
    assert sent == "5 events sent by this run"
    shop.check()


_LOADED_WHEN_IT_STARTS = """
import sys
from onceflow.kafka.settings import ClusterSettings
from onceflow.outbox.service import OutboxService, outbox_at
from onceflow.outbox.waker import Waker

name, url, table, servers = sys.argv[1:]
with Waker() as waker:
    service = OutboxService(name, outbox_at(url, table), ClusterSettings.of(servers), waker)
    service.on_start = lambda: loaded.append(set(sys.modules))
    loaded = []
    service.once()
print(service.sent, {each.partition(".")[0] for each in set(sys.modules) - loaded[0]} & {"pandas", "pyarrow", "numpy"})
"""


def test_no_large_library_is_loaded_between_the_start_and_the_first_batch(shop: Shop) -> None:
    """It says that it sends, and for seconds it would not."""
    shop.insert_all(events(1))
    command = [sys.executable, "-c", _LOADED_WHEN_IT_STARTS, shop.name, shop.url, shop.table, shop.cluster.servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.split(maxsplit=1), done.stderr) == (["1", "set()\n"], "")


@contextmanager
def relaying(shop: Shop) -> Iterator[subprocess.Popen[str]]:
    """The command, until SIGTERM ends it in order."""
    arguments = ["--table", shop.table, "--bootstrap-servers", shop.cluster.servers, "--json"]
    process = onceflow("relay", shop.name, *arguments, ONCEFLOW_OUTBOX=shop.url)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        code, out, err = output(process)
        assert (code, err) == (0, ""), out  # also when the body failed: it says why
    assert out.splitlines()[-1] == json.dumps({"event": "ended", "sent": len(shop.inserted)})


def test_the_command_runs_until_sigterm(shop: Shop) -> None:
    with relaying(shop):
        shop.insert_all(events(5))
        all_sent(shop)
    shop.check()


def test_mistakes_in_the_arguments_are_told_all_at_once() -> None:
    arguments = ["relay", "a b", "--from", "mysql://me:geheim@x/y", "--table", "Bad Name", "--kafka", "acks"]
    code, _, err = output(onceflow(*arguments))
    assert code == 2
    for told in (
        "'a b' is no name",
        "begins with 'mysql'",
        "'Bad Name' is no name for an outbox",
        "'acks' has no value",
    ):
        assert told in err
    assert "geheim" not in err


def test_init_takes_no_name_of_a_database() -> None:
    code, out, err = output(onceflow("init", "postgresql", "shop"))
    assert (code, out) == (2, "")
    assert "onceflow outbox init postgresql | psql shop" in err


def test_a_relay_without_its_table_says_how_to_make_it(shop: Shop) -> None:
    process = onceflow(
        "relay", shop.name, "--from", shop.url, "--table", "none", "--bootstrap-servers", shop.cluster.servers
    )
    code, _, err = output(process)
    assert (code, "onceflow outbox init" in err) == (1, True), err
