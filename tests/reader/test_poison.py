"""Poison: tried again with pauses, then put aside in order with the reason; never a blocked partition without a word."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.conftest import Reader as ReadAll
from tests.reader.conftest import Places
from tests.reader.support import TIMEOUT_S, Place, insert
from tests.reader.test_loop import event as event_at

from onceflow.errors import BrokerUnreachable, HandlerFailed, StoreError, TopicMissing
from onceflow.reader import dead_letters, settings
from onceflow.reader.dead_letters import DeadLetters
from onceflow.reader.event import Event
from onceflow.reader.inbox import Inbox
from onceflow.reader.lane import Lane
from onceflow.reader.loop import Loop
from onceflow.reader.patience import Stopped
from onceflow.reader.reader import Reader
from onceflow.reader.steps import Step
from onceflow.stop_flag import StopFlag

EVENTS = [str(number) for number in range(50)]


def is_poison(event: Event) -> bool:
    return int(event.value or b"0") % 10 == 7


def test_poison_goes_to_the_dead_letters_in_order_with_the_reason(
    place: Place, read: ReadAll, caplog: pytest.LogCaptureFixture
) -> None:
    place.send(EVENTS)
    attempts: dict[int, int] = {}
    reader = place.reader(retries=2)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        insert(tx, event)
        if is_poison(event):
            attempts[event.offset] = attempts.get(event.offset, 0) + 1
            raise ValueError(f"no account {event.offset}")

    reader.run(until_end=True)
    assert place.effects() == [text for text in EVENTS if int(text) % 10 != 7]
    assert attempts == dict.fromkeys(range(7, 50, 10), 3)
    letters = read(f"{place.topic}.dead-letter", on=place.broker)
    assert [letter.value() for letter in letters] == [b"7", b"17", b"27", b"37", b"47"]
    headers: dict[str, Any] = dict(letters[1].headers() or ())
    assert headers["ce_id"] == b"17"
    assert headers["onceflow_reason"] == b"ValueError: no account 17"
    assert (headers["onceflow_topic"], headers["onceflow_partition"]) == (place.topic.encode(), b"0")
    assert (headers["onceflow_offset"], headers["onceflow_attempts"]) == (b"17", b"3")
    assert letters[1].key() == b"key 17"
    assert any("dead letters" in record.message for record in caplog.records if record.levelno == logging.ERROR)
    place.book_all()
    assert len(place.effects()) == 45  # a dead letter counts as handled


@pytest.mark.parametrize("takes_transaction", [True, False])
def test_poison_behind_an_event_that_fails_now_and_then_is_put_aside(
    place: Place, read: ReadAll, takes_transaction: bool
) -> None:
    """Each failure rolls back what the other one had done; both are given up in the end, or handled."""
    place.send(EVENTS[:12])
    reader = place.reader(retries=2)
    calls = dict.fromkeys(EVENTS, 0)
    handled: list[str] = []

    def book(event: Event) -> None:
        text = (event.value or b"").decode()
        calls[text] += 1
        if text == "9" or (text == "5" and calls[text] % 2):
            raise ValueError(f"no account {text}, call {calls[text]}")
        assert sum(calls.values()) < 200, "it never ends"
        handled.append(text)

    if takes_transaction:

        @reader.handler
        def in_the_transaction(event: Event, tx: Any) -> None:
            book(event)
            insert(tx, event)

    else:
        reader.handler(book)
    reader.run(until_end=True)
    assert (place.effects() if takes_transaction else handled) == [text for text in EVENTS[:12] if text != "9"]
    (letter,) = read(f"{place.topic}.dead-letter", on=place.broker)
    headers: dict[str, Any] = dict(letter.headers() or ())
    assert (letter.value(), headers["onceflow_attempts"]) == (b"9", b"3")
    assert calls["9"] == 3


@pytest.mark.parametrize("takes_transaction", [True, False])
def test_a_batch_handler_s_poison_is_found_event_by_event(place: Place, read: ReadAll, takes_transaction: bool) -> None:
    place.send(EVENTS)
    reader = place.reader(retries=0)

    def book(events: list[Event]) -> None:
        if any(is_poison(event) for event in events):
            raise ValueError("somewhere in the batch")

    if takes_transaction:

        @reader.handler(batch=True)
        def in_the_transaction(events: list[Event], tx: Any) -> None:
            book(events)
            for event in events:
                insert(tx, event)

    else:

        @reader.handler(batch=True)
        def elsewhere(events: list[Event]) -> None:
            book(events)
            for event in events:
                insert(place.ledger, event)

    reader.run(until_end=True)
    assert place.effects() == [text for text in EVENTS if int(text) % 10 != 7]
    letters = read(f"{place.topic}.dead-letter", on=place.broker)
    assert [letter.value() for letter in letters] == [b"7", b"17", b"27", b"37", b"47"]


ENTRIES = {
    "deferred foreign key": "CREATE TABLE entry (account TEXT REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED)",
    "on conflict rollback": "CREATE TABLE entry (account TEXT UNIQUE ON CONFLICT ROLLBACK)",
}


@pytest.mark.parametrize("table", ENTRIES)
@pytest.mark.parametrize("batch", [False, True])
def test_what_ends_the_whole_unit_is_poison_of_that_event_alone(
    place: Place, read: ReadAll, table: str, batch: bool
) -> None:
    """SQLite says it at the commit, or rolls everything back: neither a trouble of the store's, nor one of the other events."""
    place.ledger.execute("CREATE TABLE account (id TEXT PRIMARY KEY)")
    place.ledger.execute(ENTRIES[table])
    bad = {text for text in EVENTS if int(text) % 10 == 7}
    fill = "INSERT INTO account VALUES (?)" if "foreign" in table else "INSERT INTO entry VALUES (?)"
    place.ledger.executemany(fill, [(text,) for text in EVENTS if (text in bad) is not ("foreign" in table)])
    place.send(EVENTS)
    reader = place.reader(store=f"{place.store}?foreign_keys=on", batch_size=20, retries=1)

    def several(events: list[Event], tx: Any) -> None:
        for event in events:
            insert(tx, event)
            tx.execute("INSERT INTO entry VALUES (?)", ((event.value or b"").decode(),))

    reader.handler(batch=batch)(several if batch else lambda event, tx: several([event], tx))
    reader.run(until_end=True)
    assert place.effects() == [text for text in EVENTS if text not in bad]
    found = [dict[str, Any](letter.headers() or ()) for letter in read(f"{place.topic}.dead-letter", on=place.broker)]
    assert [headers["ce_id"].decode() for headers in found] == sorted(bad, key=int)
    assert {headers["onceflow_attempts"] for headers in found} == {b"2"}
    assert all(headers["onceflow_reason"].startswith(b"IntegrityError: ") for headers in found), found


def test_an_event_that_succeeds_on_a_later_try_has_one_effect(place: Place) -> None:
    place.send(EVENTS)
    failures = iter(range(3))
    reader = place.reader(retries=3)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        insert(tx, event)
        if event.value == b"20" and next(failures, None) is not None:
            raise ConnectionError("not now")

    reader.run(until_end=True)
    assert place.effects() == EVENTS


def test_without_the_transaction_a_later_try_repeats_nothing_that_was_confirmed(place: Place) -> None:
    place.send(EVENTS)
    failures = iter(range(3))
    seen: list[str] = []
    reader = place.reader(retries=3)

    @reader.handler
    def book(event: Event) -> None:
        if event.value == b"20" and next(failures, None) is not None:
            raise ConnectionError("not now")
        seen.append((event.value or b"").decode())

    reader.run(until_end=True)
    assert seen == EVENTS


class WaitsInPlace(Loop):
    """The undefended variant: while one partition waits, none is handled. It ends when it has passed over another 20 times."""

    passed_over = 0

    def _advance(self, lane: Lane) -> None:
        if any(each.failures for each in self._assignment.lanes.values()):
            self.passed_over += lane.due_at() == 0
            if self.passed_over == 20:
                self._stop.set()
        else:
            super()._advance(lane)


@pytest.mark.parametrize("loop", [Loop, WaitsInPlace], ids=["each by itself", "control: waits in place"])
def test_other_partitions_go_on_while_one_waits(
    places: Places, monkeypatch: pytest.MonkeyPatch, loop: type[Loop]
) -> None:
    monkeypatch.setattr("onceflow.reader.reader.Loop", loop)
    place = places(2)
    place.send(["0", "2"], partition=0)
    reader = place.reader(retries=1, backoff_s=3600, backoff_max_s=3600)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        if event.partition == 0:
            place.send(["1", "3", "5"], partition=1)
            raise ValueError("waits for an hour")
        insert(tx, event)
        if event.value == b"5":
            reader.stop()

    reader.run()
    assert place.effects() == ([] if loop is WaitsInPlace else ["1", "3", "5"])


def test_without_dead_letters_the_reader_stops_and_says_where(place: Place) -> None:
    place.send(EVENTS)
    reader = place.reader(retries=1, dead_letters=None)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        if is_poison(event):
            raise ValueError("bad")
        insert(tx, event)

    with pytest.raises(HandlerFailed, match="offset 7 failed 2 times: ValueError: bad") as raised:
        reader.run(until_end=True)
    assert raised.value.fields["offset"] == 7
    assert place.effects() == EVENTS[:7]


def test_control_who_catches_and_goes_on_has_lost_the_poison(place: Place) -> None:
    """Without dead letters that is all that is left to a handler that shall not end its reader: nobody hears of it again."""
    place.send(EVENTS)
    reader = place.reader(retries=1, dead_letters=None)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        with suppress(ValueError):
            if is_poison(event):
                raise ValueError("bad")
            insert(tx, event)

    reader.run(until_end=True)
    assert place.effects() == [text for text in EVENTS if int(text) % 10 != 7]
    assert place.committed() == {0: len(EVENTS)}
    assert f"{place.topic}.dead-letter" not in place.admin.list_topics(timeout=TIMEOUT_S).topics


def test_killed_between_letter_and_commit_the_letter_comes_again_with_the_same_id(place: Place, read: ReadAll) -> None:
    place.send(EVENTS[:10])
    job = place.job(
        poison="7", interrupt=("buried", 0, signal.SIGKILL), options={"retries": 0, "group_instance_id": "one"}
    )
    assert place.start(job).wait() == -signal.SIGKILL
    place.finish(job)
    letters = read(f"{place.topic}.dead-letter", on=place.broker)
    assert [dict(letter.headers() or ())["ce_id"] for letter in letters] == [b"7", b"7"]
    assert place.effects() == [text for text in EVENTS[:10] if text != "7"]


class Killed(BaseException):
    """Nothing after it is done."""


class CommitFirst(Inbox):
    """The undefended variant: the event counts as handled, and then its letter is written."""

    def bury(self, lane: Lane, event: Event, send_letter: Callable[[], None]) -> None:
        self.book(lane.ownership, [event.entry])
        self._on_step(Step.BURIED)
        send_letter()
        lane.advance(1)


@pytest.mark.parametrize("mode", [Inbox, CommitFirst], ids=["letter first", "control: commit first"])
def test_killed_between_the_two_the_event_is_not_lost(
    place: Place, read: ReadAll, monkeypatch: pytest.MonkeyPatch, mode: type[Inbox]
) -> None:
    """Written twice, or not at all."""
    place.send(EVENTS[:10])

    def run(on_step: Callable[[Step], None]) -> None:
        reader = place.reader(retries=0, on_step=on_step, group_instance_id="one")

        @reader.handler
        def book(event: Event, tx: Any) -> None:
            if is_poison(event):
                raise ValueError("bad")
            insert(tx, event)

        reader.run(until_end=True)

    def kill(step: Step) -> None:
        if step is Step.BURIED:
            raise Killed

    monkeypatch.setattr("onceflow.reader.reader.Inbox", mode)
    with pytest.raises(Killed):
        run(kill)
    run(lambda step: None)
    assert place.effects() == [text for text in EVENTS[:10] if text != "7"]
    letters = f"{place.topic}.dead-letter"
    written = letters in place.admin.list_topics(timeout=TIMEOUT_S).topics
    assert (len(read(letters, on=place.broker)) if written else 0) == (0 if mode is CommitFirst else 2)


AUDIT = """
CREATE TABLE allowed (position INTEGER PRIMARY KEY);
CREATE TABLE audit (position INTEGER REFERENCES allowed DEFERRABLE INITIALLY DEFERRED);
CREATE TRIGGER audited AFTER UPDATE OF next_offset ON onceflow_positions BEGIN INSERT INTO audit VALUES (NEW.next_offset); END;
"""


@pytest.mark.parametrize("what", ["a dead letter", "nothing new"])
def test_a_booking_that_the_database_refuses_ends_the_reader_with_the_reason(
    place: Place, read: ReadAll, what: str
) -> None:
    """No event is guilty of a trigger on the store's own tables. Nothing is lost: mended, the reader goes on at that event."""
    place.send(["1"])
    place.book_all()
    place.ledger.executescript(AUDIT)
    place.send(["7" if what == "a dead letter" else "1"])

    def run() -> None:
        reader = place.reader(store=f"{place.store}?foreign_keys=on", retries=0)

        @reader.handler
        def book(event: Event, tx: Any) -> None:
            raise ValueError("bad")

        reader.run(until_end=True)

    with pytest.raises(StoreError, match="FOREIGN KEY constraint failed") as raised:
        run()
    assert "triggers" in raised.value.action
    place.ledger.execute("DROP TRIGGER audited")
    run()
    assert place.committed() == {0: 2}
    if what == "a dead letter":
        letters = read(f"{place.topic}.dead-letter", on=place.broker)
        assert [dict(letter.headers() or ())["ce_id"] for letter in letters] == [b"7", b"7"]


def test_a_topic_that_is_gone_is_named(place: Place) -> None:
    """Its letters have a topic already, or cannot be given one like it."""
    letters = DeadLetters(place.reader()._settings, StopFlag())
    assert letters._partitions_of(place.topic, like="gone") == 1
    with pytest.raises(TopicMissing, match="gone"):
        letters._partitions_of(f"{place.topic}.letters", like="gone")


def test_without_any_patience_a_letter_is_written_as_well(place: Place, read: ReadAll) -> None:
    """And once: a try that did not wait for its answer would write another one at the next start."""
    place.send(EVENTS[:2])
    reader = place.reader(retries=0, patience_s=0)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        if event.value == b"1":
            raise ValueError("poison")
        insert(tx, event)

    reader.run(until_end=True)
    assert place.effects() == ["0"]
    assert [letter.value() for letter in read(f"{place.topic}.dead-letter", on=place.broker)] == [b"1"]


def letters_to_nobody(stop: StopFlag) -> DeadLetters:
    """No broker answers; the letters' topic is known."""
    reader = Reader("t", group="g", store="memory:", bootstrap_servers="127.0.0.1:1", patience_s=0)
    letters = DeadLetters(reader._settings, stop)
    letters._partitions["t.dead-letter"] = 1
    return letters


def test_brokers_that_do_not_answer_are_waited_for_as_a_letter_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By librdkafka's own verdict, which takes it out of the producer: the next try is the only one there."""
    monkeypatch.setattr(settings, "SHORTEST_ANSWER_S", 0.1)
    letters = letters_to_nobody(StopFlag())
    with pytest.raises(BrokerUnreachable, match=r"not acknowledged in 0\.1 s"):
        letters.write(event_at(7), ValueError("poison"), 1)


def test_a_reader_that_waits_for_a_letter_s_brokers_ends_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "_WAIT_S", 0.01)
    stop = StopFlag()
    stop.set()
    with pytest.raises(Stopped):
        letters_to_nobody(stop).write(event_at(7), ValueError("poison"), 1)


def test_a_letter_of_an_event_without_id_has_the_id_of_its_position(place: Place, read: ReadAll) -> None:
    place.send(["7"], ids=False)
    reader = place.reader(retries=0, dead_letters="{topic}-put-aside")

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        raise ValueError("bad")

    reader.run(until_end=True)
    (letter,) = read(f"{place.topic}-put-aside", on=place.broker)
    headers: dict[str, Any] = dict(letter.headers() or ())
    assert (headers["ce_id"], headers["ce_source"]) == (b"0", f"kafka:{place.topic}-0".encode())


def test_poison_as_large_as_a_topic_takes_goes_to_the_dead_letters(place: Place, read: ReadAll) -> None:
    """A producer's own bound is below a topic's by default."""
    large = b"7" * 1_020_000
    producer = Producer({"bootstrap.servers": place.servers, "message.max.bytes": 2_000_000})
    producer.produce(place.topic, large)
    assert producer.flush(TIMEOUT_S) == 0
    reader = place.reader(retries=0)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        raise ValueError("bad")

    reader.run(until_end=True)
    (letter,) = read(f"{place.topic}.dead-letter", on=place.broker)
    assert letter.value() == large
