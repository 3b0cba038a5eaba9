"""A group that grows from one process to four and shrinks to two under load: effects equal the events."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.reader.conftest import Places, soon_missed
from tests.reader.effects import Effects, effects_elsewhere, effects_for
from tests.reader.light import TAKE
from tests.reader.support import LightReader, Place, eventually

from onceflow.broker import EmbeddedBroker

PARTITIONS = 4
ROUND = 200


class Load:
    """Sends numbered events, a round at a time."""

    def __init__(self, place: Place, effects: Effects) -> None:
        self._place = place
        self._effects = effects
        self.sent = 0

    def send(self) -> None:
        self._place.send(range(self.sent, self.sent + ROUND))
        self.sent += ROUND

    def until_at_work(self, readers: Sequence[LightReader]) -> None:
        """Goes on sending meanwhile, as fast as the readers are, or the slow ones would be left with all of it."""

        def workers() -> set[int]:
            if self._handled() > self.sent - ROUND:
                self.send()
            return self._effects.workers()

        eventually(workers, {reader.pid for reader in readers}.__eq__, f"{len(readers)} readers at work")

    def until_handled(self) -> None:
        eventually(self._handled, self.sent.__eq__, "events with an effect")

    def _handled(self) -> int:
        return len(set(self._effects.texts()))


@pytest.mark.parametrize(
    ("protocol", "store", "mode"),
    [
        ("classic", "sqlite", "inbox"),
        ("consumer", "sqlite", "inbox"),
        ("classic", "postgresql", "inbox"),
        ("consumer", "redis", "inbox"),
        ("consumer", "sqlite", "claims"),
        ("consumer", "postgresql", "claims"),
        ("classic", "redis", "claims"),
    ],  # each store in each mode and with each protocol, and each mode with each protocol
)
@pytest.mark.in_turn(3)
def test_one_to_four_to_two_processes_under_load(
    places: Places, request: pytest.FixtureRequest, tmp_path: Path, protocol: str, store: str, mode: str
) -> None:
    """Of claims the event repeats that is in the hands of the one that is killed, if it has one: the stated limit."""
    place = places(PARTITIONS)
    effects = effects_for(mode, store, place, request, tmp_path)
    load = Load(place, effects)
    options = {"group_protocol": protocol, "batch_size": 20}

    job = place.job(options=options, until_end=False, **effects.job)
    readers = [place.start(job)]
    load.send()
    load.until_handled()
    readers += [place.start(each) for each in (job, soon_missed(job), soon_missed(job))]
    load.until_at_work(readers)
    load.send()
    assert readers.pop().stop() == 0  # one leaves in order,
    load.send()
    readers.pop().signal(signal.SIGKILL)  # one does not
    load.send()
    load.until_handled()
    texts = effects.texts()
    assert sorted(set(map(int, texts))) == list(range(load.sent))
    assert len(texts) - load.sent <= (mode == "claims")
    for reader in readers:
        assert reader.stop() == 0, reader.said()


@pytest.mark.parametrize(
    ("protocol", "store", "mode"), [("classic", "postgresql", "inbox"), ("consumer", "redis", "claims")]
)
@pytest.mark.in_turn(3)
def test_killed_while_it_takes_partitions_in_a_rebalance(
    places: Places, request: pytest.FixtureRequest, tmp_path: Path, protocol: str, store: str, mode: str
) -> None:
    """A second reader dies as it takes what the first has given back; then the first, as it takes that again."""
    place = places(PARTITIONS)
    effects = effects_for(mode, store, place, request, tmp_path)
    load = Load(place, effects)
    options = {"group_protocol": protocol, "batch_size": 20}
    job = place.job(options=options, until_end=False, **effects.job)
    first = place.start(replace(soon_missed(job), interrupt=(TAKE, 1, signal.SIGKILL)))
    load.send()
    load.until_handled()
    second = place.start(replace(soon_missed(job), interrupt=(TAKE, 0, signal.SIGKILL)))
    load.send()
    assert second.wait() == -signal.SIGKILL
    load.send()
    assert first.wait() == -signal.SIGKILL
    third = place.start(job)
    load.until_handled()
    assert third.stop() == 0, third.said()
    assert sorted(map(int, effects.texts())) == list(range(load.sent))


@pytest.mark.parametrize(("protocol", "most"), [("consumer", 2), ("classic", 4)])
@pytest.mark.in_turn(3)
def test_one_to_many_to_half_of_them_with_a_store_in_memory(
    places: Places, broker: EmbeddedBroker, request: pytest.FixtureRequest, tmp_path: Path, protocol: str, most: int
) -> None:
    """In order, Kafka hears of all that was handled before a partition goes; and the ids are read again by its new owner.

    With the usual session: whoever loses it repeats what Kafka has not heard of, which is the stated limit of that store.
    """
    place = places(most, on=broker)
    effects = effects_elsewhere("memory", place, request, tmp_path)
    load = Load(place, effects)
    job = place.job(options={"group_protocol": protocol, "batch_size": 20}, until_end=False, **effects.job)
    readers = [place.start(job)]
    load.send()
    load.until_handled()
    readers += [place.start(job) for _ in range(most - 1)]
    load.until_at_work(readers)
    for _ in range(most // 2):
        assert readers.pop(0).stop() == 0
    load.send()
    place.send(range(ROUND))  # a source that repeats itself: each in the partition that it was in
    load.send()
    load.until_handled()
    for reader in readers:
        assert reader.stop() == 0, reader.said()
    assert sorted(map(int, effects.texts())) == list(range(load.sent))
