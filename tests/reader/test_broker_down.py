"""The broker is killed while a reader works, and comes back: effects equal the events in both modes, and letters are in order."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, Message
from tests.conftest import HEAP_MB
from tests.conftest import Reader as ReadAll
from tests.reader.conftest import Places
from tests.reader.effects import Effects, effects_of
from tests.reader.light import effect_of
from tests.reader.support import Place, eventually, insert
from tests.reader.zombies import letters

from onceflow.broker import EmbeddedBroker
from onceflow.reader import loop, offsets, rebuild
from onceflow.reader.event import Event
from onceflow.reader.reader import Reader
from onceflow.reader.settings import ReaderSettings
from onceflow.reader.steps import Step

PATIENCE_S = 90.0
EVENTS = [str(number) for number in range(40)]
POISON = ["7", "17", "27"]


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that these tests kill, and start again."""
    with EmbeddedBroker(tmp_path_factory.mktemp("mortal-broker"), heap_mb=HEAP_MB) as running:
        yield running


@pytest.fixture
def revived(mortal: EmbeddedBroker) -> EmbeddedBroker:
    """It runs, though the test before failed in the midst."""
    if not mortal.is_running:
        mortal.start()
    return mortal


class PollsInVain(Consumer):
    """Knows how often it was polled for nothing since the broker went ``away``."""

    away = threading.Event()
    count = 0

    def poll(self, *given: Any) -> Message | None:
        is_away = self.away.is_set()
        message = super().poll(*given)
        type(self).count += is_away and message is None
        return message


def waits_for_its_brokers(caplog: pytest.LogCaptureFixture) -> int:
    return sum(
        "waits for its brokers" in record.getMessage() for record in caplog.records if record.levelname == "WARNING"
    )


@pytest.mark.parametrize(
    ("mode", "store"),
    [("inbox", "sqlite"), ("claims", "sqlite"), ("claims", "memory"), ("inbox", "postgresql"), ("claims", "redis")],
)
@pytest.mark.in_turn(3)
def test_a_broker_that_is_killed_and_comes_back(
    places: Places,
    revived: EmbeddedBroker,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    store: str,
) -> None:
    """While it is away the reader says so, and handles what it has (with a store in memory it need not: nobody can say that it is
    still its own), tells Kafka and polls: the last two in vain. The next reader begins where this one ended; that of memory by
    Kafka alone.
    """
    monkeypatch.setattr(loop, "Consumer", PollsInVain)
    monkeypatch.setattr(loop, "TELL_EVERY_S", 3600.0)
    monkeypatch.setattr(offsets, "ANSWER_S", 0.5)
    monkeypatch.setattr(PollsInVain, "away", away := threading.Event())
    monkeypatch.setattr(PollsInVain, "count", 0)
    half, told = threading.Event(), threading.Event()

    def see(step: Step) -> None:
        if step is Step.OFFSETS and away.is_set():
            told.set()

    def wait_for_the_kill(event: Event) -> None:
        if event.value == b"100":
            half.set()
            assert away.wait(PATIENCE_S)
        if event.value == b"last":
            reader.stop()

    place = places(2, on=revived)
    effects = in_the_mode(mode, store, place, request)
    options = {"store": effects.job["store"], "batch_size": 10}
    options["session_timeout_s"] = 300  # the group waits for it longer than the broker needs to come back
    place.send(range(200))
    reader = place.reader(**options, on_step=see)
    booking(place, reader, effects, wait_for_the_kill)
    thread = threading.Thread(target=reader.run, daemon=True)
    thread.start()
    assert half.wait(PATIENCE_S)
    revived.kill()
    away.set()
    assert told.wait(PATIENCE_S)
    eventually(lambda: PollsInVain.count, (3).__le__, "polls in vain")
    eventually(lambda: waits_for_its_brokers(caplog), (1).__eq__, "warnings")
    revived.start()
    place.send(range(200, 300), partition=0)  # of the other one Kafka is told again without any event
    eventually(lambda: len(effects.texts()), (300).__eq__, "effects")
    place.send(["last"])
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert waits_for_its_brokers(caplog) == 1
    following = place.reader(**options)
    booking(place, following, effects)
    following.run(
        until_end=True
    )  # where the store lasts it tells Kafka what the first one may have told in vain at its end
    assert sorted(effects.texts()) == sorted([*map(str, range(300)), "last"])
    assert place.committed() == {0: 201, 1: 100}


@pytest.mark.parametrize("call", ["get_watermark_offsets", "assign"])
@pytest.mark.in_turn(3)
def test_a_broker_that_is_killed_while_the_ids_are_read_again(
    places: Places,
    revived: EmbeddedBroker,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    """With a store in memory each start asks for a topic's beginning and reads up to the group's offset: it waits with both."""
    monkeypatch.setattr(offsets, "KAFKA_TIMEOUT_S", 0.5)
    killed = threading.Event()

    def killing(consumer: Consumer, *given: Any, **named: Any) -> Any:
        if not killed.is_set():
            revived.kill()
            killed.set()
        return getattr(Consumer, call)(consumer, *given, **named)

    place = places(on=revived)
    place.send(EVENTS)
    first, reader = (place.reader(store="memory:", backoff_max_s=0.2, patience_s=3600) for _ in range(2))
    for each in (first, reader):
        booking(place, each, in_the_mode("claims", "memory", place, request))
    first.run(until_end=True)
    place.send(["new", EVENTS[0]])  # one that was never handled, and one that the source repeats
    monkeypatch.setattr(rebuild, "Consumer", type("Killing", (Consumer,), {call: killing}))
    with ThreadPoolExecutor(1) as background:
        running = background.submit(reader.run, until_end=True)
        try:
            assert killed.wait(PATIENCE_S)
            caplog.clear()  # a slow broker may have been waited for before
            if call == "get_watermark_offsets":
                eventually(lambda: running.done() or "; again in" in caplog.text, bool, "that nobody answers")
            revived.start()
            running.result(PATIENCE_S)
        finally:
            reader.stop()
    assert place.effects() == [*EVENTS, "new"]


@pytest.mark.parametrize(
    ("mode", "store", "at"),
    [
        ("inbox", "sqlite", "7"),
        ("inbox", "sqlite", "17"),
        ("claims", "sqlite", "17"),
        ("claims", "postgresql", "7"),
        ("inbox", "redis", "17"),
    ],
)
@pytest.mark.in_turn(3)
def test_a_broker_that_is_killed_when_a_letter_is_to_be_written(
    places: Places,
    revived: EmbeddedBroker,
    read: ReadAll,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    store: str,
    at: str,
) -> None:
    """For the first letter its topic is not there yet, for the second it is. Its event waits, and what stands behind it."""
    place = places(on=revived)
    place.send(EVENTS)
    killed, usual = threading.Event(), (ReaderSettings.answer_s, offsets.ANSWER_S)

    def fail(event: Event) -> None:
        text = (event.value or b"").decode()
        if text == EVENTS[0]:  # not before: to start, a reader may need longer than that on a busy machine
            monkeypatch.setattr(ReaderSettings, "answer_s", 1.0)
            monkeypatch.setattr(offsets, "ANSWER_S", 0.5)
        if text == at and not killed.is_set():
            revived.kill()
            killed.set()
        if text in POISON:
            raise ValueError("bad")

    effects = in_the_mode(mode, store, place, request)
    patient = {"patience_s": 3600}  # it also covers the broker's start
    reader = place.reader(store=effects.job["store"], retries=0, batch_size=10, backoff_max_s=0.2, **patient)
    booking(place, reader, effects, fail)
    thread = threading.Thread(target=reader.run, kwargs={"until_end": True}, daemon=True)
    thread.start()
    assert killed.wait(PATIENCE_S)
    caplog.clear()  # a slow broker may have been waited for before
    # The lane's own line, behind the good events. That the consumer waits for its brokers may be said before they are booked.
    eventually(lambda: re.search(r" waits \d", caplog.text), bool, "that the letter's brokers do not answer")
    assert effects.texts() == good(EVENTS[: int(at)])
    monkeypatch.setattr(ReaderSettings, "answer_s", usual[0])
    monkeypatch.setattr(offsets, "ANSWER_S", usual[1])
    revived.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert effects.texts() == good(EVENTS)
    written = [name.decode() for name in letters(place, read)]
    assert list(dict.fromkeys(written)) == POISON
    assert written == sorted(written, key=int), (
        "one that was not acknowledged may be there twice, and before the next one"
    )


def good(events: list[str]) -> list[str]:
    return [text for text in events if text not in POISON]


def in_the_mode(mode: str, store: str, place: Place, request: pytest.FixtureRequest) -> Effects:
    """Those of claims are in the place's ledger, whatever the store is."""
    if mode == "inbox":
        inside = effects_of(store, place, request)
        return replace(inside, job={"store": place.store, "mode": mode, **inside.job})
    url = "memory:" if store == "memory" else effects_of(store, place, request).job.get("store", place.store)
    return Effects({"store": url, "mode": mode}, place.effects, set)


def booking(place: Place, reader: Reader, effects: Effects, also: Callable[[Event], None] = lambda event: None) -> None:
    """Gives the reader a handler that writes the effects. What ``also`` raises undoes that, or comes before it."""
    if effects.job["mode"] == "claims":

        @reader.handler
        def elsewhere(event: Event) -> None:
            also(event)
            insert(place.ledger, event)

    else:
        write = effect_of(place.job(**effects.job))

        @reader.handler
        def in_the_transaction(event: Event, tx: Any) -> None:
            write(event, tx)
            also(event)
