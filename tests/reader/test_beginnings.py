"""``start="latest"``: a group begins at the end once, in all partitions at the same time, and loses nothing from then on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from tests.reader.conftest import PROTOCOLS, SESSION_TIMEOUT_S, Places, soon_missed
from tests.reader.support import TIMEOUT_S, Place, eventually, insert
from tests.reader.test_positions import abort_in_a_transaction, forget_offsets, keep_from, lose_the_store

from onceflow.errors import BrokerUnreachable, StoreError, StoreLost
from onceflow.kafka.admin import ClusterAdmin
from onceflow.reader import beginnings
from onceflow.reader.beginnings import Beginnings
from onceflow.reader.offsets import Committed
from onceflow.reader.stores.interface import EventKey, Ownership, Retention, Standing
from onceflow.reader.stores.sqlite import SqliteStore

HISTORY = [f"old {number}" for number in range(8)]


@pytest.mark.parametrize("history", [HISTORY, []], ids=["history", "empty"])
def test_a_group_that_has_begun_does_not_begin_anew_although_it_handled_nothing(
    place: Place, history: Sequence[str]
) -> None:
    place.send(history)
    place.book_all(start="latest")
    place.send(["1", "2"])
    place.book_all(start="latest")
    assert place.effects() == ["1", "2"]


@pytest.mark.parametrize("handled", [["1"], []], ids=["handled", "begun"])
def test_a_partition_that_is_added_later_is_read_from_its_beginning(place: Place, handled: Sequence[str]) -> None:
    """Its first events are there before any reader has seen it."""
    place.send(HISTORY)
    place.book_all(start="latest")
    place.send(handled)
    place.book_all(start="latest")
    place.add_partition()
    place.send(["2", "3"], partition=1)
    place.book_all(start="latest")
    assert place.effects() == [*handled, "2", "3"]


def test_a_reader_at_work_finds_an_added_partition_as_soon_as_it_is_told_to_look(place: Place) -> None:
    """By Java's ``metadata.max.age.ms``; by default it looks every five minutes."""
    place.send(["1"])
    reader = place.reader(kafka={"metadata.max.age.ms": "500"})
    reader.handler(lambda event, tx: insert(tx, event))
    work = threading.Thread(target=reader.run)
    work.start()
    try:
        eventually(place.effects, ["1"].__eq__, "the first event is handled")
        place.add_partition()
        place.send(["2"], partition=1)
        eventually(place.effects, ["1", "2"].__eq__, "the added partition is found")
    finally:
        reader.stop()
        work.join(TIMEOUT_S)
    assert not work.is_alive()


def test_a_member_that_gets_the_added_partition_alone_knows_by_kafka_that_the_group_has_begun(place: Place) -> None:
    """The store tells a reader of its own partitions only."""
    place.send(HISTORY)
    place.book_all(start="latest")
    place.add_partition()
    place.send(["1"], partition=1)
    settings = place.reader(start="latest")._settings
    with closing(Consumer(settings.base_options())) as consumer, begun_by(place) as mine:
        told = mine.noted(consumer, [Ownership(place.topic, 1, 1, None)], {})
    assert set(told) == {(place.topic, 0)}
    assert place.committed() == {0: len(HISTORY)}


def test_a_member_that_gets_the_added_partition_alone_knows_by_the_store_when_kafka_has_forgotten(
    place: Place,
) -> None:
    """The members that have the others have not told Kafka yet."""
    place.send(HISTORY)
    place.book_all(start="latest")
    forget_offsets(place)
    place.add_partition()
    place.send(["1"], partition=1)
    settings = place.reader(start="latest")._settings
    with closing(Consumer(settings.base_options())) as consumer, begun_by(place) as mine:
        assert mine.noted(consumer, [Ownership(place.topic, 1, 1, None)], {}) == {}
    assert place.committed() == {}


@contextmanager
def begun_by(place: Place) -> Iterator[Beginnings]:
    """As a reader has it."""
    with closing(SqliteStore(place.file)) as store:
        store.open(place.group, Retention())
        yield Beginnings(place.reader(start="latest")._settings, store, "tests")


@contextmanager
def member_that_never_reads(place: Place, protocol: str) -> Iterator[None]:
    """It owns partitions in Kafka, and has neither taken nor noted them: a reader that is about to die."""
    options: dict[str, object] = {
        "bootstrap.servers": place.servers,
        "group.id": place.group,
        "group.protocol": protocol,
        "enable.auto.commit": False,
        "log_level": 0,
    }
    if protocol == "classic":
        # One that leaves in the middle of a rebalance is waited for until its session ends: by default for 45 s.
        session_ms = int(SESSION_TIMEOUT_S * 1000)
        options |= {"session.timeout.ms": session_ms, "heartbeat.interval.ms": session_ms // 3}
        options["partition.assignment.strategy"] = "cooperative-sticky"
    consumer = Consumer(options)
    owns, ends = threading.Event(), threading.Event()

    def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)
        owns.set()

    def poll() -> None:
        while not ends.is_set():
            consumer.poll(0.1)

    consumer.subscribe([place.topic], on_assign=assigned)
    thread = threading.Thread(target=poll)
    thread.start()
    try:
        assert owns.wait(TIMEOUT_S)
        yield
    finally:
        ends.set()
        thread.join(TIMEOUT_S)
        consumer.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_another_member_never_read_begins_where_the_group_began(places: Places, protocol: str) -> None:
    """At the end what came since would be lost; at the beginning all that was there before the group would be handled."""
    place = places(4)
    place.send(HISTORY)
    options = {"start": "latest", "group_protocol": protocol}
    with member_that_never_reads(place, protocol):
        reader = place.start(place.job(options=options, until_end=False))
        eventually(lambda: len(place.committed()), (4).__eq__, "the beginnings are noted")
        eventually(place.members, (2).__eq__, "two members")
        place.send(map(str, range(8)))
        eventually(lambda: len(place.effects()), (4).__le__, "the events of two partitions")
    eventually(lambda: sorted(place.effects()), [str(number) for number in range(8)].__eq__, "all since the beginning")
    assert reader.stop() == 0, reader.said()
    assert len(place.effects()) == 8


class DiesBeforeItBooks(SqliteStore):
    """The note is in Kafka by then, and the store has nothing."""

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        if ownership.topic.endswith(":id"):  # which topic it is, is booked before
            return super().claim(ownership, keys, lease_s)
        raise StoreError("dies here")


def notes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The undefended variant: a group begins at the end as long as it has handled nothing."""
    notes_that_it_began(monkeypatch)
    monkeypatch.setattr(Beginnings, "_book_mark", lambda *_: None)


def notes_that_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one: and not where."""
    monkeypatch.setattr(beginnings, "note_beginnings", lambda *_: None)


@pytest.mark.parametrize(
    ("change", "handled"),
    [(lambda _: None, ["1", "2"]), (notes_nothing, []), (notes_that_it_began, ["1", "2", *HISTORY])],
    ids=["noted", "control: nothing noted", "control: not noted where"],
)
def test_a_reader_that_dies_between_the_note_and_the_store_has_begun(
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch], None],
    handled: Sequence[str],
) -> None:
    """Without the note the next reader begins anew: behind what came since, which is lost, or with all that was there before."""
    change(monkeypatch)
    place = places(2)
    place.send(HISTORY)
    with pytest.raises(StoreError, match="dies here"):
        place.book_all(start="latest", store=DiesBeforeItBooks(place.file))
    place.send(["1", "2"])
    place.book_all(start="latest")
    assert sorted(place.effects()) == handled


@pytest.mark.parametrize("is_gone", [False, True], ids=["there", "gone"])
def test_a_group_that_has_read_where_there_was_nothing_has_handled_nothing(place: Place, *, is_gone: bool) -> None:
    """What it tells of the way to the end does not take back that it begins there: no store has lost anything."""
    place.send(HISTORY)
    place.book_all(start="latest")
    end = len(HISTORY) + 2  # behind the event that is aborted and the transaction's end
    abort_in_a_transaction(place, "never")
    place.book_all(start="latest")
    lose_the_store(place)
    if is_gone:
        keep_from(place, end)
    place.send(["1", "2"])
    place.book_all(start="latest")
    assert place.effects() == ["1", "2"]


def note(place: Place, offset: int) -> None:
    """As another member does."""
    noted = [TopicPartition(place.topic, 0, offset, metadata="begins-here;")]
    asked = place.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(place.group, noted)])
    asked[place.group].result(TIMEOUT_S)


@pytest.mark.parametrize("history", [HISTORY, []], ids=["history", "empty"])
def test_a_later_note_of_another_member_does_not_move_the_beginning(place: Place, history: Sequence[str]) -> None:
    """Two members find nothing noted; the second one notes what it sees, over what the first one has begun with."""
    place.send(history)
    place.book_all(start="latest")
    place.send(["1", "2"])
    note(place, len(history) + 2)
    place.book_all(start="latest")
    assert place.effects() == ["1", "2"]


@pytest.mark.parametrize("history", [HISTORY, []], ids=["history", "empty"])
def test_a_group_whose_offsets_have_expired_does_not_begin_anew_although_it_handled_nothing(
    place: Place, history: Sequence[str]
) -> None:
    place.send(history)
    place.book_all(start="latest")
    forget_offsets(place)
    place.send(["1", "2"])
    place.book_all(start="latest")
    assert place.effects() == ["1", "2"]


def test_what_another_member_has_noted_meanwhile_is_left_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    class Overtaken(ClusterAdmin):
        def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
            note(place, 3)
            return super().end_offsets(partitions)

    monkeypatch.setattr(beginnings, "ClusterAdmin", Overtaken)
    place.send(HISTORY)
    settings = place.reader(start="latest")._settings
    with closing(Consumer(settings.base_options())) as consumer, begun_by(place) as mine:
        told = mine.noted(consumer, [Ownership(place.topic, 0, 1, None)], {})
    assert told == {(place.topic, 0): Committed(3, 3, is_beginning=True)}
    assert place.committed() == {0: 3}


def test_a_partition_that_the_brokers_do_not_know_yet_begins_with_the_others(place: Place) -> None:
    """The group has given it out, so it is waited for. Passed over, it would begin at its beginning."""
    place.send(HISTORY)
    settings = place.reader(start="latest")._settings
    owned = [Ownership(place.topic, number, 1, None) for number in range(2)]
    with closing(Consumer(settings.base_options())) as consumer, begun_by(place) as mine:
        with pytest.raises(BrokerUnreachable):
            mine.noted(consumer, owned, {})
        assert place.committed() == {}
        place.add_partition()
        told = mine.noted(consumer, owned, {})
    assert told == {
        (place.topic, 0): Committed(len(HISTORY), len(HISTORY), is_beginning=True),
        (place.topic, 1): Committed(0, 0, is_beginning=True),
    }
    assert place.committed() == {0: len(HISTORY), 1: 0}


MOVED = ["NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "FENCED_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE"]


@pytest.mark.parametrize("name", MOVED)
def test_an_end_that_a_moving_leader_does_not_tell_is_asked_for_again(place: Place, name: str) -> None:
    """librdkafka gives such an answer for one partition as it is."""
    answer: Future[object] = Future()
    answer.set_exception(KafkaException(KafkaError(getattr(KafkaError, name))))
    admin = ClusterAdmin(place.reader()._settings.cluster)
    with pytest.raises(BrokerUnreachable, match=f"the end of {place.topic}-0") as caught:
        admin._end(TopicPartition(place.topic, 0), answer)
    assert caught.value.retriable


def test_a_reader_that_is_stopped_before_it_notes_changes_nothing_when_it_wakes(place: Place) -> None:
    """Another one has begun meanwhile, and has handled events."""
    place.send(HISTORY)
    wanted = place.job(options={"start": "latest"}, until_end=False)
    stopped = place.start(replace(soon_missed(wanted), interrupt=("taken", 0, signal.SIGSTOP)))
    stopped.until_stopped()
    other = place.start(wanted)
    eventually(place.committed, bool, "the other one has begun")
    place.send(["1"])
    eventually(place.effects, ["1"].__eq__, "the other one handles")
    stopped.signal(signal.SIGCONT)
    eventually(place.members, (2).__eq__, "both are members")
    place.send(["2"])
    eventually(lambda: len(place.effects()), (2).__le__, "what came after")
    assert (stopped.stop(), other.stop()) == (0, 0)
    assert place.effects() == ["1", "2"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_reader_that_loses_its_group_before_it_notes_begins_when_it_is_in_it_again(
    place: Place, protocol: str
) -> None:
    """Kafka refuses the note; and alone, there is nobody else's to go by. In the callback it cannot join the group again."""
    place.send(HISTORY)
    options = {"start": "latest", "group_protocol": protocol}
    wanted = place.job(interrupt=("taken", 0, signal.SIGSTOP), options=options, until_end=False)
    stopped = place.start(soon_missed(wanted))
    stopped.until_stopped()
    eventually(place.members, (0).__eq__, "the group has put it out")
    stopped.signal(signal.SIGCONT)
    eventually(place.committed, bool, "it has begun")
    place.send(["1"])
    eventually(place.effects, ["1"].__eq__, "what came after")
    assert stopped.stop() == 0, stopped.said()


def test_a_lost_store_is_told_as_before(place: Place) -> None:
    """What Kafka knows of handled events is a witness, where the group began or not."""
    place.send(HISTORY)
    place.book_all(start="latest")
    place.send(["1"])
    place.book_all(start="latest")
    lose_the_store(place)
    with pytest.raises(StoreLost):
        place.book_all(start="latest")
