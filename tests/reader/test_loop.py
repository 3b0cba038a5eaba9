"""The loop over a scripted consumer: what Kafka does between two calls."""

from __future__ import annotations

import threading
from typing import Any

from confluent_kafka import Message

from onceflow.reader.assignment import Assignment
from onceflow.reader.claims import Claims
from onceflow.reader.handling import Handler
from onceflow.reader.lane import Lane
from onceflow.reader.loop import Loop
from onceflow.reader.reader import Reader
from onceflow.reader.stores.memory import MemoryStore
from onceflow.reader.tally import Tally

PLACE = ("t", 0)


def test_an_event_polled_before_the_partition_went_and_came_back_is_not_of_the_new_lane() -> None:
    """Offset 50 is polled; the partition goes, and comes back at 40; taken first, 50 would hide 40 to 49 for ever."""
    store = MemoryStore()
    settings = Reader("t", group="g", store=store, batch_size=10)._settings
    assignment = Assignment(settings, store, "reader", lambda *_: None, lambda step: None)
    handled: list[int] = []

    def begin_at(position: int) -> None:
        assignment.lanes[PLACE] = Lane(store.take("t", [0], "reader")[0], position)

    class Rebalanced:
        def poll(self, _: float) -> Message:
            return Message(topic="t", partition=0, offset=50)

        def consume(self, *_: Any) -> list[Message]:
            begin_at(40)
            return []

    mode = Claims(store, Handler(lambda event: handled.append(event.offset)), lambda step: None, 60, Tally())
    loop = Loop(settings, store, mode, assignment, threading.Event(), lambda step: None, Tally())
    loop._consumer = Rebalanced()  # type: ignore[assignment]
    begin_at(50)
    loop._round()
    assert handled == []
    assert assignment.lanes[PLACE].position == 40
