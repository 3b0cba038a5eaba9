"""The store goes away, or its answer is lost between effect and commit: effects equal the events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.reader.support import Place, insert
from tests.reader.test_positions import keep_from, lose_the_store

from onceflow.errors import CommitUnknown, StoreLost, StoreUnavailable
from onceflow.reader.claims import Claims
from onceflow.reader.event import Event
from onceflow.reader.lane import Lane
from onceflow.reader.stores.interface import EventKey, Ownership, Retention
from onceflow.reader.stores.sqlite import SqliteStore

EVENTS = [str(number) for number in range(100)]


class Shaky(SqliteStore):
    """A real store whose connection breaks at every third transaction: before the commit, or after it."""

    def __init__(self, path: Path, error: type[StoreUnavailable | CommitUnknown], *, committed: bool) -> None:
        super().__init__(path)
        self._error = error
        self._committed = committed
        self._count = 0
        self.broken = 0

    @contextmanager
    def unit(self) -> Iterator[Any]:
        self._count += 1
        breaks = self._count % 3 == 0
        with super().unit() as unit:
            yield unit
            if breaks and not self._committed:
                self._break()
        if breaks and self._committed:
            self._break()

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        self._count += 1
        breaks = self._count % 3 == 0
        if breaks and not self._committed:
            self._break()
        super().confirm(ownership, keys)
        if breaks:
            self._break()

    def _break(self) -> None:
        self.broken += 1
        raise self._error("the connection is gone")


BREAKS = [(StoreUnavailable, False), (CommitUnknown, False), (CommitUnknown, True)]


@pytest.mark.parametrize(("error", "committed"), BREAKS)
@pytest.mark.parametrize("ids", [True, False])
def test_effects_in_the_store_equal_the_events(place: Place, error: Any, committed: bool, ids: bool) -> None:
    place.send(EVENTS, ids=ids)
    store = Shaky(place.file, error, committed=committed)
    place.book_all(store=store, batch_size=10)
    assert store.broken >= 3
    assert place.effects() == EVENTS


@pytest.mark.parametrize(("error", "committed"), BREAKS)
def test_an_effect_elsewhere_is_not_repeated_because_its_confirmation_failed(
    place: Place, error: Any, committed: bool
) -> None:
    place.send(EVENTS)
    store = Shaky(place.file, error, committed=committed)
    seen: list[str] = []
    reader = place.reader(store=store, batch_size=10)
    reader.handler(lambda event: seen.append((event.value or b"").decode()))
    reader.run(until_end=True)
    assert store.broken >= 3
    assert seen == EVENTS


def test_control_who_forgets_which_effects_happened_repeats_them(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Claims, lane: Lane, *given: Any) -> None:
        lane.effects_done = 0
        part(self, lane, *given)

    part = Claims._part
    monkeypatch.setattr(Claims, "_part", forgetful)
    place.send(EVENTS)
    seen: list[str] = []
    reader = place.reader(store=Shaky(place.file, StoreUnavailable, committed=False), batch_size=10)
    reader.handler(lambda event: seen.append((event.value or b"").decode()))
    reader.run(until_end=True)
    assert len(seen) > len(EVENTS)
    assert list(dict.fromkeys(seen)) == EVENTS


class Unconfirming(SqliteStore):
    """Does not answer the first ``times`` confirmations of ``effects``, and at the first of them the reader is asked to end."""

    def __init__(self, path: Path, times: float, effects: Sequence[str]) -> None:
        super().__init__(path)
        self._left = times
        self._effects = effects
        self.stop: Callable[[], None] = lambda: None

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        if self._effects and self._left > 0:
            self._left -= 1
            self.stop()
            raise StoreUnavailable("nobody answers")
        super().confirm(ownership, keys)


def _handled_and_stopped(place: Place, times: float) -> list[str]:
    """What is handled by a reader that is stopped with its first effect unconfirmed, and by the next one."""
    place.send(["1", "2"])
    seen: list[str] = []
    store = Unconfirming(place.file, times, seen)
    reader = place.reader(store=store, batch_size=1, patience_s=3600)
    store.stop = reader.stop
    reader.handler(lambda event: seen.append(event.value.decode()))
    reader.run()
    assert seen == ["1"]
    reader = place.reader(store=SqliteStore(place.file))
    reader.handler(lambda event: seen.append(event.value.decode()))
    reader.run(until_end=True)
    return seen


def test_an_unconfirmed_effect_is_confirmed_as_the_reader_ends(place: Place) -> None:
    assert _handled_and_stopped(place, 1) == ["1", "2"]


def test_an_effect_that_cannot_be_confirmed_is_told_as_the_reader_ends(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """It will be repeated, as after a death: never without a word."""
    assert _handled_and_stopped(place, float("inf")) == ["1", "1", "2"]
    assert "the effects of 1 events from offset 0 on happened, and the store does not know of it" in caplog.text


def test_a_store_that_stays_away_ends_the_reader_with_its_error(place: Place) -> None:
    class Gone(SqliteStore):
        @contextmanager
        def unit(self) -> Iterator[Any]:
            with super().unit() as unit:
                yield unit
                raise StoreUnavailable("nobody answers")

    place.send(EVENTS)
    with pytest.raises(StoreUnavailable, match="nobody answers"):
        place.book_all(store=Gone(place.file), patience_s=0.2)
    place.book_all()
    assert place.effects() == EVENTS


class BreaksAt(SqliteStore):
    """Its connection breaks in some of its units, counted from 1."""

    def __init__(self, path: Path, *units: int) -> None:
        super().__init__(path)
        self._units = units
        self._count = 0

    @contextmanager
    def unit(self) -> Iterator[Any]:
        self._count += 1
        with super().unit() as unit:
            yield unit
            if self._count in self._units:
                raise StoreUnavailable("the connection is gone")


@pytest.mark.parametrize("choice", ["accept", "rebuild"])
def test_a_trouble_right_after_a_loss_that_was_settled_is_not_another_loss(place: Place, choice: str) -> None:
    """The reader goes on at Kafka's offset; the store's own position stands behind it until the first unit is committed."""
    place.send(EVENTS[:30])
    place.book_all()
    lose_the_store(place)
    keep_from(place, 30)  # so there are no ids to be read again
    place.send(EVENTS[30:])
    place.book_all(store=BreaksAt(place.file, 1), lost_store=choice)
    place.book_all()
    assert place.effects() == EVENTS
    assert place.committed() == {0: len(EVENTS)}


class Away(SqliteStore):
    """Does not answer, and while it is waited for, the reader is asked to end."""

    def __init__(self, path: Path, call: str) -> None:
        super().__init__(path)
        self._call = call
        self.stop: Callable[[], None] = lambda: None

    def open(self, group: str, retention: Retention) -> None:
        self._answer("open")
        super().open(group, retention)

    def take(self, topic: str, partitions: Sequence[int], owner: str) -> list[Ownership]:
        self._answer("take")
        return super().take(topic, partitions, owner)

    def _answer(self, call: str) -> None:
        if call == self._call:
            self.stop()
            raise StoreUnavailable("nobody answers")


@pytest.mark.parametrize("call", ["open", "take"])
def test_a_reader_that_waits_for_its_store_ends_when_it_is_asked_to(place: Place, call: str) -> None:
    """In order, and not after the patience with an error: whoever sent SIGTERM would have killed it by then."""
    place.send(["1"])
    store = Away(place.file, call)
    reader = place.reader(store=store, patience_s=3600)
    store.stop = reader.stop
    reader.handler(lambda event, tx: insert(tx, event))
    reader.run()
    assert place.effects() == []
    place.book_all()
    assert place.effects() == ["1"]


@pytest.mark.parametrize("notices", [True, False], ids=["its connection breaks", "it notices nothing"])
def test_a_store_that_went_back_while_it_was_used_ends_the_reader(place: Place, notices: bool) -> None:
    """A database restored under a running reader, or one that a pooler leads to another server, which lagged.

    What it handled meanwhile would be repeated in silence; or, where it goes on behind that, be lost without a word.
    """

    class Restored(SqliteStore):
        went_back = False

        @contextmanager
        def unit(self) -> Iterator[Any]:
            with super().unit() as unit:
                yield unit
            row = place.ledger.execute("SELECT next_offset FROM onceflow_positions").fetchone()
            if row[0] >= 50 and not self.went_back:
                self.went_back = True
                place.ledger.execute("UPDATE onceflow_positions SET next_offset = 20 WHERE topic = ?", (place.topic,))
                if notices:
                    raise CommitUnknown("the connection is gone")

    place.send(EVENTS)
    with pytest.raises(StoreLost, match="knows of those before 20 now"):
        place.book_all(store=Restored(place.file), batch_size=10)
    assert len(place.effects()) == 50, "it went on behind what was lost"
    assert place.committed() == {0: 40 if notices else 50}
    with pytest.raises(StoreLost, match="lost_store='rebuild'"):
        place.book_all()


def test_the_handler_s_own_database_error_counts_for_the_event(place: Place) -> None:
    place.send(["1", "2"])
    reader = place.reader(retries=0)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        insert(tx, event)
        if event.value == b"1":
            tx.execute("INSERT INTO no_such_table VALUES (1)")

    reader.run(until_end=True)
    assert place.effects() == ["2"]
