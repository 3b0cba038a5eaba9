"""A group that grows from one process to four and shrinks to two under load, and a broker that dies: effects equal the events."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message
from tests.conftest import HEAP_MB
from tests.reader.conftest import SESSION_TIMEOUT_S, Places
from tests.reader.effects import Effects, effects_of
from tests.reader.support import LightReader, Place, eventually, insert

from onceflow.broker import EmbeddedBroker
from onceflow.reader import loop
from onceflow.reader.event import Event
from onceflow.reader.steps import Step

PARTITIONS = 4
ROUND = 200
PROTOCOLS: dict[str, dict[str, Any]] = {"classic": {"session_timeout_s": SESSION_TIMEOUT_S}, "consumer": {}}


class Load:
    """Sends numbered events, a round at a time."""

    def __init__(self, place: Place, effects: Effects) -> None:
        self._place = place
        self._effects = effects
        self.sent = 0

    def send(self) -> None:
        self._place.send(range(self.sent, self.sent + ROUND))
        self.sent += ROUND

    def until_handled(self) -> None:
        eventually(lambda: len(set(self._effects.texts())), self.sent.__eq__, "events with an effect")


@pytest.mark.parametrize(
    ("protocol", "store"),
    [("classic", "sqlite"), ("consumer", "sqlite"), ("classic", "postgresql"), ("consumer", "redis")],
)
def test_one_to_four_to_two_processes_under_load(
    places: Places, request: pytest.FixtureRequest, protocol: str, store: str
) -> None:
    place = places(PARTITIONS)
    effects = effects_of(store, place, request)
    load = Load(place, effects)
    options = {"group_protocol": protocol, "batch_size": 20, **PROTOCOLS[protocol]}

    def start() -> LightReader:
        return place.start(place.job(options=options, until_end=False, **effects.job))

    readers = [start()]
    load.send()
    load.until_handled()
    readers += [start() for _ in range(3)]

    def all_four_work() -> set[int]:
        load.send()
        return effects.workers()

    eventually(all_four_work, lambda workers: workers == {reader.pid for reader in readers}, "four readers at work")
    load.send()
    assert readers.pop().stop() == 0  # one leaves in order,
    load.send()
    readers.pop().signal(signal.SIGKILL)  # one does not
    load.send()
    load.until_handled()
    assert sorted(map(int, effects.texts())) == list(range(load.sent))
    for reader in readers:
        assert reader.stop() == 0, reader.said()


class PollsInVain(Consumer):
    """Knows how often it was polled for nothing since the broker went ``away``."""

    away = threading.Event()
    count = 0

    def poll(self, *given: Any) -> Message | None:
        is_away = self.away.is_set()
        message = super().poll(*given)
        type(self).count += is_away and message is None
        return message


def test_a_broker_that_is_killed_and_comes_back(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is away the reader handles what it has, tells Kafka and polls: the last two in vain."""
    monkeypatch.setattr(loop, "Consumer", PollsInVain)
    away, half, told = PollsInVain.away, threading.Event(), threading.Event()

    def see(step: Step) -> None:
        if step is Step.OFFSETS and away.is_set():
            told.set()

    with EmbeddedBroker(tmp_path / "broker", heap_mb=HEAP_MB) as broker:
        place = places(2, on=broker)
        place.send(range(200))
        reader = place.reader(batch_size=10, on_step=see)

        @reader.handler
        def book(event: Event, tx: Any) -> None:
            insert(tx, event)
            if event.value == b"100":
                half.set()
                assert away.wait(90)
            if event.value == b"last":
                reader.stop()

        thread = threading.Thread(target=reader.run)
        thread.start()
        assert half.wait(90)
        broker.kill()
        away.set()
        assert told.wait(90)
        eventually(lambda: PollsInVain.count, (3).__le__, "polls in vain")
        broker.start()
        place.send(map(str, range(200, 300)))
        eventually(lambda: len(place.effects()), (300).__eq__, "effects")
        place.send(["last"])
        thread.join(90)
        assert not thread.is_alive()
        place.book_all()  # it tells Kafka what the first one may have told in vain at its end
        assert sorted(place.effects()) == sorted([*map(str, range(300)), "last"])
        assert place.committed() == {0: 151, 1: 150}
