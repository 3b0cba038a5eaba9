"""Dead letters come back: each is handled once, by its own group, under the idempotency key of its event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import Reader as ReadAll
from tests.reader.conftest import Places
from tests.reader.support import Place, insert

from onceflow.errors import ConfigurationError, TopicMissing
from onceflow.reader.event import Event
from onceflow.reader.reader import Reader

EVENTS = [str(number) for number in range(10)]


class Bank:
    """A handler that knows no account yet for some events."""

    def __init__(self, *unknown: str) -> None:
        self.unknown = set(unknown)
        self.keys: list[str] = []

    def handle(self, event: Event, tx: Any) -> None:
        text = (event.value or b"").decode()
        if text in self.unknown:
            raise ValueError(f"no account {text}")
        self.keys.append(event.idempotency_key)
        insert(tx, event)

    def run(self, reader: Reader) -> Reader:
        reader.handler(self.handle)
        reader.run(until_end=True)
        return reader


def again(place: Place, reader: Reader) -> list[str]:
    """Runs the reader of its dead letters; the effects that this added."""
    before = len(place.effects())
    reader.dead_letters().run(until_end=True)
    return place.effects()[before:]


@pytest.mark.parametrize("ids", [True, False])
def test_letters_are_handled_once_when_the_reason_is_mended(place: Place, ids: bool) -> None:
    place.send(EVENTS, ids=ids)
    bank = Bank("3", "7")
    reader = bank.run(place.reader(retries=0))
    bank.unknown.clear()
    assert again(place, reader) == ["3", "7"]
    assert again(place, reader) == []
    source = "tests" if ids else f"kafka%3A{place.topic}-0"
    assert bank.keys[-2:] == [f"{source}/3", f"{source}/7"]


def test_a_store_in_memory_takes_no_letter_for_its_event(place: Place) -> None:
    """They have one id, and one store object; the event counts as handled, and the letter is not."""
    place.send(EVENTS)
    unknown, handled = {b"3"}, []
    reader = place.reader(store="memory:", retries=0)

    @reader.handler
    def book(event: Event) -> None:
        if event.value in unknown:
            raise ValueError("no account")
        handled.append(event.value)

    reader.run(until_end=True)
    unknown.clear()
    handled.clear()
    letters = reader.dead_letters()
    letters.run(until_end=True)
    assert handled == [b"3"]
    letters.run(until_end=True)
    assert handled == [b"3"]


def test_a_letter_that_was_written_twice_is_handled_once(place: Place, read: ReadAll) -> None:
    """Dying between letter and commit writes it again."""
    from confluent_kafka import Producer

    place.send(EVENTS)
    bank = Bank("3")
    reader = bank.run(place.reader(retries=0))
    (letter,) = read(f"{place.topic}.dead-letter", on=place.broker)
    producer = Producer({"bootstrap.servers": place.servers})
    producer.produce(str(letter.topic()), letter.value(), headers=letter.headers())
    assert producer.flush(60) == 0
    bank.unknown.clear()
    assert again(place, reader) == ["3"]


def test_what_fails_again_goes_on_to_the_next_topic_and_blocks_nothing(place: Place, read: ReadAll) -> None:
    place.send(EVENTS)
    bank = Bank("3", "7")
    reader = bank.run(place.reader(retries=0))
    bank.unknown = {"3"}
    assert again(place, reader) == ["7"]
    (letter,) = read(f"{place.topic}.dead-letter.again", on=place.broker)
    assert letter.value() == b"3"
    bank.unknown.clear()
    assert again(place, reader.dead_letters()) == ["3"]


def test_letters_of_another_group_are_left_to_it(place: Place) -> None:
    place.send(EVENTS)
    mine, other = Bank("3"), Bank("3", "5")
    first = mine.run(place.reader(retries=0))
    second = other.run(place.reader(retries=0, group=f"{place.group}-other"))
    mine.unknown.clear()
    other.unknown.clear()
    assert again(place, first) == ["3"]
    assert again(place, second) == ["3", "5"]


def test_letters_of_several_partitions_in_one_are_not_taken_for_repetitions(places: Places) -> None:
    """The source's sequence rises along its own partitions only: letter 9 before letter 4 makes 4 no duplicate."""
    from tests.conftest import create_topic

    place = places(2)
    create_topic(place.broker, f"{place.topic}.dead-letter", 1)
    bank = Bank("4", "9")
    for text, partition in (("9", 1), ("4", 0)):
        place.send([text], sequence=True, partition=partition)
        reader = bank.run(place.reader(retries=0))
    bank.unknown.clear()
    assert again(place, reader) == ["9", "4"]


def without_letters(place: Place) -> Reader:
    reader = place.reader(dead_letters=None)
    reader.handler(lambda event: None)
    return reader


@pytest.mark.parametrize(("make", "what"), [(without_letters, "writes none"), (Place.reader, "no handler")])
def test_a_reader_without_letters_or_handler_says_so(place: Place, make: Callable[[Place], Reader], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        make(place).dead_letters()


def test_a_reader_that_works_says_so(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.send([*EVENTS, "2"])
    reader = place.reader(retries=0)

    @reader.handler
    def book(event: Event) -> None:
        if event.value == b"3":
            raise ValueError("bad")

    reader.run(until_end=True, progress=True)
    assert "ended: 9 events handled, 1 duplicates, 1 dead letters in " in capsys.readouterr().err


def test_a_reader_and_that_of_its_letters_do_not_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have one store object and one handler."""
    reader = Reader("t", group="g", store="memory:")
    reader.handler(lambda event: None)
    running: list[Reader] = []

    def check_topics(self: Reader) -> None:
        running.append(self)
        assert len(running) < 3
        with pytest.raises(ConfigurationError, match="runs already"):
            reader.dead_letters().run()
        raise TopicMissing("here it ends")

    monkeypatch.setattr(Reader, "_check_topics", check_topics)
    for _ in range(2):
        with pytest.raises(TopicMissing):
            reader.run()
    assert running == [reader, reader]
