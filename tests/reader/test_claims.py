"""Claims: under the same id in two partitions one waits for the other; an effect that happened is only confirmed."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from tests.reader.conftest import Places
from tests.reader.support import eventually

from onceflow.errors import StoreFenced, StoreUnavailable
from onceflow.reader.claims import Claims
from onceflow.reader.event import Event
from onceflow.reader.fence import Fence, awake_and_asleep
from onceflow.reader.handling import Failed, Handler
from onceflow.reader.lane import Lane
from onceflow.reader.leases import Leases
from onceflow.reader.steps import Step
from onceflow.reader.stores.interface import EventKey, Ownership, Retention, Standing
from onceflow.reader.stores.memory import MemoryStore
from onceflow.reader.stores.sqlite import SqliteStore
from onceflow.reader.tally import Tally


def test_an_id_that_another_reader_has_claimed_is_waited_for(places: Places) -> None:
    """The other reader confirms it while this one waits: here it is a duplicate then."""
    place = places(2)
    place.send(["1", "2", "3"], partition=0)
    rival = SqliteStore(place.file)
    rival.open(place.group, Retention())
    (theirs,) = rival.take("other-topic", [0], "rival")
    claimed = [EventKey(0, "tests", "2")]
    rival.claim(theirs, claimed, 3600)
    seen: list[str] = []
    reader = place.reader()

    @reader.handler
    def book(event: Event) -> None:
        seen.append((event.value or b"").decode())
        rival.confirm(theirs, claimed)

    reader.run(until_end=True)
    rival.close()
    assert seen == ["1", "3"]


def test_the_claim_of_a_reader_that_died_ends_with_its_lease(places: Places, caplog: pytest.LogCaptureFixture) -> None:
    """It claims the second event right before this reader wants to, and is never heard of again."""
    caplog.set_level(logging.INFO, "onceflow.reader")
    place = places(1)
    place.send(["1", "2"])
    rival = SqliteStore(place.file)
    rival.open(place.group, Retention())
    (theirs,) = rival.take("other-topic", [0], "rival")
    seen: list[Any] = []

    def claim(event: Event) -> None:
        if not seen:
            rival.claim(theirs, [EventKey(0, "tests", "2")], 10.0)
        seen.append(event.value)

    reader = place.reader(batch_size=1)
    reader.handler(claim)
    reader.run(until_end=True)
    rival.close()
    assert seen == [b"1", b"2"]
    told = [record.levelname for record in caplog.records if "another reader has claimed the same id" in record.message]
    assert told == ["WARNING"]


class AwayOnce(MemoryStore):
    """Does not answer the first confirmation."""

    is_away = True

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        if self.is_away:
            self.is_away = False
            raise StoreUnavailable("nobody answers")
        super().confirm(ownership, keys)


def test_a_later_failure_does_not_repeat_effects_whose_confirmation_failed() -> None:
    """A batch of 10 happened and is not confirmed; 5 more come and fail as a batch; all 15 are tried one by one."""
    store = AwayOnce()
    (ownership,) = store.take("t", [0], "reader")
    lane = Lane(ownership, None)
    effects: Counter[int] = Counter()

    def book(events: Sequence[Event]) -> None:
        if len(events) == 5:
            raise ValueError("somewhere in the batch")
        effects.update(event.offset for event in events)

    claims = Claims(store, Handler(book, batch=True), lambda step: None, Leases(store, 60), Tally(), member(store))
    events = [event_at(offset) for offset in range(15)]
    lane.pending = events[:10]
    with pytest.raises(StoreUnavailable):
        claims.handle(lane, lane.pending[:10])
    (ownership,) = store.take("t", [0], "reader")
    lane.taken(ownership)
    lane.pending += events[10:]
    with pytest.raises(Failed):
        claims.handle(lane, lane.pending[:15])
    while lane.pending:
        claims.handle(lane, lane.pending[:1])
    assert effects == dict.fromkeys(range(15), 1)


class ClaimsOnce(Leases):
    """The undefended variant: half of its lease is never over, so a batch is handled to its end under the first claim."""

    def claim(self, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
        return self._store.claim(ownership, keys, LEASE_S)


LEASE_S = 0.2


@pytest.mark.parametrize(
    ("leases", "repeated"),
    [(lambda store: Leases(store, LEASE_S), 0), (lambda store: ClaimsOnce(store, math.inf), 1)],
    ids=["claimed again", "control: claimed once"],
)
def test_a_batch_that_outlives_its_lease_repeats_nothing_that_another_reader_handled_meanwhile(
    leases: Callable[[MemoryStore], Leases], repeated: int
) -> None:
    """Its source sent event 2 to another partition as well, and the reader there finds a claim whose time is over."""
    store = MemoryStore()
    ours, theirs = store.take("t", [0, 1], "reader")
    effects: Counter[int] = Counter()
    sent_again = event_at(2).entry._replace(offset=0)

    def book(event: Event) -> None:
        effects[event.offset] += 1
        if event.offset == 0:
            eventually(lambda: store.claim(theirs, [sent_again], 60), [Standing.NEW].__eq__, "the other reader's claim")
            effects[2] += 1
            store.confirm(theirs, [sent_again])

    lane = Lane(ours, None)
    lane.pending = [event_at(offset) for offset in range(4)]
    claims = Claims(store, Handler(book), lambda step: None, leases(store), Tally(), member(store))
    while lane.pending:
        claims.handle(lane, lane.pending)
    assert effects == {**dict.fromkeys(range(4), 1), 2: 1 + repeated}


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the monotonic clock is the one that counts")
def test_a_reader_whose_machine_slept_between_two_events_handles_none_that_is_another_reader_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its partition moved meanwhile; the monotonic clock has not seen the sleep."""
    clock = Clock(monkeypatch)
    store, next_one = SqliteStore(tmp_path / "store.db"), SqliteStore(tmp_path / "store.db")
    for each in (store, next_one):
        each.open("g", Retention())
    (ours,) = store.take("t", [0], "reader")
    effects: list[int] = []

    def sleep(step: Step) -> None:
        if step is Step.COMMITTED:
            clock.sleeps(3600)
            next_one.take("t", [0], "the next one")

    lane = Lane(ours, None)
    lane.pending = [event_at(offset) for offset in range(3)]
    with Leases(store, 60) as leases:
        claims = Claims(
            store, Handler(lambda event: effects.append(event.offset)), sleep, leases, Tally(), Fence(store)
        )
        claims.handle(lane, lane.pending)
        assert effects == [0]
        with pytest.raises(StoreFenced):
            claims.handle(lane, lane.pending)
    assert effects == [0]
    store.close()
    next_one.close()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the monotonic clock is the one that counts")
@pytest.mark.parametrize(
    ("step", "handled"),
    [(Step.CLAIMED, []), (Step.HANDLED, [0]), (Step.COMMITTED, [0])],
    ids=["claimed", "handled", "committed"],
)
def test_a_store_of_its_own_that_confirms_tells_nothing_of_the_group(
    monkeypatch: pytest.MonkeyPatch, step: Step, handled: list[int]
) -> None:
    """It answers as if the reader had not slept. No other event is handled until Kafka has been asked."""
    clock = Clock(monkeypatch)
    store = MemoryStore()
    (ours,) = store.take("t", [0], "reader")
    effects: list[int] = []
    slept = iter([3600])

    def sleep(at: Step) -> None:
        if at is step:
            clock.sleeps(next(slept, 0))

    fence = Fence(store)
    fence.kafka_answered(awake_and_asleep())
    lane = Lane(ours, None)
    lane.pending = [event_at(offset) for offset in range(3)]
    claims = Claims(
        store, Handler(lambda event: effects.append(event.offset)), sleep, Leases(store, 60), Tally(), fence
    )
    for _ in range(2):
        claims.handle(lane, lane.pending)
        assert effects == handled
    fence.kafka_answered(awake_and_asleep())
    claims.handle(lane, lane.pending)
    assert effects == [0, 1, 2]


class Clock:
    """The one that goes on while the machine sleeps; it stands still but for that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now_s = 1000.0
        monkeypatch.setattr(time, "clock_gettime", lambda which: self._now_s)

    def sleeps(self, seconds: float) -> None:
        self._now_s += seconds


def member(store: MemoryStore) -> Fence:
    """Kafka has said, and goes on saying, that the reader is a member of its group."""
    fence = Fence(store)
    fence.kafka_answered(math.inf)
    return fence


def event_at(offset: int) -> Event:
    return Event(Message(topic="t", partition=0, offset=offset), EventKey(offset, "s", str(offset)))
