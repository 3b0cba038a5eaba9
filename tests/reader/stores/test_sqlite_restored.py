"""A SQLite file into which an older copy of itself is put: whoever goes on would lose what lies between the two, in silence."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onceflow.errors import StoreLost
from onceflow.reader.stores.interface import EventKey, Ownership, Retention, Standing
from onceflow.reader.stores.sqlite import SqliteStore

FIRST, SECOND = 1500, 3000  # events: with them the log is copied into the file, and begun anew, several times


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE ledger (id TEXT PRIMARY KEY, text TEXT)")
    return path


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as store:
        store.open("group", Retention())
        yield store


def book(store: SqliteStore, owner: Ownership, end: int, step: int = 10) -> Ownership:
    """As a reader does it: effects for the events up to ``end``, in units of ten."""
    for first in range(owner.next_offset or 0, end, step):
        keys = [EventKey(offset, "shop", f"event-{offset}") for offset in range(first, first + step)]
        with store.unit() as unit:
            assert unit.admit(owner, keys) == [Standing.NEW] * step
            unit.handle.executemany("INSERT INTO ledger VALUES (?, ?)", [(key.id, "x" * 200) for key in keys])
        owner = owner.at(first + step)
    return owner


def backup(path: Path, to: Path) -> Path:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)
    return to


def copy(source: Path, target: Path) -> None:
    """By another process: this one would give up SQLite's locks with it."""
    subprocess.run(["cp", str(source), str(target)], check=True)


def booked(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
        (count,) = connection.execute("SELECT count(*) FROM ledger").fetchone()
        return int(count)


Use = Callable[[SqliteStore, Ownership], object]
NEXT = [EventKey(100, "shop", "event-100")]
USES: dict[str, Use] = {
    "unit": lambda store, owner: book(store, owner, 110),
    "claim": lambda store, owner: store.claim(owner, NEXT, 60.0),
    "confirm": lambda store, owner: store.confirm(owner, NEXT),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_restored_by_sqlite_under_its_owner(store: SqliteStore, path: Path, tmp_path: Path, use: Use) -> None:
    """The copy is of the same epoch, so no fence tells; events 100 to 109 booked behind it would hide that 50 to 99 are gone."""
    owner = book(store, store.take("orders", [0], "reader")[0], 50)
    older = backup(path, tmp_path / "backup.db")
    owner = book(store, owner, 100)
    backup(older, path)
    with pytest.raises(StoreLost, match="before offset 100, and knows of those before 50 now"):
        use(store, owner)
    assert booked(path) == 50
    assert store.take("orders", [0], "reader")[0].next_offset == 50


def test_copied_into_the_file_under_its_owner(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    """The log is as new as the owner, and the position is in it."""
    owner = book(store, store.take("orders", [0], "reader")[0], FIRST)
    older = backup(path, tmp_path / "backup.db")
    owner = book(store, owner, FIRST + SECOND)
    copy(older, path)
    with pytest.raises(StoreLost, match="do not belong together"):
        book(store, owner, FIRST + SECOND + 10)


@pytest.fixture
def killed(store: SqliteStore, path: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The file that a killed reader has left, with its log; and a copy from before."""
    left, older = tmp_path / "left.db", tmp_path / "backup.db"
    owner = book(store, store.take("orders", [0], "reader")[0], FIRST)
    backup(path, older)
    book(store, owner, FIRST + SECOND)
    for each in ("", "-wal"):
        copy(Path(f"{path}{each}"), Path(f"{left}{each}"))
    return left, older


def test_a_log_that_a_killed_reader_has_left_is_read(killed: tuple[Path, Path]) -> None:
    left, _ = killed
    with closing(SqliteStore(left)) as store:
        store.open("group", Retention())
        assert store.take("orders", [0], "reader")[0].next_offset == FIRST + SECOND
    assert booked(left) == FIRST + SECOND


@pytest.mark.parametrize("is_link", [False, True], ids=["file", "link"])
def test_copied_into_the_file_beside_the_log_of_a_killed_reader(
    killed: tuple[Path, Path], tmp_path: Path, is_link: bool
) -> None:
    """As one restores a backup in a hurry. Without the log the copy is whole, and the reader compares it with Kafka."""
    left, older = killed
    copy(older, left)
    link = tmp_path / "elsewhere" / "left.db"
    link.parent.mkdir()
    link.symlink_to(left)
    with closing(SqliteStore(link if is_link else left)) as store:
        with pytest.raises(StoreLost, match=r"left\.db and left\.db-wal do not belong together"):
            store.open("group", Retention())
        Path(f"{left}-wal").unlink()
        store.open("group", Retention())
        assert store.take("orders", [0], "reader")[0].next_offset == FIRST
    assert booked(left) == FIRST


def test_an_empty_file_beside_a_log_is_a_new_one(killed: tuple[Path, Path]) -> None:
    left, _ = killed
    left.write_bytes(b"")
    with closing(SqliteStore(left)) as store:
        store.open("group", Retention())
        assert store.take("orders", [0], "reader")[0].next_offset is None


def test_a_file_that_is_made_smaller_under_its_owner_is_the_same(store: SqliteStore, path: Path) -> None:
    owner = book(store, store.take("orders", [0], "reader")[0], FIRST)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM ledger")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before = path.stat().st_size
        owner = book(store, owner, FIRST + 10)
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size < before
    book(store, owner, FIRST + SECOND)
    assert booked(path) == SECOND


def frames(log: Path) -> list[int]:
    """Where the frames of a write-ahead log begin that were written since it began anew."""
    content = log.read_bytes()
    step = 24 + int.from_bytes(content[8:12], "big")
    places = range(32, len(content) - step + 1, step)
    return [place for place in places if content[place + 8 : place + 16] == content[16:24]]


def test_what_a_power_loss_has_left_behind_the_end_of_the_log_is_no_part_of_it(tmp_path: Path) -> None:
    """A large commit reached the disk in part, its end before its middle; SQLite goes on before it, under the same salts."""
    path, left = tmp_path / "store.db", tmp_path / "left.db"
    log, left_log = Path(f"{path}-wal"), Path(f"{left}-wal")
    with closing(SqliteStore(path)) as store:
        store.open("group", Retention())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE ledger (text TEXT)")
        assert connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
        connection.execute("INSERT INTO ledger VALUES ('kept')")
        before = len(frames(log))
        connection.execute("INSERT INTO ledger VALUES (?)", ("x" * 200_000,))
        torn = frames(log)[before + 2]
        copy(path, left)
        content = bytearray(log.read_bytes())
    content[torn + 24 : torn + 24 + 4096] = bytes(4096)
    left_log.write_bytes(content)
    with closing(sqlite3.connect(left, isolation_level=None)) as connection:
        assert connection.execute("SELECT count(*) FROM ledger").fetchone() == (1,)
        for _ in range(5):
            connection.execute("INSERT INTO ledger VALUES ('next')")
        for each in ("", "-wal"):
            copy(Path(f"{left}{each}"), tmp_path / f"killed.db{each}")
    with closing(SqliteStore(tmp_path / "killed.db")) as store:
        store.open("group", Retention())
    assert booked(tmp_path / "killed.db") == 6
