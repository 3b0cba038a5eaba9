"""URLs of stores, the bounds of the memory store, and epochs that rise by time."""

from __future__ import annotations

import subprocess
import sys
import traceback

import pytest

from onceflow.errors import ConfigurationError
from onceflow.outbox.service import outbox_at
from onceflow.reader.reader import Reader
from onceflow.reader.stores import open_store
from onceflow.reader.stores.epochs import next_epoch
from onceflow.reader.stores.interface import EventKey, Retention, Standing, Store
from onceflow.reader.stores.memory import MemoryStore


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("memory:", "MemoryStore"),
        ("sqlite:///store.db", "SqliteStore"),
        ("postgresql://host/db", "PostgresqlStore"),
        ("redis://host:6379/0", "RedisStore"),
        ("rediss://host:6379/0", "RedisStore"),
    ],
)
def test_known_forms(url: str, name: str) -> None:
    store = open_store(url)
    assert type(store).__name__ == name
    assert isinstance(store, Store)


def test_foreign_keys_of_a_file() -> None:
    assert [open_store(f"sqlite:///a.db{rest}")._foreign_keys for rest in ("", "?foreign_keys=on")] == [False, True]  # type: ignore[attr-defined]
    for mistake in ("?foreign_keys=yes", "?foreignkeys=on"):
        with pytest.raises(ConfigurationError, match="foreign_keys=on"):
            open_store(f"sqlite:///a.db{mistake}")


def test_relative_and_absolute_paths() -> None:
    assert str(vars(open_store("sqlite:///a/b%20c.db"))["_path"]) == "a/b c.db"
    assert str(vars(open_store("sqlite:////a/b.db"))["_path"]) == "/a/b.db"


ANOTHER_FILE = ("sqlite:///shop#1.db", "sqlite:///shop.db#", "sqlite:shop.db", "sqlite:/shop.db", "sqlite://shop.db")


@pytest.mark.parametrize("url", ANOTHER_FILE)
def test_a_url_that_would_lead_to_another_file_is_refused(url: str) -> None:
    """Without what stands behind the #, or without its first letter."""
    with pytest.raises(ConfigurationError, match=r"names no file.*%23"):
        open_store(url)
    with pytest.raises(ConfigurationError, match=r"names no file.*%23"):
        outbox_at(url, "outbox")


def test_an_outbox_takes_no_options_of_a_file() -> None:
    with pytest.raises(ConfigurationError, match="names no file"):
        outbox_at("sqlite:///shop.db?mode=ro", "outbox")


def test_what_has_a_meaning_in_a_url_can_be_in_a_path() -> None:
    assert str(vars(open_store("sqlite:///shop%231%3F.db"))["_path"]) == "shop#1?.db"
    assert str(vars(outbox_at("sqlite:///shop%231%3F.db", "outbox"))["_path"]) == "shop#1?.db"


@pytest.mark.parametrize("url", ["", "mysql://host/db", "store.db", "sqlite:///", "sqlite://host/store.db"])
def test_unknown_forms(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgre://me:secret@db/x",
        "host=db user=me password=secret",
        "postgresql://me:secret@db/x?sslmod=require",
        "postgresql://me:secr%et@db/x",
        "redis://me:secret@h:abc/0",
        "redis://:4secret/5@h/0",
        "redis://me:secret@h/first",
        "redis://me:secret@h/0/1",
        "redis://me:secret@h/0?socket_timeout=long",
        "redis://me:secret@h/0?nosuch=1",
        "redis://me:secret@h/0?decode_responses=True",
        "redis://me:secret@[h/0",
    ],
)
def test_a_wrong_url_is_told_at_once_and_without_its_password(url: str) -> None:
    """Told by the server's client, it would come when the reader runs, as another error, or mean another database."""
    with pytest.raises(ConfigurationError) as raised:
        Reader("t", group="g", store=url)
    assert "secr" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("url", ["redis://h", "redis://h/", "redis://h/7", "redis://h?db=7", "unix:///run/r.sock?db=2"])
def test_a_database_of_redis_may_be_named_or_left_out(url: str) -> None:
    assert type(open_store(url)).__name__ == "RedisStore"


@pytest.mark.parametrize(
    ("library", "url", "extra"), [("psycopg", "postgresql://h/d", "postgresql"), ("redis", "redis://h", "redis")]
)
def test_missing_library_names_the_extra(library: str, url: str, extra: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None\nfrom onceflow.reader.stores import open_store\nopen_store({url!r})"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert f"install onceflow[{extra}]" in done.stderr


def test_needs_no_spark() -> None:
    code = (
        "import sys, onceflow.testing, onceflow.reader.stores.redis, onceflow.reader.stores.postgresql\n"
        "import onceflow.reader.stores.sqlite, onceflow.reader.stores.memory\n"
        "sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_epochs_rise_by_time() -> None:
    """A store that was restored from a backup gives no epoch a second time."""
    lost = next_epoch(6)
    assert next_epoch(5) >= lost > 1_600_000_000_000
    assert next_epoch(lost + 10**9) == lost + 10**9 + 1


def test_memory_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore(limit=100)
    store.open("group", Retention())
    (owner,) = store.take("orders", [0], "reader")
    for offset in range(1_000):
        store.confirm(owner, [EventKey(offset, "shop", str(offset))])
    assert len(store._tables._ids) == 100
    assert caplog.text.count("the oldest are forgotten") == 1
    again = [EventKey(1_000, "shop", "999"), EventKey(1_001, "shop", "0")]
    assert store.claim(owner, again, 60.0) == [Standing.DUPLICATE, Standing.NEW]


def test_a_sqlite_store_that_would_be_gone_with_its_connection_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="write memory: for a store in memory"):
        open_store("sqlite:///:memory:")
