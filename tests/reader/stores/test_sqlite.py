"""SQLite: killed processes, handlers that misbehave, files of others, a lock that does not come free."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

import pytest
from tests.reader.servers import PATIENCE_S
from tests.reader.stores.compact import WAYS, Way, book_numbered

from onceflow.errors import ReaderError, StoreError, StoreLost, StoreMismatch, StoreUnavailable
from onceflow.reader.stores.interface import CommitRefused, EventKey, Ownership, Retention, Standing
from onceflow.reader.stores.sqlite import SqliteStore

NEW, DUPLICATE = Standing.NEW, Standing.DUPLICATE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE ledger (id TEXT)")
    return path


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as store:
        store.open("group", Retention())
        yield store


def events(*offsets: int) -> list[EventKey]:
    return [EventKey(offset, "shop", f"event-{offset}") for offset in offsets]


def take(store: SqliteStore) -> Ownership:
    return store.take("orders", [0], "reader")[0]


def ledger(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM ledger ORDER BY id")]


@pytest.mark.parametrize("how", ["commit", "rollback", "COMMIT", "ROLLBACK", "END", "executescript", "with"])
def test_handler_cannot_end_the_unit(store: SqliteStore, path: Path, how: str) -> None:
    """However it is tried, it is refused before it happens, and the unit is rolled back."""
    owner = take(store)
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"), store.unit() as unit:  # noqa: PT012
        unit.admit(owner, events(0))
        unit.handle.execute("INSERT INTO ledger VALUES ('half')")
        _end(unit.handle, how)
    assert ledger(path) == []
    assert take(store).next_offset is None


def _end(connection: sqlite3.Connection, how: str) -> None:
    if how == "with":
        with connection:
            pass
    elif how == "executescript":
        connection.executescript("INSERT INTO ledger VALUES ('other half')")
    elif how in ("commit", "rollback"):
        getattr(connection, how)()
    else:
        connection.execute(how)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        *((how, "must not begin or end a transaction") for how in ("commit", "COMMIT", "executescript", "with")),
        ("close", "close it"),
    ],
)
def test_a_handler_is_told_what_it_must_not_do(store: SqliteStore, path: Path, how: str, why: str) -> None:
    """SQLite says "not authorized" alone, which sounds like rights. The unit goes on with the next event."""
    owner = take(store)
    with store.unit() as unit:
        unit.admit(owner, events(0))
        with pytest.raises(sqlite3.DatabaseError, match=why), unit.savepoint():
            unit.handle.close() if how == "close" else _end(unit.handle, how)
        with unit.savepoint():
            unit.handle.execute("INSERT INTO ledger VALUES ('next')")
    assert ledger(path) == ["next"]


def test_what_else_is_refused_keeps_its_own_words(store: SqliteStore) -> None:
    """SQLite says the same of extensions, which have nothing to do with the transaction."""
    owner = take(store)
    with store.unit() as unit:
        unit.admit(owner, events(0))
        with pytest.raises(sqlite3.OperationalError, match=r"^not authorized$"), unit.savepoint():
            unit.handle.execute("SELECT load_extension('any')")


_KILLED = """
import os, signal, sys
from onceflow.reader.stores.interface import EventKey, Retention
from onceflow.reader.stores.sqlite import SqliteStore

path, moment, offset = sys.argv[1], sys.argv[2], int(sys.argv[3])

def at(here):
    if here == moment:
        os.kill(os.getpid(), signal.SIGKILL if not moment.startswith("stop") else signal.SIGSTOP)

store = SqliteStore(path)
store.open("group", Retention())
owner, = store.take("orders", [0], "victim")
with store.unit() as unit:
    at("begun")
    unit.admit(owner, [EventKey(offset, "shop", f"event-{offset}")])
    at("admitted")
    unit.handle.execute("INSERT INTO ledger VALUES (?)", (f"event-{offset}",))
    print("inside", flush=True)
    at("stopped")
    at("written")
at("committed")
"""


@pytest.mark.faults
def test_killed_at_every_step(path: Path) -> None:
    """Effect and position agree after each kill, and every effect is there once in the end."""
    for offset, moment in enumerate(["begun", "admitted", "written", "committed"]):
        killed = subprocess.run(
            [sys.executable, "-c", _KILLED, str(path), moment, str(offset)], check=False, timeout=PATIENCE_S
        )
        assert killed.returncode == -signal.SIGKILL
        with closing(SqliteStore(path)) as store:
            store.open("group", Retention())
            owner = take(store)
            assert (owner.next_offset == offset + 1) == (moment == "committed")
            with store.unit() as unit:
                if unit.admit(owner, events(offset)) == [NEW]:
                    unit.handle.execute("INSERT INTO ledger VALUES (?)", (f"event-{offset}",))
        assert ledger(path) == [f"event-{each}" for each in range(offset + 1)]


@pytest.mark.faults
def test_stopped_inside_a_unit(path: Path) -> None:
    """A process that stands still keeps the lock, and the others say so; when it wakes it commits, and they go on."""
    command = [sys.executable, "-c", _KILLED, str(path), "stopped", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as stopped, ExitStack() as at_the_end:
        at_the_end.callback(stopped.kill)
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == b"inside\n"
        os.waitpid(stopped.pid, os.WUNTRACED)
        with closing(SqliteStore(path, busy_timeout_s=0.1)) as store:
            store.open("group", Retention())
            with pytest.raises(StoreUnavailable, match="locked"):
                take(store)
            stopped.send_signal(signal.SIGCONT)
            assert stopped.wait(PATIENCE_S) == 0
            assert take(store).next_offset == 1
    assert ledger(path) == ["event-0"]


def test_savepoint_when_sqlite_gives_up(store: SqliteStore, path: Path) -> None:
    """A full disk ends the whole transaction: that is no fault of the event, and nothing is committed."""
    owner = take(store)
    pages = store._opened().connection.execute("PRAGMA page_count").fetchone()[0]
    with pytest.raises((StoreUnavailable, sqlite3.OperationalError)), store.unit() as unit:  # noqa: PT012
        unit.admit(owner, events(0))
        unit.handle.execute(f"PRAGMA max_page_count = {pages + 1}")
        with unit.savepoint():
            unit.handle.execute("INSERT INTO ledger SELECT hex(randomblob(100000))")
    assert take(store).next_offset is None
    assert ledger(path) == []


def test_a_full_disk_is_no_fault_of_the_event(store: SqliteStore, path: Path) -> None:
    """Also where SQLite undoes the one statement alone, and the handler makes an error of its own of it."""
    owner = take(store)
    connection = store._opened().connection
    with pytest.raises(StoreUnavailable, match="full"), store.unit() as unit, unit.savepoint():  # noqa: PT012
        unit.admit(owner, events(0))
        unit.handle.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0] + 1}")
        try:
            unit.handle.execute("INSERT INTO ledger SELECT hex(randomblob(100000))")
        except sqlite3.Error as error:
            raise ValueError("cannot book") from error
    connection.execute("PRAGMA max_page_count = 1000000")
    assert take(store).next_offset is None
    assert ledger(path) == []


@pytest.mark.parametrize("attribute", ["row_factory", "text_factory"])
def test_rows_as_a_handler_wants_them_do_not_blind_the_store(store: SqliteStore, attribute: str) -> None:
    """The connection keeps what a handler sets. Compared with such rows, no id would be new: lost without a word."""
    owner = take(store)
    wanted = {"row_factory": sqlite3.Row, "text_factory": bytes}[attribute]
    with store.unit() as unit:
        assert unit.admit(owner, events(0)) == [NEW]
        setattr(unit.handle, attribute, wanted)
    with store.unit() as unit:
        assert unit.admit(owner, events(0, 1, 2)) == [DUPLICATE, NEW, NEW]
        assert getattr(unit.handle, attribute) is wanted
    assert store.claim(owner, events(1, 3), 60) == [DUPLICATE, NEW]


@pytest.fixture
def accounts(path: Path) -> None:
    """Each entry must have its account, at the commit; and a table whose constraint ends the whole transaction."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE account (id TEXT PRIMARY KEY)")
        connection.execute("CREATE TABLE entry (account TEXT REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED)")
        connection.execute("CREATE TABLE single (id TEXT PRIMARY KEY ON CONFLICT ROLLBACK)")
        connection.execute("INSERT INTO single VALUES ('taken')")
        connection.commit()


@pytest.mark.usefixtures("accounts")
def test_commit_refused_by_a_deferred_foreign_key(path: Path) -> None:
    """COMMIT says no and leaves the transaction open: rolled back whole, and it is no trouble of the store's."""
    with closing(SqliteStore(path, foreign_keys=True)) as store:
        store.open("group", Retention())
        owner = take(store)
        with pytest.raises(CommitRefused, match="FOREIGN KEY") as raised, store.unit() as unit:  # noqa: PT012
            unit.admit(owner, events(0))
            with unit.savepoint():
                unit.handle.execute("INSERT INTO entry VALUES ('nobody')")
        assert isinstance(raised.value.__cause__, sqlite3.IntegrityError)
        owner = take(store)
        assert owner.next_offset is None
        with store.unit() as unit:
            unit.admit(owner, events(0))
            unit.handle.execute("INSERT INTO entry VALUES ('somebody')")
            unit.handle.execute("INSERT INTO account VALUES ('somebody')")
        assert take(store).next_offset == 1


@pytest.mark.usefixtures("accounts")
def test_a_trigger_on_the_stores_tables_that_fails_at_the_commit(path: Path) -> None:
    """No handler has written anything: it is told as the store's error, and not as a failure of events."""
    with closing(SqliteStore(path, foreign_keys=True)) as store:
        store.open("group", Retention())
        owner = take(store)
        store.claim(owner, events(0), 60.0)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(
                "CREATE TRIGGER audit AFTER INSERT ON onceflow_ids BEGIN INSERT INTO entry VALUES ('nobody'); END"
            )
        with pytest.raises(StoreError, match="triggers on the tables onceflow_"):
            store.confirm(owner, events(0))
        assert take(store).next_offset is None


def test_a_trigger_on_the_stores_tables_that_refuses_its_statement_is_not_waited_for(
    store: SqliteStore, path: Path
) -> None:
    owner = take(store)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TRIGGER audit AFTER UPDATE ON onceflow_positions WHEN NEW.next_offset > 0 BEGIN"
            " SELECT RAISE(ABORT, 'not allowed'); END"
        )
    with pytest.raises(StoreError, match="not allowed") as of_unit, store.unit() as unit:
        unit.admit(owner, events(0))
    with pytest.raises(StoreError, match="not allowed") as of_confirm:
        store.confirm(owner, events(0))
    assert [each.value.retriable for each in (of_unit, of_confirm)] == [False, False]
    assert take(store).next_offset is None


@pytest.mark.usefixtures("accounts")
def test_foreign_keys_are_off_unless_they_are_asked_for(store: SqliteStore) -> None:
    """As on every connection of SQLite's; a unit is a transaction, in which they cannot be switched on."""
    owner = take(store)
    with store.unit() as unit:
        unit.admit(owner, events(0))
        unit.handle.execute("PRAGMA foreign_keys = on")
        unit.handle.execute("INSERT INTO entry VALUES ('nobody')")
    assert take(store).next_offset == 1


@pytest.mark.usefixtures("accounts")
def test_what_rolls_the_whole_unit_back_is_the_event_s_failure(store: SqliteStore) -> None:
    """ON CONFLICT ROLLBACK: the unit is gone with the statement, and the error is the handler's own."""
    owner = take(store)
    with pytest.raises(sqlite3.IntegrityError), store.unit() as unit:  # noqa: PT012
        unit.admit(owner, events(0))
        with unit.savepoint():
            unit.handle.execute("INSERT INTO single VALUES ('taken')")
    assert take(store).next_offset is None


@pytest.mark.usefixtures("accounts")
@pytest.mark.parametrize("in_savepoint", [True, False])
def test_after_a_swallowed_rollback_nothing_is_committed_by_itself(
    store: SqliteStore, path: Path, in_savepoint: bool
) -> None:
    """Without a transaction SQLite would commit the next statement at once, without the ids, and again with each try."""
    owner = take(store)
    with pytest.raises(StoreError, match="rolled the unit back"), store.unit() as unit:  # noqa: PT012
        unit.admit(owner, events(0))
        with unit.savepoint() if in_savepoint else nullcontext():
            with pytest.raises(sqlite3.IntegrityError):
                unit.handle.execute("INSERT INTO single VALUES ('taken')")
            for statement in OUTSIDE:
                with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                    unit.handle.execute(statement)
    assert ledger(path) == []
    assert take(store).next_offset is None


# The rest begins no transaction of Python's own, or one that its RELEASE commits.
OUTSIDE = (
    "INSERT INTO ledger VALUES ('by itself')",
    "WITH given AS (SELECT 'by itself') INSERT INTO ledger SELECT * FROM given",
    "CREATE TABLE by_itself (id TEXT)",
    "SAVEPOINT mine",
)


@pytest.mark.usefixtures("accounts")
@pytest.mark.parametrize("cursor", [None, sqlite3.Cursor], ids=["ours", "one of the handler's"])
def test_after_a_swallowed_rollback_what_stands_in_a_script_is_not_committed_either(
    store: SqliteStore, path: Path, cursor: type[sqlite3.Cursor] | None
) -> None:
    """A script commits first where there is a transaction; behind it SQLite is asked about each of its statements."""
    owner = take(store)
    with pytest.raises(StoreError, match="rolled the unit back"), store.unit() as unit:  # noqa: PT012
        unit.admit(owner, events(0))
        with pytest.raises(sqlite3.IntegrityError):
            unit.handle.execute("INSERT INTO single VALUES ('taken')")
        for statement in OUTSIDE:
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                unit.handle.cursor(cursor).executescript(statement)
    assert ledger(path) == []


@pytest.mark.usefixtures("accounts")
@pytest.mark.parametrize("through", ["connection", "cursor", "answer"])
def test_a_savepoint_a_row_commits_nothing_behind_a_swallowed_rollback(
    store: SqliteStore, path: Path, through: str
) -> None:
    """Its statements are prepared with the first row, while the unit is there: nobody asks about them at the third."""
    owner = take(store)

    def add(connection: sqlite3.Connection | sqlite3.Cursor, row: str) -> None:
        connection.execute("SAVEPOINT mine")
        try:
            connection.execute("INSERT INTO single VALUES (?)", (row,))
            connection.execute("WITH given AS (SELECT ?) INSERT INTO ledger SELECT * FROM given", (row,))
        except sqlite3.IntegrityError:
            return
        connection.execute("RELEASE mine")

    for _ in range(2):
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"), store.unit() as unit:  # noqa: PT012
            unit.admit(owner, events(0))
            with unit.savepoint():
                tx = unit.handle
                ways: dict[str, sqlite3.Connection | sqlite3.Cursor] = {
                    "connection": tx,
                    "cursor": tx.cursor(),
                    "answer": tx.execute("SELECT 1"),
                }
                for row in ("first", "taken", "third"):
                    add(ways[through], row)
        assert ledger(path) == []
    assert take(store).next_offset is None


def test_a_handler_that_was_given_up_writes_nothing_behind_the_rollback(store: SqliteStore, path: Path) -> None:
    """It may take one step more on its event loop, until the store is closed."""
    with pytest.raises(ReaderError), store.unit() as unit:  # noqa: PT012
        unit.handle.execute("INSERT INTO ledger VALUES ('in time')")
        raise ReaderError("the loop is gone")
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        unit.handle.execute("INSERT INTO ledger VALUES ('late')")
    assert ledger(path) == []


def test_too_old(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    with pytest.raises(StoreMismatch, match=r"too old\n.*3\.38"):
        SqliteStore(path).open("group", Retention())


def test_is_durable_by_its_settings(store: SqliteStore) -> None:
    connection = store._opened().connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_foreign_and_newer_layouts(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE onceflow_ids (something TEXT)")
        with pytest.raises(StoreMismatch, match="something else"):
            SqliteStore(path).open("group", Retention())
        connection.execute("DROP TABLE onceflow_ids")
        with closing(SqliteStore(path)) as store:
            store.open("group", Retention())
        connection.execute("UPDATE onceflow_layout SET version = 99")
        connection.commit()
        with pytest.raises(StoreMismatch, match="layout 99"):
            SqliteStore(path).open("group", Retention())


def test_no_database(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is not a database, and long enough to be looked at as one " * 50)
    (tmp_path / "folder.db").mkdir()
    for name, what in (
        ("text.db", "no SQLite database"),
        ("missing/store.db", "there is no directory .*missing"),
        ("folder.db", "is a directory"),
    ):
        with pytest.raises(StoreMismatch, match=what):
            SqliteStore(tmp_path / name).open("group", Retention())


def test_a_reader_that_starts_does_not_wait_for_the_unit_of_another(store: SqliteStore, path: Path) -> None:
    """It looks at the tables without the write lock; what it waits for it then says: a partition, and not the file."""
    with store.unit(), closing(SqliteStore(path, busy_timeout_s=0.1)) as second:
        second.open("group", Retention())
        with pytest.raises(StoreUnavailable, match="locked"):
            take(second)
    assert take(store).next_offset is None


def test_the_tables_are_made_once_by_readers_that_start_together(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def start(_: int) -> None:
        with closing(SqliteStore(tmp_path / "new.db")) as store:
            together.wait(PATIENCE_S)
            store.open("group", Retention())
            take(store)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(start, range(4)))
    with closing(sqlite3.connect(tmp_path / "new.db")) as connection:
        assert connection.execute("SELECT count(*) FROM onceflow_layout").fetchone() == (1,)


def test_a_new_file_that_another_writes_into_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite does not wait there: it says "locked" at once to whoever turns write-ahead logging on."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE theirs (x)")
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr("time.sleep", lambda _: other.execute("COMMIT"))
        with closing(SqliteStore(path)) as store:
            store.open("group", Retention())
            take(store)
        assert not other.in_transaction


def test_a_new_file_that_another_never_leaves_is_no_store(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE theirs (x)")
        other.execute("BEGIN IMMEDIATE")
        with closing(SqliteStore(path, busy_timeout_s=0.1)) as store, pytest.raises(StoreUnavailable, match="locked"):
            store.open("group", Retention())


def test_a_hundred_thousand_ids(store: SqliteStore, path: Path) -> None:
    owner = take(store)
    for start in range(0, 100_000, 5_000):
        with store.unit() as unit:
            assert unit.admit(owner, events(*range(start, start + 5_000))) == [NEW] * 5_000
    with store.unit() as unit:
        again = [EventKey(100_000 + number, "shop", f"event-{number}") for number in range(0, 100_000, 7)]
        assert set(unit.admit(owner, again)) == {DUPLICATE}
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM onceflow_ids").fetchone() == (100_000,)


@pytest.mark.parametrize("way", WAYS)
def test_compact_form_does_not_grow(store: SqliteStore, path: Path, way: Way) -> None:
    book_numbered(store, take(store), way, 10_000)
    with closing(sqlite3.connect(path)) as connection:
        counts = [
            connection.execute(f"SELECT count(*) FROM onceflow_{table}").fetchone()[0]
            for table in ("positions", "sequences", "ids", "claims")
        ]
    assert counts == [1, 1, 0, 0]


@pytest.mark.parametrize("table", ["positions", "ids"])
def test_what_sqlite_says_of_the_store_s_own_statements(store: SqliteStore, path: Path, table: str) -> None:
    """A disk that fails, a table that is gone: the store's error, not the event's."""
    owner = take(store)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"DROP TABLE onceflow_{table}")
    with pytest.raises(StoreUnavailable, match="no such table"), store.unit() as unit:
        unit.admit(owner, events(0))
    with pytest.raises(StoreUnavailable, match="no such table"):
        store.confirm(owner, events(0))


def _remove(path: Path) -> None:
    """With its logs, as whoever wants to begin anew does it."""
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def _replace(path: Path) -> None:
    """By a backup of the file, which knows the partition under the same epoch."""
    backup = path.with_name("backup.db")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    _remove(path)
    backup.rename(path)


goes_away = pytest.mark.parametrize("go_away", [_remove, _replace])


@goes_away
@pytest.mark.parametrize(
    "use",
    [
        lambda store, _: store.unit().__enter__(),
        lambda store, owner: store.claim(owner, events(1), 60.0),
        lambda store, owner: store.confirm(owner, events(0)),
        lambda store, _: take(store),
        lambda store, _: store.forget_expired(),
    ],
    ids=["unit", "claim", "confirm", "take", "forget_expired"],
)
def test_a_file_that_went_away_is_a_lost_store(
    store: SqliteStore,
    path: Path,
    go_away: Callable[[Path], None],
    use: Callable[[SqliteStore, Ownership], object],
) -> None:
    """Before anything is handled: what is committed into a file without a name is gone when the reader ends."""
    owner = take(store)
    assert store.claim(owner, events(0), 60.0) == [NEW]
    go_away(path)
    for _ in range(2):
        with pytest.raises(StoreLost, match="replaced or removed"):
            use(store, owner)
    assert not store._opened().connection.in_transaction


@goes_away
def test_a_file_that_goes_away_inside_a_unit(store: SqliteStore, path: Path, go_away: Callable[[Path], None]) -> None:
    """Before the commit, so that the reader acknowledges nothing of it."""
    owner = take(store)
    with pytest.raises(StoreLost, match="replaced or removed"), store.unit() as unit:  # noqa: PT012
        assert unit.admit(owner, events(0)) == [NEW]
        unit.handle.execute("INSERT INTO ledger VALUES ('nowhere')")
        go_away(path)
    assert store._opened().connection.execute("SELECT * FROM ledger").fetchall() == []


def test_the_file_that_came_instead_is_left_alone(store: SqliteStore, path: Path) -> None:
    """A store that is closed after it was lost does not remove the log of the file that another reader has there now."""
    take(store)
    _remove(path)
    with closing(SqliteStore(path)) as second:
        second.open("group", Retention())
        owner = take(second)
        with second.unit() as unit:
            assert unit.admit(owner, events(0)) == [NEW]
        with pytest.raises(StoreLost):
            take(store)
        store.close()
        assert take(second).next_offset == 1
    with closing(SqliteStore(path)) as third:
        third.open("group", Retention())
        assert take(third).next_offset == 1


@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_that_stays_is_found_from_any_directory(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    """A process that changes its directory (or runs as a service) keeps a store that was named by a relative path."""
    name = path.name
    if is_link:
        name = "link.db"
        (tmp_path / name).symlink_to(path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with closing(SqliteStore(name)) as store:
        store.open("group", Retention())
        monkeypatch.chdir(tmp_path / "elsewhere")
        owner = take(store)
        with store.unit() as unit:
            assert unit.admit(owner, events(0)) == [NEW]
        assert take(store).next_offset == 1


def test_a_file_that_cannot_be_looked_at_may_come_back(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that fails is no store that is lost: it is waited for."""
    with monkeypatch.context() as patched:
        patched.setattr("onceflow.reader.stores.sqlite_session.is_in_place", _fails)
        with pytest.raises(StoreUnavailable, match=f"{path.name}.*Input/output"):
            take(store)
    assert take(store).next_offset is None


def _fails(*_: object) -> bool:
    raise OSError(errno.EIO, "Input/output error")
