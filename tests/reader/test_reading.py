"""Effects in the database equal the events, whatever the handler is and however often a source repeats itself."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import until_stable
from tests.reader.conftest import Places
from tests.reader.support import TIMEOUT_S, Place, insert

import onceflow
from onceflow.errors import TopicMissing
from onceflow.reader.event import Event
from onceflow.reader.settings import ReaderSettings
from onceflow.reader.stores.memory import MemoryStore

EVENTS = [str(number) for number in range(300)]


def test_without_a_store_it_is_a_sqlite_file_in_the_working_directory(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for texts in (["a", "b"], ["c"]):
        place.send(texts)
        reader = onceflow.Reader(place.topic, group=place.group, bootstrap_servers=place.servers)

        @reader.handler
        def book(event: Event, tx: Any) -> None:
            tx.execute("CREATE TABLE IF NOT EXISTS ledger (event TEXT)")
            tx.execute("INSERT INTO ledger VALUES (?)", (event.value,))

        reader.run(until_end=True)
    with closing(sqlite3.connect(tmp_path / "onceflow-store.db")) as file:
        assert [row[0] for row in file.execute("SELECT event FROM ledger ORDER BY rowid")] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_effects_equal_the_events_over_several_runs(places: Places, protocol: str) -> None:
    place = places(3)
    place.send(EVENTS)
    place.book_all(group_protocol=protocol)
    assert sorted(place.effects()) == sorted(EVENTS)
    place.send(["more"])
    place.book_all(group_protocol=protocol)
    assert sorted(place.effects()) == sorted([*EVENTS, "more"])


def test_each_partition_keeps_its_order(places: Places) -> None:
    place = places(3)
    place.send(EVENTS)
    place.book_all(batch_size=7)
    effects = [int(text) for text in place.effects()]
    assert all(sorted(part) == part for n in range(3) if (part := [e for e in effects if e % 3 == n]))


@pytest.mark.parametrize("sequence", [False, True])
def test_an_event_that_its_source_sent_again_has_one_effect(place: Place, sequence: bool) -> None:
    place.send(EVENTS, sequence=sequence)
    place.send(EVENTS[100:200], sequence=sequence)
    place.book_all()
    place.send(EVENTS[:50], sequence=sequence)
    place.book_all()
    assert place.effects() == EVENTS


def test_events_without_ids_are_told_apart_by_their_position(place: Place) -> None:
    place.send(["same", "same"], ids=False)
    place.book_all()
    place.book_all()
    assert place.effects() == ["same", "same"]


def test_a_batch_handler_gets_the_new_events_in_order(place: Place) -> None:
    place.send([*EVENTS, *EVENTS[:10]])
    sizes: list[int] = []
    reader = place.reader(batch_size=64)

    @reader.handler(batch=True)
    def book(events: list[Event], tx: Any) -> None:
        sizes.append(len(events))
        for event in events:
            insert(tx, event)

    reader.run(until_end=True)
    assert place.effects() == EVENTS
    assert max(sizes) > 1


def test_an_asyncio_handler_runs_in_the_transaction_as_well(place: Place) -> None:
    place.send(EVENTS)
    reader = place.reader()

    @reader.handler
    async def book(event: Event, tx: Any) -> None:
        await asyncio.sleep(0)
        insert(tx, event)

    reader.run(until_end=True)
    assert place.effects() == EVENTS


@pytest.mark.parametrize("batch", [False, True])
def test_what_an_asyncio_handler_waits_for_may_be_cancelled(place: Place, batch: bool) -> None:
    """That is a failure of the event, tried again, and not the end of the reader."""
    place.send(EVENTS)
    failures = iter(range(2))
    reader = place.reader(batch_size=50)

    async def several(events: list[Event], tx: Any) -> None:
        for event in events:
            insert(tx, event)
            if event.value == b"33" and next(failures, None) is not None:
                waiting = asyncio.get_running_loop().create_future()
                waiting.cancel()
                await waiting

    async def one(event: Event, tx: Any) -> None:
        await several([event], tx)

    reader.handler(batch=batch)(several if batch else one)
    reader.run(until_end=True)
    assert place.effects() == EVENTS


def test_cancelling_twice_does_not_leave_the_reader_running(place: Place) -> None:
    """It has the store and the partitions until its thread has ended: whoever awaits it must not go on before."""
    place.send(["1"])
    reader = place.reader()
    working, go_on = asyncio.Event(), asyncio.Event()

    @reader.handler
    async def book(event: Event, tx: Any) -> None:
        working.set()
        await go_on.wait()
        insert(tx, event)

    async def service() -> None:
        task = asyncio.create_task(reader.run_async())
        await asyncio.wait_for(working.wait(), TIMEOUT_S)
        for _ in range(3):
            task.cancel()
            await asyncio.wait([task], timeout=0)
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not reader._running.locked()

    asyncio.run(service())
    assert place.effects() == ["1"]


def test_rows_as_a_handler_wants_them_do_not_blind_the_store(place: Place) -> None:
    """The connection keeps what a handler sets on it; the store goes on to know what is new."""
    place.send([*EVENTS, *EVENTS[:20]])
    reader = place.reader(batch_size=10)

    @reader.handler
    def book(event: Event, tx: sqlite3.Connection) -> None:
        tx.row_factory = sqlite3.Row
        (row,) = tx.execute("SELECT count(*) AS n FROM ledger").fetchall()
        assert row["n"] == event.offset
        insert(tx, event)

    reader.run(until_end=True)
    assert place.effects() == EVENTS


def test_within_a_running_loop_handlers_run_on_that_loop(place: Place) -> None:
    place.send(EVENTS)
    threads: set[int] = set()
    reader = place.reader()

    @reader.handler(batch=True)
    async def book(events: list[Event], tx: Any) -> None:
        threads.add(threading.get_ident())
        for event in events:
            insert(tx, event)

    asyncio.run(reader.run_async(until_end=True))
    assert place.effects() == EVENTS
    assert threads == {threading.get_ident()}


def test_cancelling_within_a_running_loop_ends_in_order(place: Place) -> None:
    place.send(EVENTS)
    reader = place.reader()
    handled = asyncio.Event()

    @reader.handler
    async def book(event: Event, tx: Any) -> None:
        insert(tx, event)
        if event.value == EVENTS[-1].encode():
            handled.set()

    async def service() -> None:
        task = asyncio.create_task(reader.run_async())
        await asyncio.wait_for(handled.wait(), TIMEOUT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(service())
    assert place.effects() == EVENTS
    place.book_all()
    assert place.effects() == EVENTS


def test_effects_elsewhere_get_one_idempotency_key_per_event(place: Place) -> None:
    place.send([*EVENTS, *EVENTS])
    keys: list[str] = []
    reader = place.reader()

    @reader.handler
    def book(event: Event) -> None:
        keys.append(event.idempotency_key)

    assert reader.mode == "claim, process, confirm"
    reader.run(until_end=True)
    reader.run(until_end=True)
    assert keys == [f"tests/{text}" for text in EVENTS]


def test_a_memory_store_is_rebuilt_from_the_topic_after_a_restart(place: Place) -> None:
    seen: list[str] = []
    place.send(EVENTS)
    for _ in range(2):
        reader = place.reader(store=MemoryStore())
        reader.handler(batch=True)(lambda events: seen.extend(event.value.decode() for event in events))
        reader.run(until_end=True)
        place.send(EVENTS[:20])  # the ids of what was handled before the restart are known again
    assert seen == EVENTS


def test_what_an_event_carries(place: Place) -> None:
    place.send(["payload"])
    found: list[Event] = []
    reader = place.reader()
    reader.handler(found.append)
    reader.run(until_end=True)
    (event,) = found
    assert (event.topic, event.partition, event.offset) == (place.topic, 0, 0)
    assert (event.key, event.value) == (b"key payload", b"payload")
    assert dict(event.headers)["ce_id"] == b"payload"
    assert event.identity is not None
    assert (event.identity.source, event.identity.id) == ("tests", "payload")
    assert event.timestamp_ms > 0
    assert repr(event) == f"Event({place.topic}-0@0, tests payload)"


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"], ids=["committed", "control"])
def test_records_of_aborted_transactions_are_not_events(
    place: Place, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    from confluent_kafka import Producer

    options = ReaderSettings.base_options
    monkeypatch.setattr(ReaderSettings, "base_options", lambda self: {**options(self), "isolation.level": isolation})
    producer = Producer({"bootstrap.servers": place.servers, "transactional.id": place.group})
    producer.init_transactions(TIMEOUT_S)
    for text, commit in (("aborted", False), ("committed", True)):
        producer.begin_transaction()
        producer.produce(place.topic, text, headers={"ce_id": text})
        assert producer.flush(TIMEOUT_S) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(TIMEOUT_S)
    until_stable(place.broker, place.topic)
    place.book_all()
    assert place.effects() == (["committed"] if isolation == "read_committed" else ["aborted", "committed"])


def test_a_missing_topic_is_named(place: Place) -> None:
    reader = onceflow.Reader("no-such-topic", group="g", store="memory:", bootstrap_servers=place.servers)
    reader.handler(lambda event: None)
    with pytest.raises(TopicMissing, match="no-such-topic"):
        reader.run(until_end=True)


def test_a_reader_needs_no_spark() -> None:
    code = "import onceflow, sys; onceflow.Reader; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=TIMEOUT_S).returncode == 0


def test_the_effect_and_the_position_are_in_one_transaction(place: Place) -> None:
    """What the handler wrote is gone with the ids when the unit does not commit."""
    place.send(["1"])
    reader = place.reader(retries=0, dead_letters=None)

    @reader.handler
    def book(event: Event, tx: sqlite3.Connection) -> None:
        insert(tx, event)
        raise RuntimeError("after the effect")

    with pytest.raises(onceflow.errors.HandlerFailed, match="after the effect"):
        reader.run(until_end=True)
    assert place.effects() == []
    place.book_all()
    assert place.effects() == ["1"]


@pytest.mark.parametrize("batch", [False, True])
def test_an_asyncio_handler_with_effects_elsewhere_handles_each_event_once(place: Place, batch: bool) -> None:
    place.send([*EVENTS, *EVENTS[:20]])
    seen: list[str] = []
    failures = iter(range(2))
    reader = place.reader(batch_size=50)

    async def one(event: Event) -> None:
        await asyncio.sleep(0)
        if event.value == b"33" and next(failures, None) is not None:
            raise ConnectionError("not now")
        seen.append((event.value or b"").decode())

    async def several(events: list[Event]) -> None:
        if any(event.value == b"33" for event in events) and next(failures, None) is not None:
            raise ConnectionError("not now")
        for event in events:
            await one(event)

    reader.handler(batch=batch)(several if batch else one)
    assert reader.mode == "claim, process, confirm"
    reader.run(until_end=True)
    assert seen == EVENTS
