"""A group that grows from one process to four and shrinks to two under load, and a broker that dies: effects equal the events."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import HEAP_MB
from tests.reader.conftest import SESSION_TIMEOUT_S, Places
from tests.reader.support import LightReader, Place, eventually, insert

from onceflow.broker import EmbeddedBroker
from onceflow.reader.event import Event

PARTITIONS = 4
ROUND = 200
PROTOCOLS: dict[str, dict[str, Any]] = {"classic": {"session_timeout_s": SESSION_TIMEOUT_S}, "consumer": {}}


class Load:
    """Sends numbered events, a round at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.sent = 0

    def send(self) -> None:
        self._place.send(range(self.sent, self.sent + ROUND))
        self.sent += ROUND

    def until_handled(self) -> None:
        eventually(lambda: len(set(self._place.effects())), self.sent.__eq__, "events with an effect")


def workers_of(place: Place) -> set[int]:
    return {row[0] for row in place.ledger.execute("SELECT DISTINCT pid FROM ledger")}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_to_four_to_two_processes_under_load(places: Places, protocol: str) -> None:
    place = places(PARTITIONS)
    load = Load(place)
    options = {"group_protocol": protocol, "batch_size": 20, **PROTOCOLS[protocol]}

    def start() -> LightReader:
        return place.start(place.job(options=options, until_end=False))

    readers = [start()]
    load.send()
    load.until_handled()
    readers += [start() for _ in range(3)]

    def all_four_work() -> set[int]:
        load.send()
        return workers_of(place)

    eventually(all_four_work, lambda workers: workers == {reader.pid for reader in readers}, "four readers at work")
    load.send()
    assert readers.pop().stop() == 0  # one leaves in order,
    load.send()
    readers.pop().signal(signal.SIGKILL)  # one does not
    load.send()
    load.until_handled()
    assert sorted(map(int, place.effects())) == list(range(load.sent))
    for reader in readers:
        assert reader.stop() == 0, reader.said()


def test_a_broker_that_is_killed_and_comes_back(places: Places, tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker", heap_mb=HEAP_MB) as broker:
        place = places(2, on=broker)
        place.send(range(200))
        reader = place.reader(batch_size=10)
        half, back = threading.Event(), threading.Event()

        @reader.handler
        def book(event: Event, tx: Any) -> None:
            insert(tx, event)
            if event.value == b"100":
                half.set()
                assert back.wait(90)
            if event.value == b"last":
                reader.stop()

        thread = threading.Thread(target=reader.run)
        thread.start()
        assert half.wait(90)
        broker.kill()
        broker.start()
        place.send(map(str, range(200, 300)))
        back.set()
        eventually(lambda: len(place.effects()), (300).__eq__, "effects")
        place.send(["last"])
        thread.join(90)
        assert not thread.is_alive()
        assert sorted(place.effects()) == sorted([*map(str, range(300)), "last"])
