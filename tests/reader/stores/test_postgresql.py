"""PostgreSQL: broken connections, killed servers, stopped owners, handlers that misbehave."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from confluent_kafka import Message
from tests.reader.servers import PATIENCE_S, Server, postgresql_server
from tests.reader.stores.compact import WAYS, Way, book_numbered
from tests.reader.stores.cutting_proxy import CuttingProxy
from tests.reader.stores.pooler import Pooler

from onceflow.errors import CommitUnknown, ReaderError, StoreError, StoreMismatch, StoreUnavailable
from onceflow.reader.event import Event
from onceflow.reader.handling import Failed, Handler
from onceflow.reader.inbox import Inbox
from onceflow.reader.lane import Lane
from onceflow.reader.stores import open_store, postgresql
from onceflow.reader.stores.interface import CommitRefused, EventKey, Ownership, Retention, Standing
from onceflow.reader.stores.postgresql import PostgresqlStore, PostgresqlTables
from onceflow.reader.stores.tables import EventId
from onceflow.reader.tally import Tally

NEW, DUPLICATE = Standing.NEW, Standing.DUPLICATE


@pytest.fixture
def url(postgresql: Server, request: pytest.FixtureRequest) -> str:
    """A database of the test's own."""
    name = f"t{abs(hash(request.node.nodeid))}"
    with psycopg.connect(postgresql.url, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    url = postgresql.url.replace("/postgres?", f"/{name}?")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE ledger (id text)")
    return url


@pytest.fixture
def store(url: str) -> Iterator[PostgresqlStore]:
    with closing(PostgresqlStore(url)) as store:
        store.open("group", Retention())
        yield store


def events(*offsets: int) -> list[EventKey]:
    return [EventKey(offset, "shop", f"event-{offset}") for offset in offsets]


def take(store: PostgresqlStore) -> Ownership:
    return store.take("orders", [0], "reader")[0]


def book(store: PostgresqlStore, owner: Ownership, *offsets: int) -> list[Standing]:
    """What a reader does: an effect for each event that is new."""
    with store.unit() as unit:
        standings = unit.admit(owner, events(*offsets))
        for key, standing in zip(events(*offsets), standings, strict=True):
            if standing is NEW:
                unit.handle.execute("INSERT INTO ledger VALUES (%s)", (key.id,))
    return standings


def ledger(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM ledger ORDER BY id")]


def through(proxy: CuttingProxy | Pooler, url: str) -> str:
    return f"postgresql://postgres@127.0.0.1:{proxy.port}{urlsplit(url).path}"


def socket_of(url: str) -> Path:
    return Path(parse_qs(urlsplit(url).query)["host"][0]) / ".s.PGSQL.5432"


def test_answer_to_the_commit_lost(url: str) -> None:
    """The server commits, the answer is lost: CommitUnknown, and the position says that it happened."""
    with CuttingProxy(socket_of(url)) as proxy, closing(PostgresqlStore(through(proxy, url))) as store:
        store.open("group", Retention())
        owner = take(store)
        proxy.arm(b"COMMIT\0")
        with pytest.raises(CommitUnknown):
            book(store, owner, 0, 1)
        assert proxy.cut.is_set()
        again = take(store)
        assert again.next_offset == 2
        assert book(store, again, 0, 1) == [DUPLICATE, DUPLICATE]
        assert ledger(url) == ["event-0", "event-1"]


def test_connection_lost_before_the_commit(url: str) -> None:
    """Cut in the middle of the unit: unavailable, and nothing of it is there."""
    with CuttingProxy(socket_of(url)) as proxy, closing(PostgresqlStore(through(proxy, url))) as store:
        store.open("group", Retention())
        owner = take(store)
        proxy.arm(b"onceflow_ids")
        with pytest.raises(StoreUnavailable):
            book(store, owner, 0)
        again = take(store)
        assert again.next_offset is None
        assert book(store, again, 0) == [NEW]
        assert ledger(url) == ["event-0"]


@pytest.mark.faults
def test_server_killed_inside_units() -> None:
    """SIGKILL before admit, after it, in a handler and before the commit: after the restart every effect is there once."""
    with postgresql_server() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE ledger (id text)")
        for offset, moment in enumerate(["before", "admitted", "handler", "leaving"]):
            with closing(PostgresqlStore(server.url)) as store:
                store.open("group", Retention())
                _killed_at(moment, server, store, offset)
                server.start()
                owner = take(store)
                assert (owner.next_offset or 0) == offset
                assert book(store, owner, offset) == [NEW]
                assert ledger(server.url) == [f"event-{each}" for each in range(offset + 1)]


def _killed_at(moment: str, server: Server, store: PostgresqlStore, offset: int) -> None:
    owner = take(store)

    def kill_at(here: str) -> None:
        if here == moment:
            server.kill()

    with pytest.raises((StoreUnavailable, CommitUnknown)), store.unit() as unit:  # noqa: PT012
        kill_at("before")
        unit.admit(owner, events(offset))
        kill_at("admitted")
        with unit.savepoint():
            kill_at("handler")
            unit.handle.execute("INSERT INTO ledger VALUES (%s)", (f"event-{offset}",))
        kill_at("leaving")


def test_stopped_owner_is_ended(url: str) -> None:
    """An owner that stands still inside its unit holds the next one up for ``takeover_s``, not for ever; it commits nothing."""
    with closing(PostgresqlStore(url)) as zombie, closing(PostgresqlStore(url, takeover_s=0.1)) as other:
        for store in (zombie, other):
            store.open("group", Retention())
        owner = take(zombie)
        with pytest.raises((CommitUnknown, StoreUnavailable)), zombie.unit() as unit:  # noqa: PT012
            assert unit.admit(owner, events(0)) == [NEW]
            unit.handle.execute("INSERT INTO ledger VALUES ('event-0')")
            taken = take(other)  # the zombie stands still
            assert taken.next_offset is None
            assert book(other, taken, 0) == [NEW]
        assert ledger(url) == ["event-0"]
        assert book(zombie, take(zombie), 0, 1) == [DUPLICATE, NEW]  # it lives on with a new connection


@pytest.mark.parametrize("call", ["admit", "claim", "confirm"])
@pytest.mark.parametrize("same", ["event", "partition"])
def test_a_unit_that_stands_still_holds_nobody_up_for_ever_who_meets_it(url: str, call: str, same: str) -> None:
    """Else that one could not poll, nor take the partition of the first, nor be ended."""
    with closing(PostgresqlStore(url)) as stopped, closing(PostgresqlStore(url, takeover_s=0.1)) as other:
        stopped.open("group", Retention())
        other.open("group", Retention())
        owners = stopped.take("orders", [0, 1], "reader")
        owner = owners[same == "event"]
        calls: dict[str, Callable[[], object]] = {
            "admit": lambda: book(other, owner, 0),
            "claim": lambda: other.claim(owner, events(0), 60.0),
            "confirm": lambda: other.confirm(owner, events(0)),
        }
        if (call, same) == ("claim", "event"):  # what it has claimed, and not what it has booked: that is looked up
            held = partial(stopped.claim, owners[0], events(0), 60.0)
            _inside_the_transaction(stopped, held, lambda: _is_refused(calls[call]))
        else:
            with stopped.unit() as unit:
                assert unit.admit(owners[0], events(0)) == [NEW]
                _is_refused(calls[call])
        calls[call]()  # the first one is done, and it is not in the way any more


def _is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(StoreUnavailable, match=r"lock timeout(.|\n)*slow or stopped"):
        call()


def _inside_the_transaction(store: PostgresqlStore, call: Callable[[], object], meanwhile: Callable[[], None]) -> None:
    """Does something between the call's last statement and its commit."""
    with store._session.transaction() as connection, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store._session, "transaction", lambda: nullcontext(connection))
        call()
        meanwhile()


def test_a_reader_that_stands_still_while_it_makes_the_tables_holds_nobody_up_for_ever(url: str) -> None:
    with psycopg.connect(url) as stopped, closing(PostgresqlStore(url, takeover_s=0.1)) as store:
        stopped.execute("SELECT pg_advisory_xact_lock(hashtextextended('onceflow_layout', 0))")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            store.open("group", Retention())
        stopped.rollback()
        store.open("group", Retention())


def test_a_handler_s_own_statements_wait_for_locks_as_its_session_says(url: str) -> None:
    """Also in a unit of more than one batch; and what the store sets ends with the unit."""
    options = url + "&options=-c%20lock_timeout%3D7s"
    with closing(PostgresqlStore(options)) as store:
        store.open("group", Retention())
        owner = take(store)
        for first in (0, 2):
            with store.unit() as unit:
                for offset in (first, first + 1):
                    unit.admit(owner, events(offset))
                    assert unit.handle.execute("SHOW lock_timeout").fetchone() == ("7s",)


@contextmanager
def moving_inside_admit(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[PostgresqlStore, Ownership, PostgresqlStore, list[Ownership]]]:
    """A store and what it owns, and another one that takes it between the first one's look at the epoch and its first write."""
    with closing(PostgresqlStore(url)) as zombie, closing(PostgresqlStore(url, takeover_s=0.1)) as other:
        for store in (zombie, other):
            store.open("group", Retention())
        owner = take(zombie)
        taken: list[Ownership] = []
        original = PostgresqlTables.book

        def book_late(tables: PostgresqlTables, ids: Collection[EventId]) -> set[EventId]:
            if not taken:
                taken.append(take(other))
            return original(tables, ids)

        monkeypatch.setattr(PostgresqlTables, "book", book_late)
        yield zombie, owner, other, taken


def test_partition_moves_inside_admit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is locked by the look already."""
    with moving_inside_admit(url, monkeypatch) as (zombie, owner, other, taken):
        with pytest.raises(StoreUnavailable):
            book(zombie, owner, 0)
        assert ledger(url) == []
        assert book(other, taken[0], 0) == [NEW]


def test_control_where_the_look_locks_nothing_a_partition_that_has_moved_is_booked_by_its_old_owner(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "_POSITION", postgresql._POSITION.replace("FOR UPDATE OF held", ""))
    with moving_inside_admit(url, monkeypatch) as (zombie, owner, _, taken):
        assert book(zombie, owner, 0) == [NEW]
        assert taken, "it has moved"
    assert ledger(url) == ["event-0"]


def test_swallowed_sql_error(store: PostgresqlStore, url: str) -> None:
    """PostgreSQL would answer this COMMIT with ROLLBACK, without an error."""
    owner = take(store)
    with pytest.raises(StoreError, match="failed inside the unit"), store.unit() as unit:  # noqa: PT012
        unit.admit(owner, events(0))
        with pytest.raises(psycopg.errors.UndefinedTable):
            unit.handle.execute("SELECT * FROM nothing")
    assert take(store).next_offset is None


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_transaction_ended_by_a_handler(store: PostgresqlStore, statement: str) -> None:
    owner = take(store)
    with pytest.raises(StoreError, match="ended inside the unit"), store.unit() as unit:  # noqa: PT012
        unit.admit(owner, events(0))
        unit.handle.execute(statement)


@pytest.mark.parametrize("statements", [["COMMIT"], ["COMMIT", "BEGIN"], ["ROLLBACK", "BEGIN"]], ids=" ".join)
@pytest.mark.parametrize("fails", [True, False])
def test_a_handler_that_ends_the_transaction_and_fails_is_no_failure_of_its_event(
    store: PostgresqlStore, statements: list[str], fails: bool
) -> None:
    """Tried again, it would be a duplicate: half of its effects are there, and it would count as handled without a word."""

    def handle(event: Event, tx: Any) -> None:
        tx.execute("INSERT INTO ledger VALUES ('half')")
        for statement in statements:
            tx.execute(statement)
        if fails:
            raise ValueError("no account")

    lane = lane_with(store, 0)
    inbox = Inbox(store, Handler(handle), lambda step: None, Tally())
    with pytest.raises(StoreError, match="ended inside the unit") as raised:
        inbox.handle(lane, lane.pending)
    assert not raised.value.retriable
    assert take(store).next_offset == (1 if statements[0] == "COMMIT" else None)


def test_a_handler_that_was_given_up_writes_nothing_through_a_transaction_that_is_over(
    store: PostgresqlStore, url: str
) -> None:
    """Its loop stood still, the reader has said that nothing was booked, and the loop goes on: one step is left to it."""
    owner = take(store)
    with pytest.raises(ReaderError), store.unit() as unit:  # noqa: PT012
        unit.admit(owner, events(0))
        raise ReaderError("the event loop was left")
    with pytest.raises(psycopg.OperationalError):
        unit.handle.execute("INSERT INTO ledger VALUES ('event-0')")
    assert ledger(url) == []
    assert book(store, owner, 0) == [NEW]
    assert ledger(url) == ["event-0"]


def test_a_block_of_psycopg_s_that_a_handler_leaves_open_ends_with_its_unit(store: PostgresqlStore, url: str) -> None:
    """Psycopg does not roll back around it; what comes next would be a savepoint of that transaction, committed by nobody."""
    left_open: list[psycopg.Transaction] = []

    def handle(event: Event, tx: Any) -> None:
        if not left_open:
            left_open.append(tx.transaction())
            left_open[0].__enter__()
            raise ValueError("no account")
        tx.execute("INSERT INTO ledger VALUES ('booked')")

    lane = lane_with(store, 0)
    inbox = Inbox(store, Handler(handle), lambda step: None, Tally())
    with pytest.raises(Failed):
        inbox.handle(lane, lane.pending)
    inbox.handle(lane, lane.pending)
    assert ledger(url) == ["booked"]


def test_commit_by_a_handler(store: PostgresqlStore) -> None:
    owner = take(store)
    with pytest.raises(psycopg.ProgrammingError), store.unit() as unit:  # noqa: PT012
        unit.admit(owner, events(0))
        unit.handle.commit()
    assert take(store).next_offset is None


def test_commit_refused_by_a_deferred_constraint(store: PostgresqlStore, url: str) -> None:
    """The server says no to the commit itself: that is no unknown, and nothing is there."""
    owner = take(store)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE ledger ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
    with pytest.raises(CommitRefused) as raised, store.unit() as unit:  # noqa: PT012
        unit.admit(owner, events(0))
        for _ in range(2):
            unit.handle.execute("INSERT INTO ledger VALUES ('twice')")
    assert isinstance(raised.value.__cause__, psycopg.errors.UniqueViolation)
    assert take(store).next_offset is None
    assert ledger(url) == []


def test_what_a_deferred_constraint_refuses_is_the_event_s_failure(store: PostgresqlStore, url: str) -> None:
    """It is found in the savepoint: of two events nobody can say which, of one it is that."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE ledger ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
    lane = Lane(take(store), None)
    lane.pending = [Event(Message(topic="orders", partition=0, offset=key.offset), key) for key in events(0, 1)]
    handler = Handler(lambda event, tx: tx.execute("INSERT INTO ledger VALUES ('twice')"))
    inbox = Inbox(store, handler, lambda step: None, Tally())
    with pytest.raises(Failed) as raised:
        inbox.handle(lane, lane.pending)
    assert raised.value.event is None
    inbox.handle(lane, lane.pending[:1])
    with pytest.raises(Failed, match="UniqueViolation") as raised:
        inbox.handle(lane, lane.pending)
    assert raised.value.event is lane.pending[0]
    assert take(store).next_offset == 1
    assert ledger(url) == ["twice"]


def lane_with(store: PostgresqlStore, *offsets: int) -> Lane:
    """What a reader has in hand of a partition."""
    lane = Lane(take(store), None)
    lane.pending = [Event(Message(topic="orders", partition=0, offset=key.offset), key) for key in events(*offsets)]
    return lane


AUDIT = """
CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'position % is not allowed', NEW.next_offset; END $$;
CREATE CONSTRAINT TRIGGER audit AFTER UPDATE ON onceflow_positions DEFERRABLE INITIALLY {when} FOR EACH ROW
WHEN (NEW.next_offset > 1) EXECUTE FUNCTION audited();
"""


@pytest.mark.parametrize("when", ["DEFERRED", "IMMEDIATE"])
def test_what_is_refused_of_the_store_alone_is_nobody_s_failure(store: PostgresqlStore, url: str, when: str) -> None:
    """No handler has run: blamed on an event it would be tried for ever, and its dead letter's booking is refused as well."""
    owner = take(store)
    assert book(store, owner, 0) == [NEW]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(AUDIT.format(when=when).encode())
    lane = Lane(take(store), 1)
    again = EventKey(1, "shop", "event-0")
    lane.pending = [Event(Message(topic="orders", partition=0, offset=1), again)]
    seen: list[Event] = []
    inbox = Inbox(store, Handler(lambda event, tx: seen.append(event)), lambda step: None, Tally())
    with pytest.raises(StoreError, match="position 2 is not allowed"):
        inbox.handle(lane, lane.pending)
    with pytest.raises(StoreError, match="position 2 is not allowed"):
        inbox.bury(lane, lane.pending[0], lambda: seen.append(lane.pending[0]))
    with pytest.raises(StoreError, match="position 2 is not allowed"):
        inbox.book(lane.ownership, [again])
    with pytest.raises(StoreError, match="position 2 is not allowed"):
        store.confirm(lane.ownership, [again])
    assert (seen, len(lane.pending)) == ([], 1)
    assert take(store).next_offset == 1


def test_a_group_s_name_beyond_all_limits_is_told(url: str) -> None:
    """It is not waited for: no server would ever take it."""
    with closing(PostgresqlStore(url)) as store:
        store.open("".join(map(str, range(3000))), Retention())
        with pytest.raises(StoreError, match="index row") as raised:
            store.take("orders", [0], "reader")
        assert not raised.value.retriable


def test_swallowed_sql_error_in_a_savepoint(store: PostgresqlStore) -> None:
    """A mistake of the handler, not of the event."""
    owner = take(store)
    with (  # noqa: PT012
        pytest.raises(StoreError, match="failed inside the unit"),
        store.unit() as unit,
        unit.savepoint(),
    ):
        unit.admit(owner, events(0))
        with pytest.raises(psycopg.errors.UndefinedTable):
            unit.handle.execute("SELECT * FROM nothing")
    assert take(store).next_offset is None


@pytest.mark.parametrize(
    "code", ["40P01", "40001", "53100", "53200", "08006", "57P01", "58030", "XX001", "25006", "26000"]
)
def test_a_server_that_gives_way_or_is_full_is_no_fault_of_the_event(store: PostgresqlStore, code: str) -> None:
    """A deadlock is another transaction's fault as well; also where the handler makes an error of its own of it."""
    owner = take(store)
    with pytest.raises(StoreUnavailable), store.unit() as unit, unit.savepoint():  # noqa: PT012
        unit.admit(owner, events(0))
        try:
            unit.handle.execute(f"DO $$ BEGIN RAISE 'no' USING ERRCODE = '{code}'; END $$")
        except psycopg.Error as error:
            raise ValueError("cannot book") from error
    assert book(store, take(store), 0) == [NEW]


GUILTY = [
    *[f"DO $$ BEGIN RAISE 'no' USING ERRCODE = '{code}'; END $$" for code in ("08P01", "58P01", "58P02")],
    "SELECT pg_read_file('/there/is/no/such/file')",
    "SELECT pg_advisory_xact_lock(each) FROM generate_series(1, 1000000) AS each",
]


@pytest.mark.parametrize("statement", GUILTY, ids=["08P01", "58P01", "58P02", "no file", "too many locks"])
def test_what_the_statement_alone_is_guilty_of_counts_as_the_event_s_failure(
    store: PostgresqlStore, statement: str
) -> None:
    """It fails each time, with nothing wrong at the server: waiting for that would end each start in the same way."""
    owner = take(store)
    with pytest.raises(psycopg.Error), store.unit() as unit, unit.savepoint():  # noqa: PT012
        unit.admit(owner, events(0))
        unit.handle.execute(statement)
    assert book(store, take(store), 0) == [NEW]


def test_parameters_that_do_not_fit_their_statement_are_the_event_s_failure(store: PostgresqlStore) -> None:
    """The server says of that what a pooler says of itself, which closes the connection then."""
    owner = take(store)
    with pytest.raises(psycopg.errors.ProtocolViolation), store.unit() as unit, unit.savepoint():  # noqa: PT012
        unit.admit(owner, events(0))
        psycopg.RawCursor(unit.handle).execute("SELECT $1::int, $2::int", [1])
    assert book(store, take(store), 0) == [NEW]


@pytest.mark.parametrize("factory", [psycopg.rows.dict_row, psycopg.rows.scalar_row])
def test_rows_as_a_handler_wants_them_do_not_blind_the_store(
    store: PostgresqlStore, factory: psycopg.rows.RowFactory[Any]
) -> None:
    owner = take(store)
    with store.unit() as unit:
        assert unit.admit(owner, events(0)) == [NEW]
        unit.handle.row_factory = factory
    with store.unit() as unit:
        assert unit.admit(owner, events(0, 1, 2)) == [DUPLICATE, NEW, NEW]
        assert unit.handle.row_factory is factory
    assert take(store).next_offset == 3


def test_a_cursor_as_a_handler_wants_it_is_not_the_store_s(store: PostgresqlStore) -> None:
    """One that has another sign for a parameter."""
    owner = take(store)
    with store.unit() as unit:
        assert unit.admit(owner, events(0)) == [NEW]
        unit.handle.cursor_factory = psycopg.RawCursor
    with store.unit() as unit:
        assert unit.admit(owner, events(0, 1)) == [DUPLICATE, NEW]
    assert store.forget_expired() == 0


def test_behind_a_pooler_each_transaction_is_in_another_session(url: str) -> None:
    """A statement that one of them has prepared is unknown to the next, or another client's of the same name."""
    with Pooler(socket_of(url)) as pooler, closing(PostgresqlStore(through(pooler, url))) as store:
        store.open("group", Retention())
        lane = lane_with(store, *range(60))
        sessions = set()

        def handle(event: Event, tx: Any) -> None:
            tx.execute("INSERT INTO ledger VALUES (%s)", (event.entry.id,))
            sessions.add(tx.execute("SELECT pg_backend_pid()").fetchone()[0])

        inbox = Inbox(store, Handler(handle), lambda step: None, Tally())
        while lane.pending:
            inbox.handle(lane, lane.pending[:3])
        assert len(sessions) == 3
    assert sorted(ledger(url)) == sorted(key.id for key in events(*range(60)))


def test_a_server_that_only_reads_is_waited_for_with_a_new_connection(url: str) -> None:
    """After a failover: the one that it leads to by then may be the one that writes."""
    with closing(PostgresqlStore(url)) as store:
        store.open("group", Retention())
        owner = take(store)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE application_name = 'onceflow' AND datname = current_database()"
            )
            name = psycopg.sql.Identifier(admin.info.dbname)
            admin.execute(psycopg.sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
            with pytest.raises(StoreUnavailable):
                book(store, owner, 0)  # on the connection that is gone
            with pytest.raises(StoreUnavailable, match="read-only"):
                book(store, owner, 0)
            admin.execute("SET default_transaction_read_only = off")
            admin.execute(psycopg.sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))
        assert book(store, owner, 0) == [NEW]


def test_a_server_that_vanishes_is_noticed_unless_the_url_says_otherwise(url: str) -> None:
    for given, idle in (("", "10"), ("&keepalives_idle=99", "99")):
        with closing(PostgresqlStore(url + given)) as store:
            store.open("group", Retention())
            parameters = store._session._connected().info.get_parameters()
        assert (parameters["keepalives_idle"], parameters["keepalives_count"]) == (idle, "3")
        assert parameters["tcp_user_timeout"] == "30000"


def test_same_id_in_two_open_units(url: str) -> None:
    """The second unit waits until the first has committed, and finds a duplicate."""
    with closing(PostgresqlStore(url)) as first, closing(PostgresqlStore(url)) as second, ThreadPoolExecutor(1) as pool:
        for store in (first, second):
            store.open("group", Retention())
        here, there = first.take("orders", [0, 1], "reader")
        with first.unit() as unit:
            assert unit.admit(here, events(0)) == [NEW]
            waiting = pool.submit(book, second, there, 0)
            with psycopg.connect(url, autocommit=True) as watcher:
                _until_blocked(watcher)
        assert waiting.result(PATIENCE_S) == [DUPLICATE]
        assert ledger(url) == []


def _until_blocked(watcher: psycopg.Connection[tuple[object, ...]]) -> None:
    from tests.reader.servers import until

    blocked = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
    until(lambda: watcher.execute(blocked).fetchone() != (0,), "the second unit waits")


def test_foreign_and_newer_layouts(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE onceflow_ids (something text)")
        with pytest.raises(StoreMismatch, match="something else"):
            PostgresqlStore(url).open("group", Retention())
        connection.execute("DROP TABLE onceflow_ids")
        with closing(PostgresqlStore(url)) as store:
            store.open("group", Retention())
        connection.execute("UPDATE onceflow_layout SET version = 99")
        with pytest.raises(StoreMismatch, match="layout 99"):
            PostgresqlStore(url).open("group", Retention())


def test_unreachable() -> None:
    with pytest.raises(StoreUnavailable):
        open_store("postgresql://nobody@127.0.0.1:1/nothing").open("group", Retention())


@pytest.mark.parametrize("way", WAYS)
def test_compact_form_does_not_grow(store: PostgresqlStore, url: str, way: Way) -> None:
    book_numbered(store, take(store), way, 10_000)
    with psycopg.connect(url) as connection:
        counts = [
            connection.execute(f"SELECT count(*) FROM onceflow_{table}").fetchone()
            for table in ("positions", "sequences", "ids", "claims")
        ]
    assert counts == [(1,), (1,), (0,), (0,)]
