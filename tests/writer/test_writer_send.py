"""Events on a real broker: named, in order, acknowledged one by one, and never lost in silence."""

# ruff: noqa: PT012  what raises at the end of a transaction's block is what is tested

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Producer
from tests.conftest import Reader, TopicFactory, create_topic
from tests.frozen import frozen
from tests.writer.waiting import wait_until

from onceflow.broker import EmbeddedBroker
from onceflow.errors import (
    BrokerUnreachable,
    DeliveryFailed,
    EventRefused,
    RecordTooLarge,
    TopicMissing,
    WriterClosed,
    WriterError,
)
from onceflow.events import EventIdentity, identity_of
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.partitioner import partition_for_keys
from onceflow.writer import limits, sender
from onceflow.writer.delivery import Delivered, Delivery, Fate
from onceflow.writer.limits import TopicLimits
from onceflow.writer.sender import Sender
from onceflow.writer.writer import Writer

MakeWriter = Callable[..., Writer]
SMALL = {"max.message.bytes": "2000"}
NOBODY = "127.0.0.1:1"


def test_each_delivery_says_where_its_event_is(writer: MakeWriter, topic: TopicFactory, read: Reader) -> None:
    name = topic(3)
    shop = writer()
    events = [shop.send(name, f"v{n}", key=f"k{n % 7}", id=f"e{n}", type="sale", sequence=n) for n in range(500)]
    shop.flush()
    records = {(m.partition(), m.offset()): m for m in read(name)}
    assert len(records) == 500
    for number, event in enumerate(events):
        where = event.result()
        record = records[where.partition, where.offset]
        assert where == Delivered(name, where.partition, where.offset, record.timestamp()[1], event.identity)
        assert identity_of(record.headers()) == EventIdentity("shop", f"e{number}", "sale", number)
        assert (record.key(), record.value()) == (f"k{number % 7}".encode(), f"v{number}".encode())


def test_order_is_kept_per_key_and_keys_go_where_java_sends_them(
    writer: MakeWriter, topic: TopicFactory, read: Reader
) -> None:
    name = topic(4)
    with writer() as shop:
        for n in range(4000):
            shop.send(name, str(n), key=f"k{n % 13}", position=("orders", 0, n), headers=[("trace", b"t")])
    records = sorted(read(name), key=lambda m: (m.partition() or 0, m.offset() or 0))
    for key in {m.key() for m in records}:
        numbers = [int(m.value() or b"") for m in records if m.key() == key]
        assert numbers == sorted(numbers)
        assert len({m.partition() for m in records if m.key() == key}) == 1
    keys = [m.key() for m in records]
    assert partition_for_keys(pa.array(keys), 4).tolist() == [m.partition() for m in records]


def test_a_tombstone_and_an_empty_value_are_two_things(writer: MakeWriter, topic: TopicFactory, read: Reader) -> None:
    name = topic()
    with writer() as shop:
        shop.send(name, None, key="a", id="1")
        shop.send(name, b"", key="a", id="2")
    assert [m.value() for m in read(name)] == [None, b""]


def test_what_is_wrong_with_one_event_concerns_that_event_alone(
    writer: MakeWriter, topic: TopicFactory, read: Reader
) -> None:
    name = topic()
    with writer(kafka={"max.request.size": 5000}) as shop:
        with pytest.raises(RecordTooLarge, match="shop big"):
            shop.send(name, b"x" * 10_000, id="big")
        with pytest.raises(TopicMissing, match="no-such-topic"):
            shop.send("no-such-topic", b"x", id="1")
        with pytest.raises(TopicMissing) as nearly:
            shop.send(name.upper(), b"x", id="1")
        assert f"did you mean {name}" in nearly.value.action
        with pytest.raises(TopicMissing):
            shop.send("no such topic", b"x", id="1")
        with pytest.raises(EventRefused, match="either id or position"):
            shop.send(name, b"x")
        shop.send(name, b"good", id="2")
    assert [m.value() for m in read(name)] == [b"good"]


@pytest.mark.parametrize("is_defended", [True, False])
def test_a_misspelt_topic_is_not_made_where_brokers_make_what_they_are_asked_for(
    writer: MakeWriter, punctual: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, *, is_defended: bool
) -> None:
    name = f"misspelt-{is_defended}"
    if not is_defended:  # the control: the event goes to a topic that nobody reads
        options = ClusterSettings.for_librdkafka
        undefended = {"allow.auto.create.topics": True}
        monkeypatch.setattr(ClusterSettings, "for_librdkafka", lambda settings: options(settings) | undefended)
    with writer(on=punctual.bootstrap_servers) as shop:
        if is_defended:
            with pytest.raises(TopicMissing):
                shop.send(name, b"x", id="1")
        else:
            shop.send(name, b"x", id="1")
    admin = ClusterAdmin(ClusterSettings.of(punctual.bootstrap_servers))
    assert (name in admin.partitions()) is not is_defended


def test_a_writer_that_another_thread_closes_while_it_opens_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Writer(bootstrap_servers=NOBODY)
    opens = shop.open

    def open_and_be_closed() -> Writer:
        opens()
        shop.close()
        return shop

    monkeypatch.setattr(shop, "open", open_and_be_closed)
    with pytest.raises(WriterClosed):
        shop.send("orders", b"x", id="1")


def test_a_writer_that_another_thread_closes_while_its_producer_is_made_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event was handed over behind the close, and nobody waited for it."""
    shop = Writer(bootstrap_servers=NOBODY)
    make = shop._make_sender
    closing = threading.Thread(target=shop.close)

    def made_while_it_is_closed() -> Sender:
        closing.start()
        wait_until(lambda: shop._is_closing)
        return make()

    monkeypatch.setattr(shop, "_make_sender", made_while_it_is_closed)
    with pytest.raises(WriterClosed):
        shop.send("orders", b"x", id="1")
    closing.join(60)
    assert not closing.is_alive()


def test_a_writer_that_a_signals_handler_closes_while_its_producer_is_made_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Writer(bootstrap_servers=NOBODY)
    make = shop._make_sender

    def made_while_it_is_closed() -> Sender:
        shop.close()
        return make()

    monkeypatch.setattr(shop, "_make_sender", made_while_it_is_closed)
    with pytest.raises(WriterClosed):
        shop.send("orders", b"x", id="1")


def test_what_a_signals_handler_sends_while_the_writer_opens_is_sent(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, shop = topic(), Writer(bootstrap_servers=broker.bootstrap_servers, source="shop")
    make, is_heard, by_the_handler = shop._make_sender, threading.Event(), list[Delivery]()

    def made_while_a_signal_comes() -> Sender:
        if not is_heard.is_set():
            is_heard.set()
            by_the_handler.append(shop.send(name, "the handler's", id="2"))
        return make()

    monkeypatch.setattr(shop, "_make_sender", made_while_a_signal_comes)
    with shop:
        shop.send(name, "1", id="1")
    assert by_the_handler[0].done, "the end of the writer has waited for it, too"
    assert [m.value() for m in read(name)] == [b"the handler's", b"1"]


def test_a_flush_waits_for_what_was_sent_so_far_while_others_send_on(
    writer: MakeWriter, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it has no end: there is always an event that was sent a moment ago."""
    name, most, sent = topic(), 200, list[int]()
    with writer() as shop:
        first = shop.send(name, "first", id="first")
        sending = shop.sender()
        hurry = sending._hurry

        def hurry_while_another_one_sends() -> None:
            hurry()
            if len(sent) < most:
                sent.append(len(sent))
                shop.send(name, "more", id=f"more-{len(sent)}")

        monkeypatch.setattr(sending, "_hurry", hurry_while_another_one_sends)
        shop.flush()
        assert first.done
        assert len(sent) < most
        monkeypatch.undo()


def test_a_topic_of_which_the_broker_has_not_heard_yet(
    broker: EmbeddedBroker, writer: MakeWriter, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was created a moment ago, as far as its owner knows: here, between two looks."""
    name = "just-created"
    monkeypatch.setattr("onceflow.writer.sender.SURE_S", 60.0)
    looks: list[str] = []
    look_up = Sender._look_up

    def created_after_the_first(sender: Sender, topic: str) -> KafkaError | None:
        looks.append(topic)
        answer = look_up(sender, topic)
        if len(looks) == 1:
            create_topic(broker, name)
        return answer

    monkeypatch.setattr(Sender, "_look_up", created_after_the_first)
    with writer() as shop:
        shop.send(name, b"first", id="1")
    assert len(looks) > 1
    assert [m.value() for m in read(name)] == [b"first"]


def test_threads_that_open_one_writer_together_share_one_producer(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    made: list[Sender] = []
    make = Writer._make_sender

    two = threading.Barrier(2)

    def counted(shop: Writer) -> Sender:
        with suppress(threading.BrokenBarrierError):  # nobody else comes, as it should be
            two.wait(0.5)
        made.append(make(shop))
        return made[-1]

    monkeypatch.setattr(Writer, "_make_sender", counted)
    shop = Writer(bootstrap_servers=broker.bootstrap_servers, source="shop")
    together = threading.Barrier(8)

    def first(n: int) -> None:
        together.wait(60)
        shop.send(name, str(n), id=str(n))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(first, range(8)))
    shop.close()
    assert len(made) == 1
    assert len(read(name)) == 8


def test_nothing_is_handed_over_once_what_is_outstanding_is_taken_back(
    writer: MakeWriter, topic: TopicFactory, read: Reader
) -> None:
    """Another thread has given up, and no report of a failure has come in yet."""
    name = topic()
    shop = writer()
    shop.send(name, b"x", id="1").result()
    shop.sender().give_up()
    with pytest.raises(DeliveryFailed, match="nothing follows"):
        shop.send(name, b"x", id="2")
    assert len(read(name)) == 1


@pytest.mark.timeout(120)
def test_what_was_to_be_taken_back_when_ctrl_c_came_is_taken_back_by_who_comes_next(
    writer: MakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is waited for, and nobody ever answers."""
    shop = writer(on=NOBODY)
    sender, take_back = shop.sender(), Sender._take_back
    interrupted: list[bool] = []
    sender.known["orders"] = range(-1, 1)
    event = shop.send("orders", b"x", id="1")

    def interrupt(sender: Sender) -> None:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        take_back(sender)

    monkeypatch.setattr(Sender, "_take_back", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sender.give_up()
    assert event.failure is None
    with pytest.raises(DeliveryFailed):
        shop.close()
    assert event.failure is not None


def test_what_is_sent_while_the_writer_ends_is_written_or_refused(
    writer: MakeWriter, topic: TopicFactory, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread sends when nothing is outstanding any more, and before the producer is closed."""
    name, flush = topic(), Sender.flush
    shop = writer(kafka={"linger.ms": 60_000})
    taken = []

    def overtaken(sender: Sender) -> None:
        flush(sender)
        with suppress(WriterClosed):
            taken.append(shop.send(name, "late", id="late"))

    monkeypatch.setattr(Sender, "flush", overtaken)
    shop.send(name, "first", id="first")
    shop.close()
    assert [m.value() for m in read(name)] == [b"first", *[b"late" for _ in taken]]


@contextmanager
def heard_behind(value: str, handler: Callable[[], object], patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A signal comes while librdkafka takes the event of this ``value``, and is heard as soon as it has."""

    class Disturbed(Producer):
        def produce(self, *arguments: Any) -> None:
            super().produce(*arguments)
            if arguments[1] == value:
                signal.raise_signal(signal.SIGUSR1)

    patch.setattr("onceflow.writer.sender.Producer", Disturbed)
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_event_that_was_taken_when_a_signal_came_is_waited_for(
    writer: MakeWriter, topic: TopicFactory, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()

    def interrupt() -> None:
        raise KeyboardInterrupt

    lingering = {"linger.ms": 60_000}
    with (
        heard_behind("taken", interrupt, monkeypatch),
        pytest.raises(KeyboardInterrupt),
        writer(kafka=lingering) as shop,
    ):
        shop.send(name, "taken", id="1")
    assert [m.value() for m in read(name)] == [b"taken"]


@pytest.mark.timeout(120)
def test_a_signals_handler_may_send_while_the_topics_limit_is_asked_for(
    writer: MakeWriter, topic: TopicFactory, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event is the first one there as well, and it asks itself: who was interrupted cannot answer it."""
    name, shop = topic(), writer()
    asked: list[str] = []
    ask = limits._limit_of

    def interrupted(topic: str, connection: Mapping[str, Any]) -> int | None:
        if not asked:
            asked.append(topic)
            shop.send(topic, "the handler's", id="2")
        return ask(topic, connection)

    monkeypatch.setattr(limits, "_limit_of", interrupted)
    shop.send(name, "1", id="1")
    shop.close()
    assert {m.value() for m in read(name)} == {b"1", b"the handler's"}


def test_a_signals_handler_may_send(
    writer: MakeWriter, topic: TopicFactory, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    with heard_behind("1", lambda: shop.send(name, "the handler's", id="2"), monkeypatch), writer() as shop:
        shop.send(name, "1", id="1")
    assert [m.value() for m in read(name)] == [b"1", b"the handler's"]


def test_a_closed_writer_sends_nothing(writer: MakeWriter, topic: TopicFactory) -> None:
    shop = writer()
    shop.close()
    shop.close()
    for use in (lambda: shop.send(topic(), b"x", id="1"), shop.flush, shop.open):
        with pytest.raises(WriterClosed):
            use()


def test_transactions_need_a_transactional_id(writer: MakeWriter) -> None:
    with pytest.raises(WriterError, match="no transactional_id"):
        writer().transaction()


def test_a_full_buffer_waits_and_loses_nothing(writer: MakeWriter, topic: TopicFactory, read: Reader) -> None:
    name = topic()
    with writer(kafka={"queue.buffering.max.messages": 10}) as shop:
        for n in range(2000):
            shop.send(name, str(n), id=str(n))
    assert [int(m.value() or b"") for m in read(name)] == list(range(2000))


def test_control_plain_confluent_kafka_raises_buffer_error_there(topic: TopicFactory, broker: EmbeddedBroker) -> None:
    servers = broker.bootstrap_servers
    plain = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 10, "linger.ms": 1000})
    name = topic()
    with pytest.raises(BufferError):
        for n in range(2000):
            plain.produce(name, str(n))
    plain.purge()
    plain.flush(10)


def watch_librdkafka_alone(shop: Writer, bad: Delivery, behind: Sequence[Delivery]) -> None:
    """Takes in what comes, but takes nothing back as the writer would; ``behind`` has its chance to be written wrongly.

    Those that were on their way are answered. Those that were not are decided by nobody: after the refusal librdkafka sends
    nothing more, and with message.timeout.ms=0 it gives nothing up.
    """
    sender = shop.sender()
    while not bad.done:
        sender._poll(0.1)
    end = time.monotonic() + 2
    while not all(each.done for each in behind) and time.monotonic() < end:
        sender._poll(0.1)


def test_nothing_is_written_behind_an_event_that_the_broker_refuses(
    writer: MakeWriter, topic: TopicFactory, read: Reader, broker: EmbeddedBroker
) -> None:
    name = topic(config=SMALL)
    # Compressed, so that the broker alone can tell what is too large.
    shop = writer(kafka={"linger.ms": 0, "batch.num.messages": 1, "compression.type": "gzip"})
    for n in range(20):
        shop.send(name, str(n), id=str(n)).result()
    with frozen(broker):  # it answers when all of them are on their way
        bad = shop.send(name, os.urandom(5000), id="bad")
        behind = [shop.send(name, str(n), id=str(n)) for n in range(20, 25)]
    watch_librdkafka_alone(shop, bad, behind)
    with pytest.raises(DeliveryFailed) as caught:
        shop.send(name, "more", id="more")
    assert caught.value.fatal
    failures = caught.value.fields["failures"]
    assert [each.identity.id for each in failures if each.refused and each.identity.id == "bad"] == ["bad"]
    assert bad.failure is not None
    assert bad.failure.fate is Fate.NOT_WRITTEN
    with pytest.raises(DeliveryFailed, match="shop bad"):
        shop.close()
    assert [int(m.value() or b"") for m in read(name)] == list(range(20))
    # Every event is either in the topic or in the error.
    assert {each.identity.id for each in failures} == {"bad", *map(str, range(20, 25))}


def test_while_a_block_is_aborted_nothing_is_taken_back_from_librdkafka(writer: MakeWriter) -> None:
    """It reports what it drops, and waits for what is on its way, which has its sequence numbers already."""
    sender = writer(on=NOBODY).sender()
    sender.known["orders"] = range(-1, 1)
    dropped, on_its_way = (Delivery(sender, "orders", "shop", name) for name in ("1", "2"))
    for each in (dropped, on_its_way):
        sender.put(each, b"x", None, [], 0, 0)
    assert sender.stop() is False
    dropped.abandon("purged by the abort")
    sender.serve(0)
    assert (dropped.done, on_its_way.done) == (True, False)
    assert sender.stop() is True


def test_control_plain_confluent_kafka_lets_later_events_overtake(
    topic: TopicFactory, read: Reader, broker: EmbeddedBroker
) -> None:
    name = topic(config=SMALL)
    servers = broker.bootstrap_servers
    plain = Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 1}
    )
    for value in (b"1", b"x" * 5000, b"3"):
        plain.produce(name, value)
    assert plain.flush(60) == 0
    assert [m.value() for m in read(name)] == [b"1", b"3"]


class ChangedMeanwhile(dict[Delivery, bool]):
    """While somebody begins to look at it, another thread sends one more event; three times."""

    others: list[Delivery]

    def __iter__(self) -> Iterator[Delivery]:
        found = super().__iter__()
        if self.others:
            self[self.others.pop()] = True
        return found


def test_the_oldest_event_is_found_while_other_threads_send() -> None:
    """That ended the thread that serves an AsyncWriter: its events were never answered."""
    sender = Sender({"bootstrap.servers": NOBODY}, 1.0, TopicLimits(dict, {}))
    first, *others = [Delivery(sender, "t", "shop", str(number)) for number in range(4)]
    sender.pending = pending = ChangedMeanwhile({first: True})
    pending.others = others
    assert sender._is_overdue(), "the first one was sent when the clock began"
    assert not pending.others


def test_without_a_broker_the_delivery_timeout_ends_it_with_all_that_is_not_acknowledged(
    writer: MakeWriter, topic: TopicFactory, mortal: Callable[[], EmbeddedBroker]
) -> None:
    broker = mortal()
    create_topic(broker, "abandoned")
    shop = writer(on=broker.bootstrap_servers)
    first = shop.send("abandoned", b"0", id="0")
    first.result()
    broker.kill()
    waiting = [shop.send("abandoned", str(n), id=str(n)) for n in range(1, 50)]
    shop.sender().timeout_s = 1.0  # not before all of them are sent: one that comes later is refused
    with pytest.raises(DeliveryFailed) as caught:
        shop.flush()
    failures = pickle.loads(pickle.dumps(caught.value)).fields["failures"]
    assert [each.identity.id for each in failures] == [str(n) for n in range(1, 50)]
    assert all(each.fate is Fate.UNKNOWN and not each.refused for each in failures)
    assert all(each.done for each in waiting)
    with pytest.raises(DeliveryFailed):
        shop.send("abandoned", b"more", id="50")


def test_the_delivery_timeout_does_not_count_how_long_it_was_waited_for_the_topic(
    writer: MakeWriter, topic: TopicFactory, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The looks take an hour, by the clock that the writer reads; what it hands over then is not overdue."""
    target, know = topic(), Sender.know
    late_s = 0.0

    def in_an_hour(sender: Sender, delivery: Delivery, partition: int) -> None:
        nonlocal late_s
        know(sender, delivery, partition)
        late_s += 3600.0

    monkeypatch.setattr(Sender, "know", in_an_hour)
    monkeypatch.setattr(sender, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + late_s))
    shop = writer()
    shop.send(target, b"1", id="1")
    shop.flush()
    assert [message.value() for message in read(target)] == [b"1"]


def test_a_broker_that_is_not_there_is_named(writer: MakeWriter) -> None:
    shop = writer(on=NOBODY, kafka={"delivery.timeout.ms": 500})
    with pytest.raises(BrokerUnreachable, match=NOBODY):
        shop.send("any", b"x", id="1")


def test_the_end_of_the_block_does_not_hide_what_happened_in_it(
    writer: MakeWriter, topic: TopicFactory, read: Reader
) -> None:
    name = topic()
    with pytest.raises(ZeroDivisionError), writer() as shop:
        shop.send(name, b"before", id="1")
        _ = 1 / 0
    assert [m.value() for m in read(name)] == [b"before"]


def test_a_resent_event_has_the_same_id_in_another_life(writer: MakeWriter, topic: TopicFactory, read: Reader) -> None:
    name = topic()
    for _ in range(2):
        with writer() as shop:
            shop.send(name, b"x", position=("orders", 0, 7))
    assert len({identity_of(m.headers()) for m in read(name)}) == 1


def test_a_right_is_lacking_where_a_broker_says_so_and_not_where_an_event_is_called_so() -> None:
    sender = Sender({"bootstrap.servers": NOBODY}, 1.0, TopicLimits(dict, {}))
    event = Delivery(sender, "t", "shop", "card authorization failed")
    for code, is_lacking in ((KafkaError._PURGE_QUEUE, False), (KafkaError.TOPIC_AUTHORIZATION_FAILED, True)):
        answer = KafkaError(code)
        for error in (sender.error_of([sender.failure_of(event, answer)]), sender._refusal(answer, event, -1)):
            assert isinstance(error, DeliveryFailed)
            assert "card authorization failed" in error.message
            assert ("grant WRITE" in error.action) is is_lacking
            assert error.fields["denied"] is is_lacking
    sender.close()


def test_what_failed_by_itself_is_told_before_what_was_taken_back_for_it() -> None:
    sender = Sender({"bootstrap.servers": NOBODY}, 1.0, TopicLimits(dict, {}))
    codes = [KafkaError._PURGE_QUEUE] * 5 + [KafkaError._PURGE_INFLIGHT, KafkaError.KAFKA_STORAGE_ERROR]
    events = [Delivery(sender, "t", "shop", str(n)) for n in range(len(codes))]
    failures = [sender.failure_of(event, KafkaError(code)) for event, code in zip(events, codes, strict=True)]
    sender.close()
    error = sender.error_of(failures)
    first, second = error.message.splitlines()[1:3]
    assert error.fields["failures"] == (failures[-1], *failures[:-1])
    assert "shop 6 to t: Broker: Disk error" in first
    assert "shop 0 to t: taken back before it was sent" in second
    assert "on its way" in failures[5].reason
