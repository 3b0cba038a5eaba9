"""A file that is synced while other programs open and close it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from onceflow.sqlite import file_of, sync

SERVICE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=30)
connection.execute("insert into t values (1)")
connection.commit()
connection.close()
"""


WRITER = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('drop table t')"


def run(program: str, database: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, str(database)], capture_output=True, text=True, timeout=60, check=False
    )


def serve(database: Path) -> None:
    """A service in another process: opens, commits, and closes what may be the last connection."""
    assert run(SERVICE, database).returncode == 0


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_connection_keeps_its_locks_when_its_file_is_synced(tmp_path: Path, journal: str) -> None:
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(f"pragma journal_mode = {journal}")
        connection.execute("create table t (n integer)")
        for number in range(1, 4):
            sync(database)
            serve(database)
            assert connection.execute("select count(*) from t").fetchone() == (number,)
    assert not Path(f"{database}-wal").exists()


def test_a_read_transaction_keeps_writers_out_when_the_file_is_synced(tmp_path: Path) -> None:
    """Without a log a reader's lock is all that keeps a writer from changing the pages under it."""
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("create table t (n integer)")
        connection.execute("begin")
        connection.execute("select * from t").fetchall()
        sync(database)
        assert "database is locked" in run(WRITER, database).stderr


def test_a_file_made_anew_is_synced_too(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    for _ in range(2):
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("create table t (n integer)")
        sync(database)
        database.unlink()
    with pytest.raises(FileNotFoundError):
        sync(database)


def test_the_log_behind_a_link_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite keeps it beside what the link leads to."""
    (tmp_path / "data").mkdir()
    database, link, synced = tmp_path / "data" / "shop.db", tmp_path / "shop.db", set[str]()
    link.symlink_to(database)
    fsync = os.fsync

    def noting(file: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{file}").readlink()))
        fsync(file)

    with closing(sqlite3.connect(link, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table t (n integer)")
        monkeypatch.setattr(os, "fsync", noting)
        sync(link)
    assert synced == {f"{database}-wal", str(database), str(database.parent)}


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:///a%FFb.db", b"a\xffb.db"),
        ("sqlite:///a\tb\n.db", b"a\tb\n.db"),
        ("sqlite:////d%20e/a%3Fb%23.db", b"/d e/a?b#.db"),
        ("sqlite:///gr%C3%B6\u00dfe.db", "größe.db".encode()),
        ("sqlite:///a;b.db", b"a;b.db"),
    ],
)
def test_a_url_names_the_file_that_is_called_so(url: str, name: bytes) -> None:
    """Whatever a name of a file may have: any bytes, line ends, tabs."""
    assert os.fsencode(file_of(url)) == name
    assert os.fsencode(file_of(f"{url}?mode=ro", options=True)) == name


@pytest.mark.parametrize(
    "url", ["sqlite:///", "sqlite://a.db", "sqlite:a.db", "sqlite:///a.db#b", "sqlite:///a.db?b", "a.db"]
)
def test_a_url_that_names_none(url: str) -> None:
    assert file_of(url) == ""
