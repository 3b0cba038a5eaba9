"""Reading the ids again: it ends when the reader is stopped, and survives troubles of the store and of the group."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from tests.reader.support import TIMEOUT_S, Place, eventually, insert
from tests.reader.test_positions import EVENTS, lose_the_store
from tests.reader.test_until_end import booking

from onceflow.errors import BrokerUnreachable, CommitUnknown, EventsGone, StoreUnavailable
from onceflow.reader import trouble
from onceflow.reader.membership import Membership
from onceflow.reader.patience import Stopped
from onceflow.reader.reader import Reader
from onceflow.reader.rebuild import Rebuilder
from onceflow.reader.remainder import Remainder
from onceflow.reader.steps import Step
from onceflow.reader.stores.interface import Ownership, Retention
from onceflow.reader.stores.sqlite import SqliteStore
from onceflow.stop_flag import StopFlag


def test_a_reader_that_is_stopped_stops_reading_the_ids() -> None:
    stop = StopFlag()

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


@pytest.mark.parametrize("reads", [True, False], ids=["it reads the ids", "control: it reads none"])
def test_a_new_process_with_its_store_in_memory_knows_what_the_one_before_has_handled(
    place: Place, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """The source sends an event again after the restart, behind the group's offset."""
    seen: list[str] = []

    def handle_all() -> None:
        reader = place.reader(store="memory:")
        reader.handler(lambda event: seen.append(event.value.decode()))
        reader.run(until_end=True)

    place.send(["1", "2"])
    handle_all()
    place.send(["1", "3"])
    if not reads:
        monkeypatch.setattr(Rebuilder, "_read", lambda *_: 0)
    handle_all()
    assert seen[:2] == ["1", "2"]
    assert (seen[2:] == ["3"]) == reads
    assert ("1" in seen[2:]) != reads


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


def test_a_store_that_is_away_for_a_moment_while_the_ids_are_read_is_waited_for(place: Place) -> None:
    """Behind the commit as well, of which then nobody knows whether it has worked."""
    lost_with_one_behind(place)
    reader = place.reader(lost_store="rebuild", batch_size=7)
    unit = reader._store.unit
    troubles = iter([None, StoreUnavailable("away"), None, CommitUnknown("no answer")])

    @contextmanager
    def troubled() -> Iterator[Any]:
        trouble = next(troubles, None)
        if isinstance(trouble, StoreUnavailable):
            raise trouble
        with unit() as opened:
            yield opened
        if trouble:
            raise trouble

    reader._store.unit = troubled  # type: ignore[method-assign]
    reader.handler(lambda event, tx: insert(tx, event))
    reader.run(until_end=True)
    assert next(troubles, "all of them came") == "all of them came"
    assert place.effects() == [*EVENTS, "30"]


def test_a_reader_that_is_put_out_of_its_group_while_it_reads_the_ids_joins_it_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than the group waits; the next one takes the partition, and the store refuses the first."""
    taken = threading.Event()
    options: dict[str, Any] = {"lost_store": "rebuild", "batch_size": 7}
    # Of both: a group waits for the longest of its members. Longer than reading the ids takes on a busy machine.
    options |= {"session_timeout_s": 10, "max_poll_interval_s": 10}
    lost_with_one_behind(place)
    first = booking(place, inbox=True, **options)
    second = booking(place, inbox=True, **options, on_step=lambda step: taken.set() if step is Step.TAKEN else None)
    read = Rebuilder.__call__
    begun = threading.Event()

    def late(rebuilder: Rebuilder, *arguments: Any) -> None:
        if not begun.is_set():
            begun.set()
            assert taken.wait(TIMEOUT_S)
        read(rebuilder, *arguments)

    monkeypatch.setattr(Rebuilder, "__call__", late)
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(first.run, until_end=True)]
        assert begun.wait(TIMEOUT_S)
        runs.append(threads.submit(second.run, until_end=True))
        assert [run.exception(TIMEOUT_S) for run in runs] == [None, None]
    assert place.effects() == [*EVENTS, "30"]


def test_a_reader_that_is_fenced_by_one_that_was_late_goes_on_reading_the_ids(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is still a member: nobody would handle the partition if it gave way."""
    lost_with_one_behind(place)
    read = Rebuilder.__call__
    epochs: list[int] = []

    def overtaken(rebuilder: Rebuilder, *arguments: Any) -> None:
        if not epochs:
            with closing(SqliteStore(place.file)) as rival:
                rival.open(place.group, Retention())
                epochs.append(rival.take(place.topic, [0], "rival")[0].epoch)
        read(rebuilder, *arguments)

    monkeypatch.setattr(Rebuilder, "__call__", overtaken)
    place.book_all(lost_store="rebuild", batch_size=7)
    assert len(epochs) == 1
    assert place.effects() == [*EVENTS, "30"]


@pytest.fixture
def end_is_seen(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """That a partition is read to an end has been told."""
    seen, is_end = threading.Event(), trouble.is_end

    def looked_at(error: KafkaError) -> bool:
        if is_end(error):
            seen.set()
        return is_end(error)

    monkeypatch.setattr(trouble, "is_end", looked_at)
    return seen


def test_an_end_before_what_is_handled_is_not_believed(place: Place, end_is_seen: threading.Event) -> None:
    """A new leader may tell of one for seconds. Here the records behind it are in an open transaction instead."""
    place.send(EVENTS)
    place.book_all()
    commit = place.send_uncommitted("30", "31")
    place.set_committed({0: 32})
    reader = booking(place, inbox=True, lost_store="rebuild", patience_s=TIMEOUT_S)
    end_is_seen.clear()  # the reader before was at an end as well
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(reader.run, until_end=True)
        assert end_is_seen.wait(TIMEOUT_S)
        commit()
        assert run.exception(TIMEOUT_S) is None
    place.send(["31", "32"])
    place.book_all()
    assert place.effects() == [*EVENTS, "32"], "31 comes again, and is known"


def test_what_a_member_without_a_partition_looks_for_is_not_before_such_an_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again, unless the leader is sure: then what came behind is lost, and there is nothing to wait for."""
    settings = place.reader()._settings
    remainder = Remainder(settings, Membership(settings), StopFlag())
    where = (place.topic, 0)
    commit = place.send_uncommitted("0")
    assert remainder._first_event(where, None, 1) is None
    with monkeypatch.context() as patch:
        patch.setattr("onceflow.reader.remainder.end_of", lambda *_: 1)
        with pytest.raises(BrokerUnreachable, match="its leader had it end at offset 0, and it ends at 1"):
            remainder._first_event(where, None, 1)
    commit()
    assert eventually(lambda: remainder._first_event(where, None, 1), (0).__eq__, "the event") == 0


def test_an_offset_behind_all_that_there_is_ends_the_reader_with_both(place: Place) -> None:
    place.send(EVENTS)
    place.book_all()
    place.set_committed({0: 100})
    with pytest.raises(
        EventsGone, match=f"{place.topic}-0 can be read up to offset 30, .* handled the events before offset 100"
    ):
        place.book_all(lost_store="rebuild", patience_s=1.0)
    assert place.effects() == EVENTS


def test_errors_that_come_again_and_again_do_not_hide_that_the_rest_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As some of them pass by themselves, they end nothing; the leader is asked beside them."""
    rounds = itertools.count()

    class Troubled:
        def position(self, places: list[TopicPartition]) -> list[TopicPartition]:
            return places

        def consume(self, *_: Any) -> list[Message]:
            assert next(rounds) < 100_000, "the leader is never asked"
            return [Message(error=KafkaError(KafkaError._TRANSPORT), topic="t", partition=0)]

    monkeypatch.setattr("onceflow.reader.rebuild.end_of", lambda *_: 5)
    settings = Reader("t", group="g", store="memory:", patience_s=0.001)._settings
    troubled: Any = Troubled()
    with pytest.raises(EventsGone, match=r"t-0 can be read up to offset 5, .* before offset 10"):
        Rebuilder(settings, lambda *_: None, StopFlag())._read(
            troubled, TopicPartition("t", 0), Ownership("t", 0, 1, None), 10
        )


def lost_with_one_behind(place: Place) -> None:
    """A store that is lost, one event that was never handled, and one that the source repeats."""
    place.send(EVENTS)
    place.book_all()
    lose_the_store(place)
    place.send(["30", EVENTS[0]])
