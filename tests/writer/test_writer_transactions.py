"""Transactions on a real broker: all or nothing over topics and consumed offsets, of the newest writer alone."""

# ruff: noqa: PT012  what raises at the end of a transaction's block is what is tested

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.conftest import Fill, Reader, TopicFactory, create_topic
from tests.frozen import frozen
from tests.writer.on_a_loop import OnLoop
from tests.writer.waiting import is_stable, wait_until

from onceflow.broker import EmbeddedBroker
from onceflow.errors import DeliveryFailed, Fenced, TransactionAborted, WriterError
from onceflow.writer.coordination import State
from onceflow.writer.delivery import Fate
from onceflow.writer.marker import PROGRESS_BYTES
from onceflow.writer.sender import Sender
from onceflow.writer.writer import Writer

MakeWriter = Callable[..., Writer]
LATE_MS = 8000
PATIENCE_S = 60.0
COMPRESSED = {"compression.type": "gzip"}  # so that the broker alone can tell what is too large for a topic
_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A transactional id that no other test has."""
    return f"service-{next(_numbers)}"


@pytest.fixture
def consumer(broker: EmbeddedBroker) -> Iterator[Callable[[str, str], Consumer]]:
    """Makes members of a group, which begin at its committed offsets."""
    made: list[Consumer] = []

    def make(group: str, topic: str) -> Consumer:
        options = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
        new = Consumer({**options, "enable.auto.commit": False, "isolation.level": "read_committed"})
        new.subscribe([topic])
        made.append(new)
        return new

    yield make
    for each in made:
        each.close()


def values(read: Reader, topic: str) -> list[str]:
    return [(m.value() or b"").decode() for m in read(topic)]


def test_a_block_is_visible_in_all_its_topics_or_in_none(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str
) -> None:
    one, two = topic(2), topic()
    shop = writer(name)
    with shop.transaction() as good:
        for n in range(10):
            shop.send(one, f"{n}", id=f"a{n}", key=str(n))
        shop.send(two, "sum", id="s")
    with pytest.raises(ZeroDivisionError), shop.transaction() as bad:
        shop.send(one, "never", id="n1").result()
        shop.send(two, "never", id="n2")
        _ = 1 / 0
    with shop.transaction() as next_one:
        shop.send(two, "next", id="s2")
    assert (good.committed, bad.committed, next_one.committed) == (True, False, True)
    assert sorted(values(read, one)) == [str(n) for n in range(10)]
    assert values(read, two) == ["sum", "next"]
    assert "never" in [(m.value() or b"").decode() for m in read(one, committed=False)]  # it was there, and aborted


def test_consumed_offsets_move_with_the_commit_and_not_without(
    writer: MakeWriter,
    topic: TopicFactory,
    fill: Fill,
    read: Reader,
    name: str,
    consumer: Callable[[str, str], Consumer],
) -> None:
    source, target = topic(), topic()
    shop, orders = writer(name), consumer(name, source)
    wait_until(lambda: orders.poll(0.02) is None and bool(orders.assignment()))
    fill(source, [(None, str(n)) for n in range(6)])

    def committed() -> int:
        return orders.committed([TopicPartition(source, 0)], timeout=60)[0].offset

    def take(count: int) -> None:
        for message in orders.consume(count, timeout=60):
            assert message.error() is None
            shop.send(target, message.value(), position=(source, 0, message.offset() or 0))

    with pytest.raises(KeyError), shop.transaction(consumer=orders) as failed:
        take(2)
        failed.consumed(orders)
        raise KeyError
    assert committed() < 0
    orders.seek(TopicPartition(source, 0, 0))
    with shop.transaction(consumer=orders) as done:
        take(2)
        done.consumed(orders)
    assert committed() == 2
    with shop.transaction(consumer=orders) as named:
        take(4)
        named.consumed(orders, {(source, 0): 6})
    assert committed() == 6
    assert values(read, target) == [str(n) for n in range(6)]


def test_a_member_that_lost_its_partitions_cannot_commit_them(
    writer: MakeWriter,
    topic: TopicFactory,
    fill: Fill,
    read: Reader,
    name: str,
    consumer: Callable[[str, str], Consumer],
) -> None:
    source, target = topic(), topic()
    fill(source, [(None, "x")])
    shop, orders = writer(name), consumer(name, source)
    message = orders.consume(1, timeout=60)[0]
    membership = orders.consumer_group_metadata()
    orders.unsubscribe()
    orders.close()
    follower = consumer(name, source)
    assert len(follower.consume(1, timeout=60)) == 1
    with pytest.raises(TransactionAborted, match="consumed offsets"), shop.transaction():
        shop.send(target, message.value(), id="1")
        shop._with_transactions().add_offsets([TopicPartition(source, 0, 1)], membership)
    with shop.transaction():
        shop.send(target, "still alive", id="2")
    assert values(read, target) == ["still alive"]


def test_the_second_instance_fences_the_first_which_never_fences_back(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str
) -> None:
    target = topic()
    first = writer(name)
    with first.transaction(progress="1"):
        first.send(target, "1", id="1")
    with pytest.raises(Fenced), first.transaction() as lost:
        first.send(target, "zombie", id="z")
        second = writer(name)
        assert second.progress == "1"
    assert lost.committed is False
    for _ in range(2):
        with pytest.raises(Fenced), first.transaction():
            first.send(target, "zombie", id="z")
    with second.transaction():
        second.send(target, "2", id="2")
    assert values(read, target) == ["1", "2"]


def test_two_instances_in_turn_are_each_stopped_by_the_next(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str
) -> None:
    target = topic()
    writers = []
    for n in range(4):
        writers.append(writer(name))
        with writers[-1].transaction(progress=str(n)):
            writers[-1].send(target, str(n), id=str(n))
    for old in writers[:-1]:
        with pytest.raises(Fenced), old.transaction():
            old.send(target, "zombie", id="z")
    with writers[-1].transaction():
        writers[-1].send(target, "last", id="last")
    assert values(read, target) == ["0", "1", "2", "3", "last"]
    assert writers[-1].progress == "3"


def test_a_transaction_that_times_out_is_aborted_and_the_writer_goes_on(
    writer: MakeWriter, read: Reader, name: str, punctual: EmbeddedBroker
) -> None:
    broker = punctual
    create_topic(broker, "late")
    shop = writer(name, on=broker.bootstrap_servers, kafka={"transaction.timeout.ms": LATE_MS})
    with pytest.raises(TransactionAborted) as caught, shop.transaction() as late:
        shop.send("late", "late", id="1").result()
        wait_until(lambda: is_stable(broker, "late"))
    assert caught.value.retriable
    assert late.committed is False

    def runs_again() -> bool:
        """In the same few seconds, which a busy machine may need more of."""
        began = time.monotonic()
        try:
            with shop.transaction():
                shop.send("late", "again", id="1")
        except TransactionAborted as error:
            if not error.retriable or time.monotonic() - began < LATE_MS / 1000:
                raise
            return False
        return True

    wait_until(runs_again)
    assert [m.value() for m in read("late", on=broker)] == [b"again"]


def test_a_block_behind_one_that_was_aborted_with_events_on_their_way_is_not_refused(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str
) -> None:
    """librdkafka drops what waits, and leaves gaps in the sequence numbers of its epoch."""
    target = topic(8)
    shop = writer(name)
    rounds, events = range(10), range(150)
    outstanding = 0
    for turn in rounds:
        with pytest.raises(ZeroDivisionError), shop.transaction():
            sent = [shop.send(target, b"x" * 2000, id=f"never-{turn}-{n}", key=str(n)) for n in events]
            sent[0].result()
            outstanding += sum(not each.done for each in sent)
            _ = 1 / 0
        with shop.transaction():
            for n in events:
                shop.send(target, f"{turn}-{n}", id=f"{turn}-{n}", key=str(n))
    assert outstanding
    assert sorted(values(read, target)) == sorted(f"{turn}-{n}" for turn in rounds for n in events)


def test_a_refused_event_aborts_its_transaction_alone(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str
) -> None:
    small, target = topic(config={"max.message.bytes": "2000"}), topic()
    shop = writer(name, kafka=COMPRESSED)
    meet(shop, small)
    with pytest.raises(DeliveryFailed, match="shop big") as caught, shop.transaction() as bad:
        shop.send(target, "never", id="1")
        shop.send(small, os.urandom(5000), id="big")
    assert [each.identity.id for each in caught.value.fields["failures"] if each.refused] == ["big"]
    assert not caught.value.fatal  # the next block is taken
    assert bad.committed is False
    with shop.transaction():
        shop.send(target, "next", id="2")
    assert (values(read, target), values(read, small)) == (["next"], ["met"])


def meet(shop: Writer, topic: str) -> None:
    """From then on no batch is larger than the topic takes, so that what is too large is alone in its own."""
    with shop.transaction():
        shop.send(topic, "met", id="met")


def test_an_event_that_may_have_shared_its_batch_is_not_called_at_fault(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str
) -> None:
    """Compressed it is taken; the batch was too large for what another event is."""
    small = topic(config={"max.message.bytes": "20000"})
    shop = writer(name, kafka={**COMPRESSED, "linger.ms": 60_000})
    with pytest.raises(TransactionAborted), shop.transaction():
        shop.send(small, b"x" * 50_000, id="innocent")
        shop.send(small, os.urandom(50_000), id="big")
    with pytest.raises(DeliveryFailed) as caught, shop.transaction():
        shop.send(small, b"x" * 50_000, id="innocent")
        shop.send(small, os.urandom(50_000), id="big")
    assert [each.identity.id for each in caught.value.fields["failures"] if each.refused] == ["big"]
    with shop.transaction():
        shop.send(small, b"x" * 50_000, id="innocent")
    assert [len(value) for value in values(read, small)] == [50_000]


@pytest.mark.parametrize("writer", [Writer, OnLoop], indirect=True, ids=["Writer", "AsyncWriter"])
def test_an_event_that_the_broker_refuses_is_told_whatever_was_sent_behind_it(
    broker: EmbeddedBroker,
    writer: MakeWriter,
    topic: TopicFactory,
    read: Reader,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka refuses what follows before it reports the event: whoever ran the block again would do so without end."""
    small = topic(config={"max.message.bytes": "20000"})
    shop = writer(name, kafka=COMPRESSED)
    meet(shop, small)
    monkeypatch.setattr("onceflow.writer.sender._SERVE_EVERY", sys.maxsize)  # a Writer does not hear of it before
    with pytest.raises(DeliveryFailed, match="shop big") as caught, shop.transaction() as bad:
        shop.send(small, b"never", id="before")  # which asks for the topic
        shop.flush()
        with frozen(broker):  # so that one at least is behind the big one
            shop.send(small, os.urandom(50_000), id="big")
            shop.send(small, b"never", id="0")
        for n in itertools.islice(itertools.count(1), 200_000):  # until it is refused
            shop.send(small, b"never", id=str(n))
    assert not caught.value.retriable
    assert bad.committed is False
    failures = caught.value.fields["failures"]
    assert [each.identity.id for each in failures if each.refused] == ["big"]
    assert Fate.UNKNOWN not in {each.fate for each in failures}
    # Whether those behind it had left yet is a race of librdkafka's own thread.
    behind = {each.reason for each in failures if not each.refused}
    assert behind
    assert behind <= {"taken back before it was sent", "taken back on its way to the broker"}
    with shop.transaction():
        shop.send(small, "next", id="next")
    assert values(read, small) == ["met", "next"]


@pytest.mark.parametrize("writer", [OnLoop], indirect=True, ids=["AsyncWriter"])
def test_all_that_is_taken_back_is_told_though_another_thread_does_it(
    broker: EmbeddedBroker, writer: MakeWriter, topic: TopicFactory, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends is told of the refused event as soon as the other thread has heard of it."""
    begins, is_told, take_back = threading.Event(), threading.Event(), Sender._take_back

    def held(sender: Sender) -> None:
        begins.set()
        assert is_told.wait(PATIENCE_S)
        take_back(sender)

    small = topic(config={"max.message.bytes": "20000"})
    shop = writer(name, kafka=COMPRESSED)
    meet(shop, small)
    monkeypatch.setattr(Sender, "_take_back", held)
    with pytest.raises(DeliveryFailed, match="shop big") as caught, shop.transaction():
        shop.send(small, b"never", id="before")  # which asks for the topic
        shop.flush()
        with frozen(broker):
            shop.send(small, os.urandom(50_000), id="big")
            shop.send(small, b"never", id="behind")
        assert begins.wait(PATIENCE_S)
        try:
            shop.send(small, b"never", id="refused at once")
        finally:
            is_told.set()
    assert [each.identity.id for each in caught.value.fields["failures"]] == ["big", "behind"]


def test_it_is_told_too_where_the_consumed_offsets_are_refused_for_it(
    writer: MakeWriter,
    topic: TopicFactory,
    fill: Fill,
    name: str,
    consumer: Callable[[str, str], Consumer],
) -> None:
    source, small = topic(), topic(config={"max.message.bytes": "20000"})
    fill(source, [(None, "x")])
    shop, orders = writer(name, kafka=COMPRESSED), consumer(name, source)
    meet(shop, small)
    wait_until(lambda: orders.poll(0.02) is not None)
    with pytest.raises(DeliveryFailed, match="shop big") as caught, shop.transaction(consumer=orders) as bad:
        with pytest.raises(DeliveryFailed):
            shop.send(small, os.urandom(50_000), id="big").result()
        bad.consumed(orders)
    assert isinstance(caught.value.__cause__, TransactionAborted)
    assert orders.committed([TopicPartition(source, 0)], timeout=60)[0].offset < 0


def test_a_block_that_consumes_and_sends_commits_the_offsets_too_or_nothing(
    writer: MakeWriter,
    topic: TopicFactory,
    fill: Fill,
    read: Reader,
    name: str,
    consumer: Callable[[str, str], Consumer],
) -> None:
    source, target = topic(), topic()
    fill(source, [(None, "x")])
    shop, orders = writer(name), consumer(name, source)
    with pytest.raises(WriterError, match="has not committed the offsets"), shop.transaction(consumer=orders):
        wait_until(lambda: orders.poll(0.02) is not None)
        shop.send(target, "torn", id="1")
    with shop.transaction(consumer=orders) as nothing_new:
        shop.send(target, "of its own", id="2")
    assert nothing_new.committed
    orders.seek(TopicPartition(source, 0, 0))
    with shop.transaction(consumer=orders):  # consumes, and sends nothing: it comes again
        wait_until(lambda: orders.poll(0.02) is not None)
    assert values(read, target) == ["of its own"]


def test_a_block_that_catches_that_its_offsets_are_refused_ends_with_it(
    writer: MakeWriter,
    topic: TopicFactory,
    fill: Fill,
    read: Reader,
    name: str,
    consumer: Callable[[str, str], Consumer],
) -> None:
    source, target = topic(), topic()
    fill(source, [(None, "x")])
    shop, orders = writer(name), consumer(name, source)
    wait_until(lambda: orders.poll(0.02) is not None)
    with pytest.raises(TransactionAborted, match="went to another member"), shop.transaction(consumer=orders) as bad:
        shop.send(target, "another's", id="1")
        with pytest.raises(TransactionAborted):
            bad.consumed(orders, {(source, 0): 1, (source, 1): 1})  # that partition is not its own
    assert bad.committed is False
    with shop.transaction(consumer=orders) as good:
        shop.send(target, "its own", id="2")
        good.consumed(orders, {(source, 0): 1})
    assert values(read, target) == ["its own"]


def test_a_transaction_is_for_one_block(writer: MakeWriter, topic: TopicFactory, read: Reader, name: str) -> None:
    """What it says, of its commit and of what was consumed, can be of one alone."""
    target, shop = topic(), writer(name)
    transaction = shop.transaction()
    with transaction:
        shop.send(target, "1", id="1")
        with pytest.raises(WriterError, match="has had its block"), transaction:
            pass
    with pytest.raises(WriterError, match="has had its block"), transaction:
        shop.send(target, "never", id="2")
    assert transaction.committed is True
    assert values(read, target) == ["1"]


def test_a_block_is_aborted_whatever_comes_while_it_is_asked_why_it_failed(
    writer: Callable[..., Writer], topic: TopicFactory, read: Reader, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, shop = topic(), writer(name)

    def interrupted() -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transactions_of(shop), "reason", interrupted)
        with pytest.raises(KeyboardInterrupt), shop.transaction():
            raise DeliveryFailed("the user's own")
    with shop.transaction():
        shop.send(target, "next", id="1")
    assert values(read, target) == ["next"]


def transactions_of(writer: Writer | OnLoop) -> Any:
    return (writer if isinstance(writer, Writer) else writer._writer._writer)._with_transactions()


def test_events_that_were_taken_back_leave_no_gap_for_the_next_transaction(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str
) -> None:
    """librdkafka has counted them: in the same epoch the next one's sequence would skip theirs, and the broker refuse it."""
    target = topic()
    shop = writer(name, kafka={"linger.ms": 60_000})
    with shop.transaction():
        shop.send(target, "first", id="1", partition=0)
    transactions_of(shop).sender.timeout_s = 1.0
    # Its name says what a broker says of a right that is lacking, and the block may be run again all the same.
    with pytest.raises(TransactionAborted, match="shop card authorization failed to"), shop.transaction():
        shop.send(target, "never", id="card authorization failed", partition=0).result()  # lingers until it is given up
    with shop.transaction():
        shop.send(target, "next", id="3", partition=0)
    assert values(read, target) == ["first", "next"]


def test_events_go_into_transactions_and_transactions_do_not_nest(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str
) -> None:
    target = topic()
    shop = writer(name)
    with pytest.raises(WriterError, match="inside of transactions"):
        shop.send(target, "x", id="1")
    with shop.transaction():
        shop.send(target, "x", id="1")
        with pytest.raises(WriterError, match="open already"), shop.transaction():
            pass
    with pytest.raises(WriterError, match="no commit is in doubt"):
        shop.settle()
    with pytest.raises(WriterError, match="bytes"):
        shop.transaction(progress="x" * (PROGRESS_BYTES + 1))
    assert values(read, target) == ["x"]


def test_a_writer_that_is_closed_in_a_transaction_aborts_it(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str
) -> None:
    target = topic()
    shop = writer(name)
    transaction = shop.transaction().__enter__()
    shop.send(target, "x", id="1").result()
    shop.close()
    assert transaction.committed is False
    assert values(read, target) == []


def test_the_progress_is_that_of_the_last_commit(writer: MakeWriter, topic: TopicFactory, name: str) -> None:
    shop = writer(name)
    assert shop.progress == ""
    with shop.transaction(progress="line 10"):
        pass
    with shop.transaction():
        shop.send(topic(), "x", id="1")
    with pytest.raises(KeyError), shop.transaction(progress="line 20"):
        raise KeyError
    assert shop.progress == "line 10"
    assert writer(name).progress == "line 10"


def test_two_that_start_at_the_same_moment_never_both_go_on(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str
) -> None:
    """A looks and takes the id back between B's fence and B's claim."""
    target = topic()
    old = writer(name)
    transactions = writer(name)._with_transactions()
    with pytest.raises(Fenced), old.transaction():
        old.send(target, "zombie", id="z")
    middle = writer(name)  # opened, and fenced by the next one, which has not claimed yet
    late = Writer(bootstrap_servers=middle._settings.cluster.bootstrap_servers, source="shop", transactional_id=name)
    claims = middle._with_transactions()
    rival = type(claims)(name, claims._ledger, late._make_sender, 60)
    rival._fence()
    rival.marker = rival._ledger.read()
    with pytest.raises(TransactionAborted), middle.transaction():
        middle.send(target, "aborted", id="1")
    with middle.transaction():
        middle.send(target, "middle", id="2")
    with pytest.raises(Fenced):
        rival._claim()
    assert rival.state is State.STOPPED
    assert transactions.state is not State.OPEN
    assert values(read, target) == ["middle"]
    rival.sender.close()


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("consumer must be a confluent_kafka.Consumer, not str", {"consumer": "c"}),
        ("progress must be a text, not int", {"progress": 5}),
        ("progress holds a lone surrogate", {"progress": "\ud800"}),
    ],
)
def test_a_transaction_takes_a_consumer_and_a_text(
    writer: MakeWriter, name: str, what: str, wrong: dict[str, Any]
) -> None:
    with pytest.raises(WriterError, match=what):
        writer(name).transaction(**wrong)
