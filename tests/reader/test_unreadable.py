"""A record whose headers no Python client can read: its name says nothing of it, its place does, and it blocks nobody in silence.

Kafka takes any bytes as the name of a header, and clients in other languages write them; confluent-kafka decodes names as UTF-8.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from tests.command_line import onceflow_says
from tests.conftest import Reader as ReadAll
from tests.reader.conftest import Places
from tests.reader.support import Place, insert

from onceflow.errors import EventUnreadable
from onceflow.reader.event import Event
from onceflow.reader.reader import Reader


class Name(str):
    """A header's name that is these very bytes on the wire."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        return b"tr\xff\xe9"


def send_foreign(place: Place, value: str) -> None:
    """As a producer in another language may, with an id that would be good."""
    producer = KafkaProducer(bootstrap_servers=place.servers)
    headers = [("ce_id", b"7"), ("ce_source", b"tests"), (Name("trace"), b"1")]
    producer.send(place.topic, value.encode(), b"key", headers, partition=0).get(60)
    producer.close()


FIRST = [str(number) for number in range(20)]
"""Enough of them that the interpreter has specialised what it does with each."""


def sent(place: Place) -> None:
    place.send(FIRST)
    send_foreign(place, "foreign")
    place.send(["last"])


def booking(reader: Reader) -> list[str]:
    """The values that its handler is given."""
    given: list[str] = []

    def book(event: Event) -> None:
        given.append((event.value or b"").decode())

    reader.handler(book)
    return given


@pytest.mark.parametrize("store", ["sqlite", "memory:"])
@pytest.mark.parametrize("batch_size", [1, 1000])
def test_it_goes_to_the_dead_letters_and_the_others_are_handled(
    place: Place, read: ReadAll, store: str, batch_size: int
) -> None:
    sent(place)
    reader = place.reader(batch_size=batch_size, **({} if store == "sqlite" else {"store": store}))
    given = booking(reader)
    reader.run(until_end=True)
    assert given == [*FIRST, "last"]
    (letter,) = read(f"{place.topic}.dead-letter", on=place.broker)
    headers: dict[str, Any] = dict(letter.headers() or ())
    assert (letter.key(), letter.value(), headers["ce_id"]) == (b"key", b"foreign", b"20")
    assert headers["ce_source"] == f"kafka:{place.topic}-0".encode()
    assert b"no UTF-8" in headers["onceflow_reason"]
    assert headers["onceflow_offset"] == b"20"
    reader.run(until_end=True)
    assert given == [*FIRST, "last"]


def test_in_the_inbox_it_is_booked_with_its_letter(place: Place, read: ReadAll) -> None:
    sent(place)
    place.book_all()
    assert [letter.value() for letter in read(f"{place.topic}.dead-letter", on=place.broker)] == [b"foreign"]
    assert place.effects() == [*FIRST, "last"]
    place.book_all()
    assert place.effects() == [*FIRST, "last"]


def test_without_dead_letters_the_reader_ends_in_front_of_it_and_says_where(place: Place) -> None:
    sent(place)
    reader = place.reader(dead_letters=None)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        insert(tx, event)

    for _ in range(2):
        with pytest.raises(EventUnreadable, match=f"{place.topic}-0: offset 20 cannot be read: .*no UTF-8") as raised:
            reader.run(until_end=True)
        assert raised.value.fields == {"topic": place.topic, "partition": 0, "offset": 20}
    assert place.effects() == FIRST


def test_a_reader_of_letters_passes_over_what_is_none_of_them_and_says_so(
    places: Places, caplog: pytest.LogCaptureFixture
) -> None:
    place = places()
    place.send(["0", "1"])
    reader = place.reader(retries=0)
    poison = {b"1"}

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        assert event.value not in poison
        insert(tx, event)

    reader.run(until_end=True)
    letters = Place.__new__(Place)
    letters.__dict__.update(place.__dict__, topic=f"{place.topic}.dead-letter")
    send_foreign(letters, "nobody's")
    poison.clear()
    reader.dead_letters().run(until_end=True)
    assert place.effects() == ["0", "1"]
    assert any("for whose letter it is nobody can tell" in record.message for record in caplog.records)


def test_what_was_handled_in_front_of_it_is_read_again_into_a_new_store(place: Place) -> None:
    sent(place)
    first = booking(reader := place.reader(store="memory:"))
    reader.run(until_end=True)
    second = booking(reader := place.reader(store="memory:"))
    place.send(["more"])
    reader.run(until_end=True)
    assert (first, second) == ([*FIRST, "last"], ["more"])


def test_it_is_printed_with_what_can_be_read_of_it(place: Place, tmp_path: Path) -> None:
    sent(place)
    command = ["read", place.topic, "--bootstrap-servers", place.servers]
    found = [json.loads(line) for line in onceflow_says(tmp_path, *command, "--json").splitlines()]
    assert [event["value"] for event in found] == [*FIRST, "foreign", "last"]
    assert [event["id"] for event in found] == [*FIRST, None, "last"]
    assert [event["headers"] is None for event in found] == [False] * 20 + [True, False]
    assert len(onceflow_says(tmp_path, *command).splitlines()) == 22
