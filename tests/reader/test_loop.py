"""The loop over a scripted consumer: what Kafka does between two calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from tests.reader.support import eventually
from tests.reader.test_claims import Clock

from onceflow.errors import BrokerUnreachable, CommitUnknown, StoreUnavailable, TopicMissing
from onceflow.reader import topic_watch
from onceflow.reader.assignment import Assignment
from onceflow.reader.claims import Claims
from onceflow.reader.event import Event, event_of, position_source
from onceflow.reader.fence import Fence
from onceflow.reader.handling import Handler
from onceflow.reader.lane import Lane
from onceflow.reader.leases import Leases
from onceflow.reader.loop import Loop
from onceflow.reader.membership import Membership
from onceflow.reader.offsets import Committed, _committed, tell_kafka
from onceflow.reader.reader import Reader
from onceflow.reader.remainder import Remainder
from onceflow.reader.same_topics import SameTopics
from onceflow.reader.stores.interface import EventKey, Ownership, Standing
from onceflow.reader.stores.memory import MemoryStore
from onceflow.reader.tally import Tally
from onceflow.reader.topic_watch import TopicWatch
from onceflow.stop_flag import StopFlag

PLACE = ("t", 0)


class Bench:
    """A loop over a consumer, with lanes that a test makes."""

    def __init__(
        self,
        handler: Callable[[Event], object],
        consumer: object,
        store: MemoryStore | None = None,
        lease_s: float = 60,
    ) -> None:
        self.store = store or MemoryStore()
        self.stop = StopFlag()
        settings = Reader("t", group="g", store=self.store, batch_size=10)._settings
        self.assignment = Assignment(
            settings, self.store, "reader", lambda *_: None, self.stop, lambda step: None, lambda lane: None
        )
        fence = Fence(self.store)
        fence.kafka_answered(math.inf)  # what it would say is a matter of the tests that let it be asked
        self.leases = Leases(self.store, lease_s)
        mode = Claims(self.store, Handler(handler), lambda step: None, self.leases, Tally(), fence)
        self.loop = Loop(settings, self.store, mode, self.assignment, self.stop, lambda step: None, Tally(), fence)
        self.loop._consumer = consumer  # type: ignore[assignment]

    def begin_at(self, position: int, partition: int = 0) -> Lane:
        (ownership,) = self.store.take("t", [partition], "reader")
        lane = self.assignment.lanes["t", partition] = Lane(ownership, position, sent_position=position)
        return lane


class Scripted:
    """Gives messages, and remembers what is committed."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.told: list[tuple[int, str | None]] = []

    def poll(self, _: float) -> Message | None:
        return self.messages.pop(0) if self.messages else None

    def consume(self, count: int, _: float) -> list[Message]:
        found, self.messages = self.messages[:count], self.messages[count:]
        return found

    def committed(self, partitions: list[TopicPartition], **_: Any) -> list[TopicPartition]:
        return partitions

    def commit(self, offsets: list[TopicPartition], **_: Any) -> list[TopicPartition]:
        self.told += [(each.offset, each.metadata) for each in offsets]
        return offsets


def message(offset: int, partition: int = 0) -> Message:
    return Message(topic="t", partition=partition, offset=offset)


def event(offset: int) -> Event:
    return event_of(message(offset), position_source("t", 0))


def test_an_event_polled_before_the_partition_went_and_came_back_is_not_of_the_new_lane() -> None:
    """Offset 50 is polled; the partition goes, and comes back at 40; taken first, 50 would hide 40 to 49 for ever."""
    handled: list[int] = []

    class Rebalanced(Scripted):
        def consume(self, *_: Any) -> list[Message]:
            bench.begin_at(40)
            return []

    bench = Bench(lambda event: handled.append(event.offset), Rebalanced(message(50)))
    bench.begin_at(50)
    bench.loop._round()
    assert handled == []
    assert bench.assignment.lanes[PLACE].position == 40


def test_a_reader_that_is_to_end_begins_no_other_partition_s_batch() -> None:
    """A group's last reader may own hundreds of them."""
    handled: list[int] = []

    def book(event: Event) -> None:
        handled.append(event.partition)
        bench.stop.set()

    bench = Bench(book, Scripted(message(0, 0), message(0, 1)))
    for partition in (0, 1):
        bench.begin_at(0, partition)
    bench.loop._round()
    assert handled == [0]


def test_partitions_that_are_never_at_their_ends_all_at_once_end_a_run_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events keep coming to each of them: what there was at the beginning is handled when each was at its end once."""
    asked: list[dict[Any, int]] = []

    def is_handled(_: Remainder, consumer: object, own: dict[Any, int]) -> bool:
        asked.append(own)
        return True

    monkeypatch.setattr(Remainder, "is_handled", is_handled)
    bench = Bench(lambda event: None, Scripted())
    first, second = bench.begin_at(0, 0), bench.begin_at(0, 1)
    first.at_end, first.read_until = True, 7
    assert not bench.loop._at_end()
    first.at_end, first.pending = False, [event(0)]
    second.at_end, second.read_until = True, 9
    assert bench.loop._at_end()
    assert asked == [{("t", 0): 7, ("t", 1): 9}]


def test_a_partition_of_others_is_not_handled_because_it_has_no_offset_where_the_group_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was added to the topic later, so whoever owns it begins at its beginning, with ``start="latest"`` too."""
    settings = Reader("t", group="g", store="memory:", start="latest")._settings
    remainder = Remainder(settings, Membership(settings), StopFlag())
    offsets = {("t", 0): Committed(40, 40)}
    monkeypatch.setattr(Remainder, "_all_ends", lambda _: {("t", 0): 40, ("t", 1): 5})
    monkeypatch.setattr(
        "onceflow.reader.remainder.committed_offsets", lambda _, places: {p: offsets[p] for p in places if p in offsets}
    )
    assert not remainder.is_handled(Scripted(), {("t", 0): 40})  # type: ignore[arg-type]


@pytest.mark.parametrize("position", [None, 0, 7])
def test_before_the_first_event_kafka_hears_that_there_is_one(position: int | None) -> None:
    """And hears it again as long as the position is the same: told without the note it would tell of no lost store."""
    told: list[list[tuple[int, str | None]]] = []

    def book(_: Event) -> None:
        told.append([*consumer.told])
        raise ValueError("no")

    consumer = Scripted(message(7))
    bench = Bench(book, consumer)
    lane = bench.begin_at(0)
    lane.position, lane.sent_position, lane.is_witnessed = position, None, False
    bench.loop._round()
    note = (7 if position is None else position, "handles-from-here;")
    assert told == [[note]]
    lane.sent_position = None
    bench.loop._offsets_at = 0.0
    bench.loop._round()
    assert consumer.told == [note, note]
    assert bench.store.take("t", [0], "next")[0].next_offset == (7 if position is None else None)


@pytest.mark.parametrize("name", ["UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"])
def test_until_kafka_has_heard_of_it_the_first_event_is_not_handled(name: str) -> None:
    """The store knows where the group begins by then; Kafka refuses the note once."""

    class Refuses(Scripted):
        def commit(self, offsets: list[TopicPartition], **options: Any) -> list[TopicPartition]:
            if not refused:
                refused.append(name)
                raise KafkaException(KafkaError(getattr(KafkaError, name)))
            return super().commit(offsets, **options)

    refused: list[str] = []
    handled: list[int] = []
    consumer = Refuses(message(7))
    bench = Bench(lambda event: handled.append(event.offset), consumer)
    lane = bench.begin_at(0)
    lane.position, lane.sent_position, lane.is_witnessed = None, None, False
    bench.loop._offsets_at = math.inf
    bench.loop._round()
    assert (refused, handled, consumer.told, lane.stored) == ([name], [], [], 7)
    lane.not_before = 0.0
    bench.loop._round()
    assert handled == [7]
    assert {*consumer.told} == {(7, "handles-from-here;")}


class Answers(Scripted):
    """Says whether it takes a commit, as Kafka does of members and of others."""

    is_member = True
    asked = 0

    def commit(self, offsets: list[TopicPartition], **options: Any) -> list[TopicPartition]:
        self.asked += 1
        if not self.is_member:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))
        return super().commit(offsets, **options)


class Shared(MemoryStore):
    """As a database's: whoever takes a partition elsewhere takes it here."""

    capabilities = replace(MemoryStore.capabilities, shared=True)


@pytest.mark.parametrize(("store", "asked"), [(MemoryStore, 1), (Shared, 0)])
def test_with_a_store_of_its_own_it_asks_kafka_once_for_all_partitions_before_it_handles_what_it_has(
    store: type[MemoryStore], asked: int
) -> None:
    """Nobody else would refuse it. Where Kafka does, what was polled waits, and the next partition does not ask as well."""
    handled: list[tuple[int, int]] = []
    kafka = Answers(message(0, 0), message(0, 1))
    bench = Bench(lambda event: handled.append((event.partition, event.offset)), kafka, store())
    bench.loop._fence.kafka_answered(-math.inf)
    bench.loop._offsets_at = math.inf
    lanes = [bench.begin_at(0, partition) for partition in (0, 1)]
    kafka.is_member = False
    with bench.leases:
        bench.loop._round()
    assert (kafka.asked, handled) == (asked, [] if asked else [(0, 0), (1, 0)])
    if asked:
        assert [lane.troubles for lane in lanes] == [0, 0], "it is no trouble of the store's"
        kafka.is_member = True
        bench.loop._ask_at = lanes[0].not_before = lanes[1].not_before = 0.0
        bench.loop._round()
        assert (kafka.asked, handled) == (2, [(0, 0), (1, 0)])


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the monotonic clock is the one that counts")
@pytest.mark.parametrize(("takes_s", "handled"), [(3.0, [0, 1]), (3600.0, [])], ids=["slow", "stopped meanwhile"])
def test_an_answer_that_takes_long_is_valid_for_as_long_again_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, handled: list[int]
) -> None:
    """Were it too old whenever it comes, nothing would be handled with a Kafka that is slow."""
    clock = Clock(monkeypatch)

    class Slow(Scripted):
        def commit(self, offsets: list[TopicPartition], **options: Any) -> list[TopicPartition]:
            clock.sleeps(takes_s)
            return super().commit(offsets, **options)

    found: list[int] = []
    bench = Bench(lambda event: found.append(event.offset), Slow(message(0), message(1)))
    bench.loop._fence.kafka_answered(-math.inf)
    bench.loop._offsets_at = math.inf
    bench.begin_at(0)
    bench.loop._round()
    assert found == handled


def test_a_partition_without_a_position_asks_with_the_group_s_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to commit: a store of the user's own that begins anew where Kafka is ahead (``replay``)."""
    handled: list[int] = []
    answers = iter([False, True])
    asked: list[tuple[object, ...]] = []

    def owns(_: Membership, *given: object) -> bool:
        asked.append(given)
        return next(answers)

    monkeypatch.setattr(Membership, "owns", owns)
    kafka = Answers()
    kafka.memberid = lambda: "me"  # type: ignore[attr-defined]
    bench = Bench(lambda event: handled.append(event.offset), kafka)
    bench.loop._fence.kafka_answered(-math.inf)
    lane = bench.begin_at(0)
    lane.position, lane.pending = None, [event(3)]
    bench.loop._attempt(lane)
    assert (asked, handled) == ([("me", "t", 0)], [])
    bench.loop._ask_at = 0.0
    bench.loop._attempt(lane)
    assert (len(asked), handled) == (2, [3])


def test_an_offset_that_kafka_refused_is_told_again() -> None:
    """The answer to an asynchronous commit comes later, and no new event comes after it."""
    consumer = Scripted()
    bench = Bench(lambda event: None, consumer)
    lane = bench.begin_at(40)
    lane.sent_position = None
    bench.loop._round()
    bench.loop._offsets_at = 0.0
    bench.loop._round()
    assert consumer.told == [(40, "")]
    bench.loop._committed(KafkaError(KafkaError.REBALANCE_IN_PROGRESS), [TopicPartition("t", 0, 40)])
    bench.loop._offsets_at = 0.0
    bench.loop._round()
    assert consumer.told == [(40, ""), (40, "")]


@pytest.mark.parametrize("is_answered", [False, True])
def test_an_offset_that_kafka_has_not_confirmed_yet_is_told_again_when_the_partition_goes(is_answered: bool) -> None:
    """Nobody hears of the refusal of an asynchronous commit behind the end of the lane."""
    consumer = Scripted()
    bench = Bench(lambda event: None, consumer)
    lane = bench.begin_at(40)
    lane.sent_position = None
    tell_kafka(cast("Consumer", consumer), [lane], wait=False)
    if is_answered:
        bench.loop._committed(None, [TopicPartition("t", 0, 40)])
    bench.assignment.revoked(cast("Consumer", consumer), [TopicPartition("t", 0)])
    assert [offset for offset, _ in consumer.told] == ([40] if is_answered else [40, 40])


def test_an_offset_that_is_refused_for_one_partition_is_told_again_and_the_others_count_as_told() -> None:
    class RefusesOne(Scripted):
        def commit(self, offsets: list[TopicPartition], **options: Any) -> Any:
            super().commit(offsets, **options)
            return [Answered(each.topic, each.partition, each.partition == 1) for each in offsets]

    consumer = RefusesOne()
    bench = Bench(lambda event: None, consumer)
    lanes = [bench.begin_at(position, partition) for partition, position in enumerate((40, 50))]
    for lane in lanes:
        lane.sent_position = None
    assert not tell_kafka(cast("Consumer", consumer), lanes, wait=True)
    assert [lane.has_news() for lane in lanes] == [False, True]


class Answered(NamedTuple):
    """What a commit gives for one partition."""

    topic: str
    partition: int
    error: bool


def test_what_lies_behind_the_last_event_is_noted_when_all_before_it_is_handled() -> None:
    """Kafka is told up to where there is nothing, and not before the reader has handled what stands in between."""
    consumer = Scripted()
    bench = Bench(lambda event: None, consumer)
    lane = bench.begin_at(40)
    lane.pending = [event(41)]
    lane.read_until = 45
    assert (lane.empty_until, lane.has_news()) == (40, False)
    bench.loop._round()
    assert consumer.told == [(42, "empty-until:45;")]
    bench.loop._offsets_at = 0.0
    bench.loop._round()
    assert len(consumer.told) == 1


def test_the_note_says_where_the_group_began_as_long_as_it_has_handled_nothing() -> None:
    consumer = Scripted()
    bench = Bench(lambda event: None, consumer)
    lane = bench.begin_at(40)
    lane.begins_at, lane.read_until = 40, 45
    bench.loop._round()
    assert consumer.told == [(40, "begins-here,empty-until:45;")]
    lane.pending = [event(45)]
    bench.loop._offsets_at = 0.0
    bench.loop._round()
    assert consumer.told[1:] == [(46, "")]


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ("", (40, 40, False, None)),
        ("begins-here;", (40, 40, True, None)),
        ("empty-until:45;", (40, 45, False, None)),
        ("begins-here,empty-until:45;", (40, 45, True, None)),
        ("begins-here;empty-until:45;", (40, 40, True, None)),
        ("empty-until:45;begins-here;", (40, 45, False, None)),
        ("of another client; begins-here;", (40, 40, False, None)),
        ("topic:Ab-_Ef12;", (40, 40, False, "Ab-_Ef12")),
        ("topic:Ab-_Ef12,begins-here,empty-until:45;", (40, 45, True, "Ab-_Ef12")),
        ("begins-here;topic:Ab-_Ef12;", (40, 40, True, None)),
        ("begins-here", (40, 40, False, None)),
        ("handles-from-here;begins-here;", (40, 40, False, None, True)),
        ("topic:Ab-_Ef12,handles-from-here,empty-until:45;", (40, 45, False, "Ab-_Ef12", True)),
        ("handles-from-here", (40, 40, False, None)),
    ],
)
def test_a_note_ends_where_it_says_whatever_comes_behind_it(metadata: str, told: tuple[Any, ...]) -> None:
    """confluent-kafka may give more bytes than the metadata has: perhaps another note's."""
    assert _committed(TopicPartition("t", 0, 40, metadata=metadata)) == Committed(*told)


class Away(MemoryStore):
    """Answers when it likes to."""

    is_away = True

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        if self.is_away:
            raise StoreUnavailable("nobody answers")
        return super().claim(ownership, keys, lease_s)


def test_the_patience_with_a_store_begins_anew_when_it_has_answered() -> None:
    """Two breaks, and in between a handler that fails for longer than the patience: the second one is another trouble."""
    store = Away()

    def book(_: Event) -> None:
        raise ValueError("not now")

    bench = Bench(book, Scripted(), store)
    lane = bench.begin_at(40)
    lane.pending = [event(40)]
    bench.loop._attempt(lane)
    assert lane.troubled_since is not None
    lane.troubled_since -= 3600
    for is_away in (False, True):
        store.is_away, lane.doubtful = is_away, False
        bench.loop._attempt(lane)
    assert (lane.failures[40].attempts, lane.troubles) == (1, 1)


def test_the_patience_begins_anew_when_a_take_has_worked() -> None:
    """The store was there while the handler worked, for longer than the patience: that it goes once more is another trouble."""
    bench = Bench(lambda event: None, Scripted(), Away())
    lane = bench.begin_at(40)
    lane.pending = [event(40)]
    bench.loop._attempt(lane)
    assert lane.troubled_since is not None
    lane.troubled_since -= 3600
    bench.loop._attempt(lane)
    assert (lane.doubtful, lane.troubles) == (True, 2)


def test_the_patience_with_brokers_that_take_no_letter_does_not_begin_anew_with_a_take() -> None:
    """The store has nothing to do with it."""
    bench = Bench(lambda event: None, Scripted())
    lane = bench.begin_at(40)
    lane.pending = [event(40)]
    bench.loop._wait_for_better(lane, BrokerUnreachable("a dead letter was not acknowledged"))
    assert lane.troubled_since is not None
    lane.troubled_since -= 3600
    assert bench.loop._take_again(lane)
    with pytest.raises(BrokerUnreachable):
        bench.loop._wait_for_better(lane, BrokerUnreachable("again"))


def test_a_store_that_breaks_behind_each_take_ends_the_reader() -> None:
    """No try of it lasts, so only the pauses between them can tell: they grow."""
    bench = Bench(lambda event: None, Scripted(), Away())
    lane = bench.begin_at(40)
    lane.pending = [event(40)]

    def tries() -> None:
        for _ in range(100):
            bench.loop._attempt(lane)

    with pytest.raises(StoreUnavailable):
        tries()
    assert lane.waited_s > bench.loop._settings.patience_s


def test_behind_a_store_that_does_not_answer_one_partition_the_loop_polls_before_it_asks_for_the_next() -> None:
    """Each may wait for half a minute until it hears that, and the group would take the reader for dead."""
    store = Away()
    bench = Bench(lambda event: None, Scripted(), store)
    lanes = [bench.begin_at(40, partition) for partition in (0, 1)]
    for lane in lanes:
        lane.pending = [event(40)]
    bench.loop._round()
    assert [lane.troubles for lane in lanes] == [1, 0]
    bench.loop._round()
    assert [lane.troubles for lane in lanes] == [1, 1]


def test_claims_behind_an_event_that_another_reader_holds_run_out() -> None:
    """It may wait for one of them: renewed with each try, both would wait for each other for ever."""
    store = MemoryStore()
    bench = Bench(lambda event: None, Scripted(), store, lease_s=10.0)
    lane = bench.begin_at(40)
    (theirs,) = store.take("t", [1], "the other reader")
    held, behind = (event(offset).entry for offset in (40, 41))
    assert store.claim(theirs, [held._replace(offset=0)], 3600) == [Standing.NEW]
    lane.pending = [event(40), event(41)]
    bench.loop._attempt(lane)
    assert store.claim(theirs, [behind._replace(offset=1)], 3600) == [Standing.HELD]

    def tried() -> list[Standing]:
        bench.loop._attempt(lane)
        return store.claim(theirs, [behind._replace(offset=1)], 3600)

    eventually(tried, [Standing.NEW].__eq__, "the event behind the one that is waited for")
    assert len(lane.pending) == 2


def test_the_patience_begins_anew_when_a_commit_without_an_answer_turns_out_to_have_worked() -> None:
    """Nothing is left to handle then, so nothing else would end the trouble: the next one, hours later, would end the reader."""
    bench = Bench(lambda event: None, Scripted())
    lane = bench.begin_at(40)
    lane.pending = [event(40)]
    bench.loop._wait_for_better(lane, CommitUnknown("no answer"))
    bench.store.claim(lane.ownership, [event(40).entry], 60)
    bench.store.confirm(lane.ownership, [event(40).entry])
    bench.loop._attempt(lane)
    assert (lane.pending, lane.position, lane.doubtful) == ([], 41, False)
    assert lane.troubled_since is None
    assert lane.troubles == 0


def test_a_topic_that_one_broker_does_not_know_is_asked_for_before_the_reader_ends() -> None:
    """One that has just started: what it says passes by itself, and what comes behind it is handled."""
    asked: list[tuple[str, ...]] = []

    class Known:
        """Topics of which another broker knows."""

        @property
        def ids(self) -> Known:
            return self

        def ask(self, topics: tuple[str, ...]) -> dict[str, Future[Any]]:
            asked.append(topics)
            answer: Future[Any] = Future()
            answer.set_result(SimpleNamespace(topic_id="AAAAAAAA"))
            return {"t": answer}

        def compare(self, *_: object) -> None: ...

    handled: list[int] = []
    unknown = Message(topic="t", error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    bench = Bench(lambda event: handled.append(event.offset), Scripted(unknown, message(0)))
    bench.begin_at(0)
    bench.loop._watch = TopicWatch(("t",), cast("SameTopics", Known()))
    for _ in range(3):
        bench.loop._round()
    assert (handled, asked) == ([0], [("t",)])


def test_a_topic_that_nobody_knows_is_asked_for_again_a_moment_later_whatever_comes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that has just started says so twice within a millisecond: that is one and the same answer."""
    asked: list[tuple[str, ...]] = []

    def ask(topics: tuple[str, ...]) -> dict[str, Future[Any]]:
        asked.append(topics)
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return {"t": answer}

    monkeypatch.setattr(topic_watch, "LOOK_AGAIN_S", 3600.0)
    watch = TopicWatch(("t",), cast("SameTopics", SimpleNamespace(ids=SimpleNamespace(ask=ask), compare=None)))
    for _ in range(3):
        watch.ask_soon()
        watch.look()  # asks
        watch.look()  # and judges
    assert asked == [("t",)]
    monkeypatch.setattr(watch, "_ask_at", 0.0)
    watch.look()
    with pytest.raises(TopicMissing):
        watch.look()
