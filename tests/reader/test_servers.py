"""The reader on a real PostgreSQL and a real Redis: effects equal the events, through SIGKILL of the server and of the reader."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
import redis
from tests.reader.conftest import SESSION_TIMEOUT_S
from tests.reader.stores.conftest import Server, postgresql_server, running_redis
from tests.reader.support import Place, eventually

from onceflow.reader.event import Event
from onceflow.reader.stores.postgresql import PostgresqlStore

EVENTS = [str(number) for number in range(60)]


@pytest.fixture(scope="module")
def database() -> Iterator[Server]:
    """A PostgreSQL of this file's own, because a test kills it."""
    with postgresql_server() as server:
        yield server


@pytest.fixture
def ledger(database: Server) -> Callable[[], list[str]]:
    """An empty ledger; gives what it holds, in order."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS ledger")
        connection.execute("CREATE TABLE ledger (number serial PRIMARY KEY, event text, pid integer)")

    def effects() -> list[str]:
        with psycopg.connect(database.url) as connection:
            return [row[0] for row in connection.execute("SELECT event FROM ledger ORDER BY number")]

    return effects


def insert(tx: Any, event: Event) -> None:
    tx.execute("INSERT INTO ledger (event, pid) VALUES (%s, 0)", ((event.value or b"").decode(),))


@pytest.mark.parametrize("step", ["admitted", "handled", "committed"])
def test_a_reader_killed_at_a_step(place: Place, database: Server, ledger: Callable[[], list[str]], step: str) -> None:
    place.send([*EVENTS, *EVENTS[:10]])
    options = {"batch_size": 10, "group_instance_id": "one"}
    job = place.job(store=database.url, mark="%s", interrupt=(step, 2, signal.SIGKILL), options=options)
    assert place.start(job).wait() == -signal.SIGKILL
    place.finish(job)
    assert ledger() == EVENTS


def test_a_reader_stopped_inside_its_transaction_and_woken_after_its_partition_moved(
    place: Place, database: Server, ledger: Callable[[], list[str]]
) -> None:
    """It holds the row of the position; the new owner waits for it, ends its session, and handles its events."""
    place.send(EVENTS)
    options = {"batch_size": 10, "session_timeout_s": SESSION_TIMEOUT_S}
    job = place.job(store=database.url, mark="%s", options=options, until_end=False)
    stopped = place.start(replace(job, interrupt=("handled", 1, signal.SIGSTOP)))
    stopped.until_stopped()
    other = place.start(job)
    eventually(ledger, lambda effects: len(effects) == len(EVENTS), "the new owner's effects")
    stopped.signal(signal.SIGCONT)
    place.send(["more"])
    eventually(ledger, lambda effects: "more" in effects, "what came after")
    assert (stopped.stop(), other.stop()) == (0, 0)
    assert ledger() == [*EVENTS, "more"]


def test_the_server_is_killed_inside_a_transaction_and_comes_back(
    place: Place, database: Server, ledger: Callable[[], list[str]]
) -> None:
    place.send(EVENTS)
    killed: list[int] = []
    reader = place.reader(store=PostgresqlStore(database.url), batch_size=10, backoff_max_s=0.5, retries=0)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        if event.value == b"25" and not killed:
            killed.append(event.offset)
            insert(tx, event)
            database.kill()
            database.start()
        insert(tx, event)

    reader.run(until_end=True)
    assert killed == [25]
    assert ledger() == EVENTS


def test_on_redis_the_effects_are_in_the_store_s_transaction(place: Place) -> None:
    with running_redis() as server:
        place.send([*EVENTS, *EVENTS[:10]])
        reader = place.reader(store=server.url, batch_size=10)
        failures = iter(range(2))

        @reader.handler
        def book(event: Event, tx: Any) -> None:
            tx.rpush("ledger", event.value)
            if event.value == b"33" and next(failures, None) is not None:
                raise ValueError("after the effect")

        reader.run(until_end=True)
        client = redis.Redis.from_url(server.url)
        assert [each.decode() for each in client.lrange("ledger", 0, -1)] == EVENTS  # type: ignore[union-attr]
        client.close()
