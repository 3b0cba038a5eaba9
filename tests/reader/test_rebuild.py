"""Reading the ids again ends: when the reader is stopped, and where the topic has nothing to read any more."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import Message, TopicPartition
from tests.reader.support import TIMEOUT_S, Place
from tests.reader.test_positions import EVENTS, lose_the_store

from onceflow.reader.patience import Stopped
from onceflow.reader.reader import Reader
from onceflow.reader.rebuild import Rebuilder
from onceflow.reader.stores.interface import Ownership


def test_a_reader_that_is_stopped_stops_reading_the_ids() -> None:
    stop = threading.Event()

    class Idle:
        rounds = 0

        def position(self, places: list[TopicPartition]) -> list[TopicPartition]:
            return places

        def consume(self, *_: Any) -> list[Message]:
            self.rounds += 1
            assert self.rounds < 3
            stop.set()
            return []

    rebuilder = Rebuilder(Reader("t", group="g", store="memory:")._settings, lambda *_: None, stop)
    idle: Any = Idle()
    with pytest.raises(Stopped):
        rebuilder._read(idle, TopicPartition("t", 0), Ownership("t", 0, 1, None), 10)


def test_a_reader_that_is_stopped_while_it_reads_the_ids_ends_in_order_and_handles_nothing(place: Place) -> None:
    place.send(EVENTS)
    place.book_all()
    lose_the_store(place)
    place.send(["30"])
    reader = place.reader(lost_store="rebuild", batch_size=7)
    book = reader._store.unit

    def booked(*arguments: Any) -> Any:
        reader.stop()
        return book(*arguments)

    reader._store.unit = booked  # type: ignore[method-assign]
    reader.handler(lambda event, tx: pytest.fail("handled"))
    reader.run()
    place.book_all(lost_store="rebuild")
    assert place.effects() == [*EVENTS, "30"]


def test_a_topic_that_retention_has_emptied_is_read_to_its_end(place: Place) -> None:
    place.send(EVENTS)
    place.book_all()
    lose_the_store(place)
    partition = TopicPartition(place.topic, 0, len(EVENTS))
    place.admin.delete_records([partition])[TopicPartition(place.topic, 0)].result(TIMEOUT_S)
    place.book_all(lost_store="rebuild")
    place.send(["30"])
    place.book_all(lost_store="rebuild")
    assert place.effects() == [*EVENTS, "30"]
