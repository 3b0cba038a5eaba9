"""``run(until_end=True)``: a member that is done neither waits for ever, nor ends while something is left for it."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from tests.reader.conftest import SESSION_TIMEOUT_S, Places
from tests.reader.support import TIMEOUT_S, Place, eventually, insert

from onceflow.broker import EmbeddedBroker
from onceflow.errors import BrokerUnreachable, StoreUnavailable
from onceflow.kafka.admin import ClusterAdmin
from onceflow.reader.event import Event
from onceflow.reader.reader import Reader
from onceflow.reader.remainder import Remainder
from onceflow.reader.steps import Step

EVENTS = [str(number) for number in range(40)]
HAS_NONE = "no partition for this member"
STANDS_BY = "it ends when all there is now is handled"


@contextmanager
def running(run: Callable[[], object]) -> Iterator[threading.Thread]:
    """A thread that must have ended by itself at the end."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def booking(place: Place, *, inbox: bool, **options: Any) -> Reader:
    reader = place.reader(**options)

    def book(event: Event, tx: Any) -> None:
        insert(tx, event)

    reader.handler(book if inbox else lambda event: insert(place.ledger, event))
    return reader


def run_async(reader: Reader) -> bool:
    return asyncio.run(reader.run_async(until_end=True))


def run_plain(reader: Reader) -> bool:
    return reader.run(until_end=True)


def said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("protocol", "partitions", "run", "inbox"),
    [
        ("classic", 1, run_plain, True),
        ("classic", 1, run_async, False),
        ("classic", 2, run_plain, False),  # one of them is on its way to the second reader
        ("consumer", 1, run_plain, False),
        ("consumer", 1, run_async, True),
    ],
)
@pytest.mark.in_turn(3)
def test_a_member_without_a_partition_ends_when_the_others_have_handled_all(
    places: Places,
    broker: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
    protocol: str,
    partitions: int,
    run: Callable[[Reader], bool],
    inbox: bool,
) -> None:
    """The first reader has all that there is, and handles it only when the second one is in the group and has none."""
    caplog.set_level(logging.INFO, "onceflow.reader")
    place = places(partitions, on=broker)  # with the usual session: nobody is to lose it
    place.send(EVENTS)
    polled, go_on = threading.Event(), threading.Event()

    def hold(step: Step) -> None:
        if step is Step.POLLED:
            polled.set()
            assert go_on.wait(TIMEOUT_S)

    first = booking(place, inbox=inbox, group_protocol=protocol, on_step=hold)
    second = booking(place, inbox=inbox, group_protocol=protocol)
    with running(lambda: run(first)):
        assert polled.wait(TIMEOUT_S)
        with running(lambda: run(second)) as waiting:
            eventually(lambda: said(caplog, HAS_NONE), bool, "the second reader's look")
            assert waiting.is_alive()
            go_on.set()
    assert sorted(map(int, place.effects())) == list(range(len(EVENTS)))


class AtOnce(Remainder):
    """The undefended variant: who has no partition has nothing to do."""

    def is_handled(self, _consumer: object, _own: object) -> bool:
        return True


@pytest.mark.parametrize("early", [False, True], ids=["stands by", "control: ends at once"])
def test_a_member_without_a_partition_takes_over_from_one_that_died(
    place: Place, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """The group takes the dead one for the owner until its session ends; what that left is handled by nobody else."""
    if early:
        monkeypatch.setattr("onceflow.reader.loop.Remainder", AtOnce)
    place.send(EVENTS)
    options = {"batch_size": 10, "session_timeout_s": SESSION_TIMEOUT_S}
    killed = place.start(place.job(interrupt=("committed", 1, signal.SIGKILL), options=options))
    assert killed.wait() == -signal.SIGKILL
    place.book_all()
    assert (place.effects() == EVENTS) is not early


def silent_member(reader: Reader) -> Consumer:
    """One of the reader's group that owns partitions and handles nothing of them."""
    options = reader._settings.consumer_options()
    consumer = Consumer(options)
    consumer.subscribe(list(reader._settings.topics))
    return consumer


@pytest.mark.parametrize("early", [False, True], ids=["stands by", "control: ends at once"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.in_turn(3)
def test_a_member_with_partitions_takes_over_those_of_one_that_goes_away(
    places: Places,
    broker: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    early: bool,
) -> None:
    """Its own are handled when the other one, which owns the rest and has handled nothing, leaves the group."""
    caplog.set_level(logging.INFO, "onceflow.reader")
    if early:
        monkeypatch.setattr("onceflow.reader.loop.Remainder", AtOnce)
    place = places(2, on=broker)
    place.send(EVENTS)
    reader = booking(place, inbox=True, group_protocol=protocol)
    silent = silent_member(reader)

    def owned() -> int:
        silent.poll(0.1)
        return len(silent.assignment())

    eventually(owned, (2).__eq__, "partitions of the silent member")
    with running(lambda: reader.run(until_end=True)) as waiting:
        eventually(lambda: owned() and (said(caplog, STANDS_BY) or not waiting.is_alive()), bool, "the reader's look")
        assert waiting.is_alive() is not early
        silent.close()
    assert (sorted(map(int, place.effects())) == list(range(len(EVENTS)))) is not early


def test_what_it_gets_before_its_first_look_works_is_not_taken_for_handled(
    places: Places, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own partition is at its end, and the brokers do not answer what else there is; until then it gets another one."""
    place = places(2)
    place.send(EVENTS)
    all_ends, has_other = Remainder._all_ends, threading.Event()

    def unanswered(remainder: Remainder) -> dict[tuple[str, int], int]:
        if not has_other.is_set():
            raise BrokerUnreachable("tests: not yet")
        return all_ends(remainder)

    monkeypatch.setattr(Remainder, "_all_ends", unanswered)
    monkeypatch.setattr("onceflow.reader.remainder.LOOK_EVERY_S", 0.0)
    reader = place.reader(batch_size=1)
    silent = silent_member(reader)

    def owned() -> set[int]:
        silent.poll(0.1)
        return {each.partition for each in silent.assignment()}

    def looked() -> bool:
        left.intersection_update(owned())
        return said(caplog, "tests: not yet")

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        insert(tx, event)
        if event.partition in left:
            has_other.set()

    left = eventually(owned, {0, 1}.__eq__, "partitions of the silent member")
    with running(lambda: reader.run(until_end=True)):
        eventually(looked, bool, "the first look")
        silent.close()
    assert sorted(map(int, place.effects())) == list(range(len(EVENTS)))


def test_an_end_before_where_its_own_partition_ends_is_not_believed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new leader may tell of one for seconds. Here the records behind it are in an open transaction instead."""
    place.send(EVENTS)
    commit = place.send_uncommitted("40", "41")
    all_ends, committed = Remainder._all_ends, threading.Event()

    def told_by_a_leader_that_is_sure(remainder: Remainder) -> dict[tuple[str, int], int]:
        if not committed.is_set():
            commit()
            committed.set()
        return eventually(lambda: all_ends(remainder), {(place.topic, 0): 43}.__eq__, "the end of the transaction")

    with monkeypatch.context() as patch:
        patch.setattr(Remainder, "_all_ends", told_by_a_leader_that_is_sure)
        assert booking(place, inbox=True).run(until_end=True)
    assert place.effects() == [*EVENTS, "40", "41"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_where_nothing_but_aborted_records_is_left_there_is_nothing_to_wait_for(
    place: Place, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    """The group never gets an offset: its reader has found no event. The second one looks for itself."""
    caplog.set_level(logging.INFO, "onceflow.reader")
    producer = Producer({"bootstrap.servers": place.servers, "transactional.id": place.topic})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(place.topic, "aborted")
    assert producer.flush(TIMEOUT_S) == 0
    producer.abort_transaction(TIMEOUT_S)
    service = booking(place, inbox=False, group_protocol=protocol)
    second = booking(place, inbox=False, group_protocol=protocol)
    with running(service.run):
        eventually(place.members, (1).__eq__, "members of the group")
        with running(lambda: second.run(until_end=True)):
            pass
        assert said(caplog, HAS_NONE)
        service.stop()
    assert place.committed() == {}
    assert place.effects() == []


def terminate(_: Reader) -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(("run", "how"), [(run_plain, Reader.stop), (run_plain, terminate), (run_async, Reader.stop)])
def test_a_run_tells_whether_all_was_handled(
    place: Place, run: Callable[[Reader], bool], how: Callable[[Reader], None]
) -> None:
    """Whoever deletes the topic behind it must know; ended before, it returns as well."""
    place.send(EVENTS)
    reader = place.reader(batch_size=1)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        insert(tx, event)
        if event.value == b"3":
            how(reader)

    assert run(reader) is False
    assert place.effects() == EVENTS[:4]
    assert run(reader) is True
    assert place.effects() == EVENTS


def brokers_go_away(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """In the first look for the topics: librdkafka says so at once, and not when the patience is over."""
    missing = ClusterAdmin.missing

    def first_look(*_: object, **__: object) -> list[str]:
        monkeypatch.setattr(ClusterAdmin, "missing", missing)
        then()
        raise BrokerUnreachable("not now")

    monkeypatch.setattr(ClusterAdmin, "missing", first_look)


def test_brokers_that_go_away_while_a_run_looks_for_its_topics_are_asked_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.send(EVENTS)
    brokers_go_away(monkeypatch, lambda: None)
    assert booking(place, inbox=True).run(until_end=True) is True
    assert place.effects() == EVENTS


def test_a_run_that_is_ended_while_it_waits_for_brokers_to_look_for_its_topics_has_not_handled_all(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.send(EVENTS)
    reader = booking(place, inbox=True)
    brokers_go_away(monkeypatch, reader.stop)
    assert reader.run(until_end=True) is False
    assert place.effects() == []


def test_a_run_that_is_ended_while_it_waits_for_its_store_has_not_handled_all(place: Place) -> None:
    place.send(EVENTS)
    reader = booking(place, inbox=True)

    def away(*_: object) -> None:
        reader.stop()
        raise StoreUnavailable("not now")

    reader._store.open = away  # type: ignore[assignment, method-assign]
    assert reader.run(until_end=True) is False
