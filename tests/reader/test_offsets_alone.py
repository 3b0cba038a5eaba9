"""Where a reader goes on is the store's to say. What breaks where Kafka's offsets alone say it, apart from the effects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from tests.reader.conftest import Places
from tests.reader.support import TIMEOUT_S, Place, eventually

from onceflow.reader import assignment, loop
from onceflow.reader.event import Event
from onceflow.reader.reader import Reader
from onceflow.reader.stores.interface import EventKey, Ownership, Standing
from onceflow.reader.stores.sqlite import SqliteStore, SqliteTables, SqliteUnit

EVENTS = [str(number) for number in range(40)]


class Forgetful(SqliteStore):
    """The undefended variant: commits effects, and neither position nor ids with them. It fences, as a group of Kafka's does."""

    class Unit(SqliteUnit):
        def admit(self, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:  # noqa: ARG002
            return [Standing.NEW] * len(keys)

    @contextmanager
    def unit(self) -> Iterator[SqliteUnit]:
        session = self._opened()
        with session.transaction(guarded=True):
            yield self.Unit(session, SqliteTables(session.connection, self._group))

    def take(self, topic: str, partitions: Sequence[int], owner: str) -> list[Ownership]:
        return [replace(each, next_offset=None) for each in super().take(topic, partitions, owner)]


Make = Callable[[Path], SqliteStore]
STORES = pytest.mark.parametrize(
    "make", [SqliteStore, Forgetful], ids=["the store's position", "control: Kafka's offset"]
)


@STORES
def test_rewinding_the_group_repeats_nothing(place: Place, make: Make) -> None:
    """Of events without ids, so that the position alone tells."""
    place.send(EVENTS, ids=False)
    for _ in range(2):  # what Kafka has been told holds for both
        place.book_all(store=make(place.file), lost_store="accept")
        assert place.effects() == EVENTS
    place.set_committed({0: 0})
    place.book_all(store=make(place.file), lost_store="accept")
    assert place.effects() == (EVENTS if make is SqliteStore else EVENTS * 2)


@STORES
def test_a_partition_that_moves_before_kafka_has_heard_of_its_effects(
    places: Places, monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    """A second reader comes, and what the first one tells as it gives a partition back does not arrive."""
    monkeypatch.setattr(loop, "OFFSETS_EVERY_S", 3600.0)
    monkeypatch.setattr("onceflow.reader.assignment.tell_kafka", lambda *given, wait: False)
    place = places(2)

    def reader(number: int) -> Reader:
        made = place.reader(store=make(place.file), lost_store="accept", group_protocol="consumer", batch_size=5)

        @made.handler
        def book(event: Event, tx: Any) -> None:
            tx.execute("INSERT INTO ledger (event, pid) VALUES (?, ?)", ((event.value or b"").decode(), number))

        return made

    def workers() -> set[int]:
        return {row[0] for row in place.ledger.execute("SELECT DISTINCT pid FROM ledger")}

    sent = len(EVENTS)
    place.send(EVENTS)
    with ExitStack() as ends:
        run(reader(1), ends)
        eventually(lambda: len(place.effects()), sent.__eq__, "effects of the first")
        run(reader(2), ends)

        def both_work() -> set[int]:
            nonlocal sent
            place.send(range(sent, sent + 10))
            sent += 10
            return workers()

        eventually(both_work, {1, 2}.__eq__, "two readers at work")
        eventually(lambda: len(set(place.effects())), sent.__eq__, "effects of both")
    repeated = len(place.effects()) - sent
    assert repeated == 0 if make is SqliteStore else repeated > 0


def run(reader: Reader, ends: ExitStack) -> None:
    """On a thread, until the end of ``ends``."""
    thread = threading.Thread(target=reader.run)
    thread.start()
    ends.callback(_end, reader, thread)


def _end(reader: Reader, thread: threading.Thread) -> None:
    reader.stop()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


class BeingRebalanced(Consumer):
    """Its group is being rebalanced when it ends: Kafka refuses so many commits from then on."""

    ends: threading.Event
    refuses = 0

    def commit(self, **given: Any) -> Any:
        if self.ends.is_set() and self.refuses:
            type(self).refuses -= 1
            raise KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))
        return super().commit(**given)


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
@pytest.mark.parametrize(("refuses", "told"), [(1, len(EVENTS)), (1_000_000, 0)], ids=["for a moment", "for long"])
def test_what_is_refused_at_the_end_because_the_group_is_being_rebalanced_is_told_again(
    place: Place,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
    refuses: int,
    told: int,
) -> None:
    """Untold, what a store in memory has handled last would come again behind an end in order. It leaves its group all the same:
    librdkafka, which lets no question through while it closes, is asked none.
    """
    monkeypatch.setattr(BeingRebalanced, "ends", ends := threading.Event(), raising=False)
    monkeypatch.setattr(BeingRebalanced, "refuses", refuses)
    monkeypatch.setattr(loop, "Consumer", BeingRebalanced)
    if refuses > 1:
        monkeypatch.setattr(assignment, "LAST_WORD_S", 0.5)
    place.send(EVENTS)
    reader = place.reader(store=place.store if store == "sqlite" else store, batch_size=len(EVENTS))

    @reader.handler
    def book(event: Event) -> None:
        if event.value == EVENTS[-1].encode():
            ends.set()
            reader.stop()

    reader.run()
    assert BeingRebalanced.refuses < refuses
    assert "no broker has answered" not in caplog.text
    group = place.admin.describe_consumer_groups([place.group])[place.group].result(TIMEOUT_S)
    assert not group.members
    assert place.committed() == {0: told}
