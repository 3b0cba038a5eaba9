"""What a topic takes at most (``max.message.bytes``) is a batch; an event is refused where it is too large alone."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from tests.conftest import Reader, TopicFactory, create_topic
from tests.test_authorization import PASSWORD, GuardedBroker
from tests.topic_limits import limit_batches
from tests.writer.on_a_loop import OnLoop
from tests.writer.waiting import wait_until

from onceflow.broker import EmbeddedBroker
from onceflow.errors import DeliveryFailed, RecordTooLarge, TransactionAborted
from onceflow.kafka.names import PROBE_TOPIC, PROGRESS_TOPIC
from onceflow.writer import limits
from onceflow.writer.delivery import Delivery
from onceflow.writer.identity import plain
from onceflow.writer.limits import size_alone
from onceflow.writer.sender import Sender
from onceflow.writer.writer import Writer

MakeWriter = Callable[..., Writer]
BOTH_KINDS = pytest.mark.parametrize("writer", [Writer, OnLoop], indirect=True, ids=["Writer", "AsyncWriter"])
LIMIT = 20_000
TIGHT = {"max.message.bytes": str(LIMIT)}
IN_ONE_BATCH = {"linger.ms": 60_000}  # as far as batch.size allows; the end of a block, or of the writer, hurries
_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A transactional id that no other test has."""
    return f"sizes-{next(_numbers)}"


def values(read: Reader, topic: str) -> list[str]:
    return [(m.value() or b"").decode() for m in read(topic)]


def numbered(count: int) -> list[str]:
    """Events of 100 bytes."""
    return [f"{n:0100}" for n in range(count)]


@BOTH_KINDS
def test_small_events_are_written_whatever_batches_a_topic_takes(
    writer: MakeWriter, topic: TopicFactory, read: Reader
) -> None:
    """The tight topic comes second: what is outstanding elsewhere by then is written, and in order."""
    ordinary, tight = topic(), topic(config=TIGHT)
    with writer(kafka={"linger.ms": 200}) as shop:
        for n, value in enumerate(numbered(1000)):
            shop.send(ordinary, value, id=f"o{n}")
        for n, value in enumerate(numbered(1000)):
            shop.send(tight, value, id=f"t{n}")
            shop.send(ordinary, "more", id=f"m{n}")
    assert values(read, tight) == numbered(1000)
    assert values(read, ordinary) == [*numbered(1000), *["more"] * 1000]


def test_threads_that_send_meanwhile_lose_nothing(writer: MakeWriter, topic: TopicFactory, read: Reader) -> None:
    """One of them meets tighter and tighter topics, and the producer is replaced for each."""
    busy = topic()
    tight = [topic(config={"max.message.bytes": str(limit)}) for limit in (40_000, 20_000, 10_000)]
    done = threading.Event()
    sent: list[str] = []

    def go_on() -> None:
        for n in itertools.count():
            if done.is_set():
                return
            shop.send(busy, str(n), id=str(n))
            sent.append(str(n))

    with writer() as shop:
        other = threading.Thread(target=go_on)
        other.start()
        try:
            for each in tight:
                for n, value in enumerate(numbered(500)):
                    shop.send(each, value, id=f"{each} {n}")
        finally:
            done.set()
            other.join()
    assert [values(read, each) for each in tight] == [numbered(500)] * 3
    assert values(read, busy) == sent


def test_nothing_is_handed_over_while_the_producer_is_replaced(
    writer: MakeWriter, topic: TopicFactory, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread's event would be left behind in the old one, which is flushed by then."""
    ordinary, tight = topic(), topic(config=TIGHT)
    make = Sender._made
    shop = writer()
    shop.send(ordinary, "1", id="1")

    def meanwhile(sender: Sender, batch_bytes: int) -> Producer:
        event = (Delivery(sender, ordinary, "shop", "2"), "2", None, plain("shop", "2"), -1, 0)
        with ThreadPoolExecutor(1) as another, pytest.raises(BufferError):
            another.submit(sender.put, *event).result()
        return make(sender, batch_bytes)

    monkeypatch.setattr(Sender, "_made", meanwhile)
    shop.send(tight, "1", id="1")
    shop.send(ordinary, "2", id="2")
    shop.close()
    assert (values(read, ordinary), values(read, tight)) == (["1", "2"], ["1"])


@pytest.mark.parametrize("when", ["_made", "flush"])
def test_a_signals_handler_that_sends_meanwhile_is_not_waited_for_in_vain(
    writer: MakeWriter, topic: TopicFactory, read: Reader, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It runs on the thread that replaces the producer, which goes on behind it alone."""
    ordinary, tight = topic(), topic(config=TIGHT)
    do = getattr(Sender, when)
    shop = writer()
    shop.send(ordinary, "1", id="1")

    def interrupted(sender: Sender, *given: int) -> Any:
        done = do(sender, *given)
        monkeypatch.setattr(Sender, when, do)
        signal.raise_signal(signal.SIGUSR1)
        return done

    before = signal.signal(signal.SIGUSR1, lambda *_: shop.send(ordinary, "2", id="2"))
    try:
        monkeypatch.setattr(Sender, when, interrupted)
        shop.send(tight, "1", id="1")
    finally:
        signal.signal(signal.SIGUSR1, before)
    shop.send(ordinary, "3", id="3")
    shop.close()
    assert (values(read, ordinary), values(read, tight)) == (["1", "2", "3"], ["1"])


def test_who_was_interrupted_meanwhile_replaces_the_producer_the_next_time(
    writer: MakeWriter, topic: TopicFactory, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what is sent then goes into batches that the broker refuses, though each event is small enough."""
    ordinary, tight, flush = topic(), topic(config=TIGHT), Sender.flush

    def interrupted(_: Sender) -> None:
        monkeypatch.setattr(Sender, "flush", flush)
        raise KeyboardInterrupt

    shop = writer(kafka=IN_ONE_BATCH)
    shop.send(ordinary, "1", id="1")
    monkeypatch.setattr(Sender, "flush", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shop.send(tight, "first", id="first")
    for n, value in enumerate(numbered(1000)):
        shop.send(tight, value, id=str(n))
    shop.close()
    assert (values(read, ordinary), values(read, tight)) == (["1"], numbered(1000))


def test_whoever_meets_a_topic_meanwhile_waits_for_what_it_takes(
    writer: MakeWriter, topic: TopicFactory, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or their events go into a batch that the broker refuses, and all of them fail."""
    tight = topic(config=TIGHT)
    ask, asking, sent = limits._limit_of, threading.Event(), threading.Event()

    def ask_slowly(name: str, connection: Mapping[str, Any]) -> int | None:
        asking.set()
        sent.wait(0.2)  # in vain, as it should be
        return ask(name, connection)

    monkeypatch.setattr(limits, "_limit_of", ask_slowly)
    with writer(kafka=IN_ONE_BATCH) as shop:
        first = threading.Thread(target=shop.send, args=(tight, "first"), kwargs={"id": "first"})
        first.start()
        assert asking.wait(60)
        for n, value in enumerate(numbered(1000)):
            shop.send(tight, value, id=str(n))
        sent.set()
        first.join()
    assert sorted(values(read, tight)) == sorted(["first", *numbered(1000)])


def test_nobody_sends_to_a_topic_before_the_producer_is_replaced_for_it(
    writer: MakeWriter, topic: TopicFactory, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as known from then on, and other threads ask nobody."""
    tight, shop, refit = topic(config=TIGHT), writer(kafka=IN_ONE_BATCH), Sender._refit

    def overtaken(sender: Sender) -> None:
        monkeypatch.setattr(Sender, "_refit", refit)
        for n, value in enumerate(numbered(1000)):
            shop.send(tight, value, id=str(n))
        refit(sender)

    monkeypatch.setattr(Sender, "_refit", overtaken)
    shop.send(tight, "last", id="last")
    shop.close()
    assert values(read, tight) == [*numbered(1000), "last"]


@BOTH_KINDS
def test_a_block_whose_batch_was_too_large_is_run_again_in_smaller_ones(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str
) -> None:
    """A producer cannot be replaced in a block; none of the events is to blame."""
    tight = topic(config=TIGHT)
    shop = writer(name, kafka=IN_ONE_BATCH)

    def run() -> None:
        with shop.transaction():
            for n, value in enumerate(numbered(1000)):
                shop.send(tight, value, id=str(n))

    with pytest.raises(TransactionAborted, match=r"batch\.size of at most 20000"):
        run()
    run()
    assert values(read, tight) == numbered(1000)


def test_a_block_behind_one_that_met_the_topic_is_not_aborted(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str
) -> None:
    tight = topic(config=TIGHT)
    shop = writer(name, kafka=IN_ONE_BATCH)
    with shop.transaction():
        shop.send(tight, "first", id="first")
    with shop.transaction():
        for n, value in enumerate(numbered(1000)):
            shop.send(tight, value, id=str(n))
    assert values(read, tight) == ["first", *numbered(1000)]


@BOTH_KINDS
def test_an_event_that_is_too_large_alone_is_refused_to_the_byte(
    writer: MakeWriter, topic: TopicFactory, read: Reader, broker: EmbeddedBroker
) -> None:
    tight = topic(config=TIGHT)
    headers = [*plain("shop", "e"), ("trace", b"t" * 70)]
    # The value's own bytes are all that changes: its length is written in as many bytes before and behind the limit.
    most = LIMIT - size_alone(b"x" * 19_000, "key", headers) + 19_000
    with writer() as shop:
        with pytest.raises(RecordTooLarge, match=f"shop e has 20001 bytes, and {tight} takes 20000"):
            shop.send(tight, b"x" * (most + 1), key="key", id="e", headers=headers[3:])
        shop.send(tight, b"x" * most, key="key", id="e", headers=headers[3:])
    assert [len(m.value() or b"") for m in read(tight)] == [most]
    assert (
        error_of_plain(broker, tight, b"x" * (most + 1), headers) == KafkaError.MSG_SIZE_TOO_LARGE
    )  # the broker agrees


def error_of_plain(
    broker: EmbeddedBroker, topic: str, value: bytes, headers: list[tuple[str, str | bytes | None]]
) -> int:
    """What a broker says to an event that plain confluent-kafka sends."""
    found: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, value, "key", headers=headers, on_delivery=lambda error, _: found.append(error))
    producer.flush(60)
    assert found[0] is not None
    return found[0].code()


def test_what_is_small_enough_when_compressed_is_written(writer: MakeWriter, topic: TopicFactory, read: Reader) -> None:
    tight = topic(config=TIGHT)
    with writer(kafka={"compression.type": "gzip"}) as shop:
        shop.send(tight, b"x" * 500_000, id="1")
    assert [len(m.value() or b"") for m in read(tight)] == [500_000]


def test_what_is_not_is_refused_and_alone_called_so(writer: MakeWriter, topic: TopicFactory, read: Reader) -> None:
    tight = topic(config=TIGHT)
    shop = writer(kafka={"compression.type": "gzip"})
    for n in range(3):
        shop.send(tight, str(n), id=str(n))
    shop.send(tight, os.urandom(50_000), id="big")
    with suppress(DeliveryFailed):  # it may have been refused already
        for n in range(1000):
            shop.send(tight, "behind", id=f"behind {n}")
    with pytest.raises(DeliveryFailed, match="shop big") as caught:
        shop.flush()
    assert [each.identity.id for each in caught.value.fields["failures"] if each.refused] == ["big"]
    assert values(read, tight) == ["0", "1", "2"]


@pytest.mark.parametrize("before", [TIGHT, {}], ids=["tight", "ordinary"])
def test_a_limit_that_was_lowered_meanwhile_is_met_anew(
    writer: MakeWriter, topic: TopicFactory, read: Reader, broker: EmbeddedBroker, name: str, before: dict[str, str]
) -> None:
    """The block is called retriable by what was known; run again, it names the event."""
    tight = topic(config=before)
    shop = writer(name)
    with shop.transaction():
        shop.send(tight, "first", id="1")
    limit_batches(broker.bootstrap_servers, tight, 2_000)
    with pytest.raises(TransactionAborted), shop.transaction():
        shop.send(tight, b"x" * 5_000, id="big")
    with pytest.raises(RecordTooLarge, match=f"shop big .* and {tight} takes 2000"), shop.transaction():
        shop.send(tight, b"x" * 5_000, id="big")
    assert values(read, tight) == ["first"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    """A broker on which a user may do what ACLs allow."""
    with GuardedBroker(tmp_path_factory.mktemp("guarded-writer"), 2) as broker:
        yield broker


def test_without_the_right_to_see_a_topics_settings_the_broker_decides(
    writer: MakeWriter, read: Reader, guarded: GuardedBroker
) -> None:
    create_topic(guarded, "unseen", config=TIGHT)
    user = "u0"
    grant(guarded, user, AclOperation.WRITE, ResourceType.TOPIC, "unseen")

    def send_all(values: Sequence[str], **options: object) -> None:
        with writer(on=f"127.0.0.1:{guarded.login_port}", kafka={**login(user), **options}) as shop:
            for n, value in enumerate(values):
                shop.send("unseen", value, id=str(n))

    with pytest.raises(
        DeliveryFailed, match=r"which nobody tells; grant DESCRIBE_CONFIGS .* or set batch\.size"
    ) as caught:
        send_all(numbered(1000), **IN_ONE_BATCH)
    assert not any(each.refused for each in caught.value.fields["failures"])
    with pytest.raises(DeliveryFailed) as caught:
        send_all(["x" * 50_000], **{"batch.size": LIMIT})
    assert [each.identity.id for each in caught.value.fields["failures"] if each.refused] == ["0"]
    send_all(numbered(1000), **{"batch.size": LIMIT})
    assert [(m.value() or b"").decode() for m in read("unseen", on=guarded)] == numbered(1000)


def test_a_block_of_which_nobody_tells_what_the_topic_takes_is_run_again_in_smaller_batches(
    writer: MakeWriter, read: Reader, guarded: GuardedBroker, name: str
) -> None:
    """None of the events is at fault: a service that left out what is refused would leave out all of them."""
    create_topic(guarded, "unseen-by-blocks", config=TIGHT)
    own = (PROGRESS_TOPIC, PROBE_TOPIC)
    for topic in own:
        create_topic(guarded, topic)
    user = "u1"
    grant(guarded, user, AclOperation.WRITE, ResourceType.TOPIC, "unseen-by-blocks")
    for topic in own:
        grant(guarded, user, AclOperation.READ, ResourceType.TOPIC, topic)
    grant(guarded, user, AclOperation.READ, ResourceType.GROUP, f"onceflow.writer.{name}")
    grant(guarded, user, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
    shop = writer(name, on=f"127.0.0.1:{guarded.login_port}", kafka={**login(user), **IN_ONE_BATCH})

    def run(*more: str) -> None:
        with shop.transaction():
            for n, value in enumerate([*more, *numbered(1000)]):
                shop.send("unseen-by-blocks", value, id=str(n))

    for _ in range(2):  # from batches of 1 MB to such of 100 kB and of 10 kB
        with pytest.raises(TransactionAborted):
            run("x" * 50_000)
    with pytest.raises(DeliveryFailed) as caught:
        run("x" * 50_000)
    assert [each.identity.id for each in caught.value.fields["failures"] if each.refused] == ["0"]
    run()
    assert [(m.value() or b"").decode() for m in read("unseen-by-blocks", on=guarded)] == numbered(1000)


def login(user: str) -> dict[str, object]:
    told = {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": PASSWORD}
    return {**told, "security.protocol": "SASL_PLAINTEXT", "linger.ms": 200}


def grant(broker: EmbeddedBroker, user: str, right: AclOperation, kind: ResourceType, resource: str) -> None:
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    binding = AclBinding(kind, resource, literal, f"User:{user}", "*", right, allow)
    seen = AclBindingFilter(kind, resource, literal, f"User:{user}", "*", right, allow)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_acls([binding])[binding].result(60)
    wait_until(lambda: binding in admin.describe_acls(seen).result(60))
