"""Letters that cannot be written as they are: reasons that are no text, times that the topic refuses, a producer that is full."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from tests.conftest import HEAP_MB, create_topic
from tests.conftest import Reader as ReadAll
from tests.faults.support import eventually
from tests.reader.conftest import Places
from tests.reader.support import TIMEOUT_S, Place, insert

from onceflow.broker import EmbeddedBroker
from onceflow.errors import RequestFailed
from onceflow.reader.dead_letters import DeadLetters
from onceflow.reader.event import Event, event_of
from onceflow.stop_flag import StopFlag

LONG_AGO_MS = 1_000_000_000_000


class Silent(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (ValueError("caf\udce9.csv"), rb"ValueError: caf\udce9.csv"),
        (Silent(), b"Silent: (it has no text: its __str__ raised ZeroDivisionError)"),
    ],
    ids=["surrogate", "no text"],
)
def test_a_reason_that_is_no_text_is_told_all_the_same(
    place: Place, read: ReadAll, reason: Exception, told: bytes
) -> None:
    place.send(["1", "2"])
    reader = place.reader(retries=0)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        insert(tx, event)
        if event.value == b"1":
            raise reason

    reader.run(until_end=True)
    assert place.effects() == ["2"]
    (letter,) = read(f"{place.topic}.dead-letter", on=place.broker)
    assert told in dict[str, Any](letter.headers() or ())["onceflow_reason"]


@pytest.mark.parametrize("timestamp_ms", [LONG_AGO_MS, 1])
def test_a_letter_has_the_time_of_its_writing_and_the_event_keeps_its_own(
    place: Place, read: ReadAll, timestamp_ms: int
) -> None:
    """By the event's time the letters' topic would refuse it, or delete it within minutes: the event would be gone."""
    letters = f"{place.topic}.dead-letter"
    create_topic(place.broker, letters, config={"message.timestamp.before.max.ms": "86400000"})
    put(place, place.topic, timestamp_ms)
    reader = place.reader(retries=0)
    times: list[int] = []

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        times.append(event.timestamp_ms)
        raise ValueError("poison")

    reader.run(until_end=True)
    (letter,) = read(letters, on=place.broker)
    assert letter.timestamp()[1] > LONG_AGO_MS + 1
    assert dict(letter.headers() or ()).get("onceflow_timestamp") == str(timestamp_ms).encode()
    again = reader.dead_letters()
    again.run(until_end=True)  # and a letter of the letter
    again.dead_letters().run(until_end=True)
    assert times == [timestamp_ms] * 3


def test_a_letter_of_an_old_event_is_not_deleted_for_the_events_age(places: Places, tmp_path: Path) -> None:
    """The control: a record of the event's time, written after the letter to a topic of the same retention, is deleted."""
    config = {"log.retention.check.interval.ms": "500"}
    with EmbeddedBroker(tmp_path / "broker", heap_mb=HEAP_MB, config=config) as broker:
        place = places(on=broker)
        letters, control = f"{place.topic}.dead-letter", f"{place.topic}.control"
        for topic in (letters, control):
            create_topic(broker, topic, config={"retention.ms": "3600000"})
        put(place, place.topic, LONG_AGO_MS)
        reader = place.reader(retries=0)
        handled: list[bytes | None] = []

        @reader.handler
        def book(event: Event, tx: Any) -> None:
            handled.append(event.value)
            raise ValueError("poison")

        reader.run(until_end=True)
        put(place, control, LONG_AGO_MS)
        with closing(Consumer({"bootstrap.servers": place.servers, "group.id": "nobody"})) as consumer:
            eventually(
                lambda: first_offset(consumer, control), lambda offset: offset == 1, "the control's first offset"
            )
            assert first_offset(consumer, letters) == 0
        reader.dead_letters().run(until_end=True)
        assert handled == [b"1", b"1"]


def put(place: Place, topic: str, timestamp_ms: int) -> None:
    producer = Producer({"bootstrap.servers": place.servers})
    producer.produce(topic, "1", headers=[("ce_id", "1"), ("ce_source", "s")], timestamp=timestamp_ms)
    assert producer.flush(TIMEOUT_S) == 0


def first_offset(consumer: Consumer, topic: str) -> int:
    first, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)
    return int(first)


def test_a_time_that_librdkafka_cannot_send_is_kept(place: Place, read: ReadAll) -> None:
    """Of 0 it makes the time of now."""
    message = Message(topic=place.topic, partition=0, offset=0, value=b"1", timestamp=(1, 0))
    letters = DeadLetters(place.reader()._settings, StopFlag())
    letters.write(event_of(message, "here"), ValueError("poison"), 1)
    letters.close()
    (letter,) = read(f"{place.topic}.dead-letter", on=place.broker)
    assert event_of(letter, "there").timestamp_ms == 0 < letter.timestamp()[1]


@pytest.mark.parametrize(
    ("text", "time_ms"), [(b"5", 5), (b"-1", -1), (b"9" * 5000, 7), (b"9" * 16, 7), (b"now", 7), (b"", 7), (None, 7)]
)
def test_a_letters_time_is_that_of_its_event_if_it_is_one(text: bytes | None, time_ms: int) -> None:
    """Anybody may have written the header; and outside of letters it means nothing."""
    own, place = ("onceflow_timestamp", text), ("onceflow_offset", b"3")
    letter = Message(topic="t", partition=0, offset=0, timestamp=(1, 7), headers=[own, place])
    assert event_of(letter, "here").timestamp_ms == time_ms
    assert event_of(Message(topic="t", offset=0, timestamp=(1, 7), headers=[own]), "here").timestamp_ms == 7


def test_what_the_producer_itself_refuses_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue is as small as it can be: a letter of two kilobytes has no room in it."""
    reader = place.reader(retries=0)
    opened = DeadLetters._open

    def with_little_room(letters: DeadLetters) -> Producer:
        if letters._producer is None:
            letters._producer = Producer({"bootstrap.servers": place.servers, "queue.buffering.max.kbytes": 1})
        return opened(letters)

    monkeypatch.setattr(DeadLetters, "_open", with_little_room)
    producer = Producer({"bootstrap.servers": place.servers})
    producer.produce(place.topic, b"7" * 2000)
    assert producer.flush(TIMEOUT_S) == 0

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        raise ValueError("poison")

    with pytest.raises(RequestFailed, match="dead letter") as raised:
        reader.run(until_end=True)
    assert "full" in raised.value.message.lower()
    assert place.committed() in ({}, {0: 0})


@pytest.mark.parametrize("on_a_loop", [False, True], ids=["run", "run_async"])
def test_poison_in_a_task_group_goes_to_the_dead_letters(
    place: Place, read: ReadAll, caplog: pytest.LogCaptureFixture, on_a_loop: bool
) -> None:
    """While a group waits for its children, a failure of one leaves a cancellation counted on the task."""
    place.send(range(5))
    reader = place.reader(retries=1)

    async def check(event: Event) -> None:
        await asyncio.sleep(0)
        if event.value == b"2":
            raise ValueError("no account")

    @reader.handler
    async def book(event: Event, tx: Any) -> None:
        insert(tx, event)
        async with asyncio.TaskGroup() as group:
            group.create_task(check(event))

    caplog.set_level(logging.WARNING)
    if on_a_loop:
        asyncio.run(reader.run_async(until_end=True))
    else:
        reader.run(until_end=True)
    assert place.effects() == ["0", "1", "3", "4"]
    (letter,) = read(f"{place.topic}.dead-letter", on=place.broker)
    headers = dict[str, Any](letter.headers() or ())
    assert headers["onceflow_attempts"] == b"2"
    assert headers["onceflow_reason"].endswith(b": ValueError: no account")
    assert "event loop of the handlers" not in caplog.text
