"""Kills, lost answers, expired ids: what is in the topic is what was sent, once each."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.conftest import Reader, TopicFactory, create_topic
from tests.forkserver import ForkServer
from tests.topic_limits import limit_batches
from tests.writer.on_a_loop import OnLoop
from tests.writer.refusing import refuse_commit
from tests.writer.victim import BLOCKS, EVENTS, RECOVERY, SMALL_BYTES, STEPS, Job
from tests.writer.waiting import is_stable, wait_until
from tests.writer.wire import NOTHING, Loss, ProxiedBroker

from onceflow.broker import EmbeddedBroker
from onceflow.errors import (
    BrokerUnreachable,
    ConfigurationError,
    DeliveryFailed,
    Fenced,
    OutcomeForgotten,
    OutcomeUnknown,
    TransactionAborted,
)
from onceflow.kafka.names import PROBE_TOPIC, PROGRESS_TOPIC
from onceflow.verify.recording.ends import Asker
from onceflow.verify.wire import Direction, Do, Rule
from onceflow.verify.wire.apis import ADD_OFFSETS, ADD_PARTITIONS, END_TXN, INIT_PRODUCER_ID, PRODUCE, TXN_OFFSET_COMMIT
from onceflow.writer import coordination
from onceflow.writer.coordination import State, Transactions
from onceflow.writer.delivery import Fate
from onceflow.writer.ledger import Ledger
from onceflow.writer.marker import Marker
from onceflow.writer.sender import Sender
from onceflow.writer.writer import Writer

pytestmark = pytest.mark.faults

MakeWriter = Callable[..., Writer]
StandingStill = Callable[[str], AbstractContextManager[object]]
ALL = [str(n) for n in range(BLOCKS * EVENTS)]
BOTH_KINDS = pytest.mark.parametrize("writer", [Writer, OnLoop], indirect=True, ids=["Writer", "AsyncWriter"])
_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"faulty-{next(_numbers)}"


def values(read: Reader, topic: str, on: EmbeddedBroker | None = None) -> list[str]:
    return [(m.value() or b"").decode() for m in read(topic, on=on)]


KINDS = pytest.mark.parametrize(
    ("version", "on_a_loop"),
    [("broker", False), ("broker_v1", False), ("broker", True)],
    ids=["version 2", "version 1", "AsyncWriter"],
)
AT_EVERY_STEP = pytest.mark.parametrize("step", [*STEPS, *RECOVERY])


@pytest.fixture
def victim(request: pytest.FixtureRequest, topic: TopicFactory, name: str, version: str, *, on_a_loop: bool) -> Job:
    """Of one of ``KINDS``, with a topic of its own."""
    broker: EmbeddedBroker = request.getfixturevalue(version)
    target = topic(on=broker, config={"max.message.bytes": str(SMALL_BYTES)})
    return Job(broker.bootstrap_servers, name, target, on_a_loop=on_a_loop)


def check_all(request: pytest.FixtureRequest, read: Reader, job: Job, version: str) -> None:
    assert values(read, job.topic, request.getfixturevalue(version)) == ALL


@KINDS
@AT_EVERY_STEP
@pytest.mark.in_turn(3)
def test_a_process_killed_at_any_step_leaves_each_event_once(
    request: pytest.FixtureRequest, victims: ForkServer, victim: Job, read: Reader, step: str, version: str
) -> None:
    killed = victims.run(replace(victim, step=step))
    assert (killed.signal, killed.error) == (signal.SIGKILL, ""), f"it did not come to {step}: {killed.text}"
    assert_finishes(victims, victim)
    check_all(request, read, victim, version)


def assert_finishes(victims: ForkServer, job: Job) -> None:
    ended = victims.run(job)
    assert (ended.signal, ended.error) == (0, ""), ended.text


@KINDS
@AT_EVERY_STEP
@pytest.mark.in_turn(3)
def test_a_stopped_process_whose_successor_has_finished_is_fenced_when_it_wakes(
    request: pytest.FixtureRequest, victims: ForkServer, victim: Job, read: Reader, step: str, version: str
) -> None:
    """Every step comes after its own fence, so it is the older one wherever it stands still."""
    stopped = victims.start_stopped(replace(victim, step=step, signal=int(signal.SIGSTOP)))
    assert_finishes(victims, victim)
    ended = victims.wake(stopped)
    assert (ended.signal, ended.error) == (0, "FENCED"), ended.text
    check_all(request, read, victim, version)


@pytest.mark.parametrize("step", ["sent", "acknowledged", "marked"])
@pytest.mark.in_turn(3)
def test_a_process_stopped_beyond_its_transaction_timeout_runs_the_block_again(
    punctual: EmbeddedBroker, victims: ForkServer, topic: TopicFactory, read: Reader, name: str, step: str
) -> None:
    target = topic(on=punctual)
    kafka = {"transaction.timeout.ms": 10_000}  # longer than a block takes up to its step on a busy machine
    job = Job(punctual.bootstrap_servers, name, target, step, int(signal.SIGSTOP), kafka=kafka)
    stopped = victims.start_stopped(job)
    wait_until(lambda: is_stable(punctual, target))
    ended = victims.wake(stopped)
    assert (ended.signal, ended.error) == (0, ""), ended.text
    assert values(read, target, punctual) == ALL


def test_control_without_transactions_the_same_kill_repeats_events(
    broker: EmbeddedBroker, victims: ForkServer, topic: TopicFactory, read: Reader
) -> None:
    job = Job(broker.bootstrap_servers, None, topic())
    assert victims.run(replace(job, step="sent")).signal == signal.SIGKILL
    assert_finishes(victims, job)
    assert sorted(values(read, job.topic)) == sorted(ALL * 2)


def test_control_an_instance_under_an_id_of_its_own_fences_nobody_and_repeats(
    broker: EmbeddedBroker, victims: ForkServer, topic: TopicFactory, read: Reader, name: str
) -> None:
    """What fences the one that stands still is the id: with another one the second instance begins at the beginning."""
    job = Job(broker.bootstrap_servers, name, topic())
    stopped = victims.start_stopped(replace(job, step="sent", signal=int(signal.SIGSTOP)))
    assert_finishes(victims, replace(job, name=f"{name}-too"))
    ended = victims.wake(stopped)
    assert (ended.signal, ended.error) == (0, ""), ended.text
    assert sorted(values(read, job.topic)) == sorted(ALL * 2)


@BOTH_KINDS
@pytest.mark.in_turn(3)
def test_a_broker_killed_in_the_middle_of_sending_loses_and_repeats_nothing(
    writer: MakeWriter, killable: EmbeddedBroker, read: Reader, name: str
) -> None:
    """As long as the broker remembers the producer (``producer.id.expiration.ms``)::

    a batch is written, its acknowledgement is lost with the broker
    the broker comes back when the producer id has expired: it knows no sequence any more
    the batch, sent again, is taken for a new one
    """
    broker = killable
    create_topic(broker, name, 2)
    total = 60_000
    with writer(on=broker.bootstrap_servers, kafka={"batch.num.messages": 100}) as shop:
        back: list[threading.Thread] = []
        for n in range(total):
            event = shop.send(name, str(n), key=str(n % 10), id=str(n))
            if n % (total // 3) == total // 4:
                event.result()
                broker.kill()
                back.append(threading.Thread(target=broker.start))
                back[-1].start()
            if n % (total // 3) == total // 3 - 1:
                back[-1].join()
    assert len(back) == 3
    records = read(name, on=broker)
    assert sorted(int(m.value() or b"") for m in records) == list(range(total))
    for key in range(10):
        numbers = [int(m.value() or b"") for m in records if m.key() == str(key).encode()]
        assert numbers == sorted(numbers)


@BOTH_KINDS
@pytest.mark.parametrize(("api", "count"), [(TXN_OFFSET_COMMIT, 2), (END_TXN, 1), (END_TXN, 3)])
def test_lost_answers_change_nothing(
    writer: MakeWriter, proxied: ProxiedBroker, read: Reader, name: str, api: int, count: int
) -> None:
    create_topic(proxied, name)
    shop = writer(name, on=proxied.servers)
    for block in range(3):
        proxied.proxy.lose(Loss(api, count=count) if block == 1 else NOTHING)
        with shop.transaction(progress=str(block)) as transaction:
            for n in range(block * 5, block * 5 + 5):
                shop.send(name, str(n), id=str(n))
        assert transaction.committed is True
        assert proxied.proxy.lost == (count if block == 1 else 0)
    assert values(read, name, proxied) == ALL


@BOTH_KINDS
@pytest.mark.parametrize("api", [INIT_PRODUCER_ID, ADD_OFFSETS, TXN_OFFSET_COMMIT, END_TXN])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.in_turn(2)
def test_lost_answers_to_a_writer_that_takes_its_id_change_nothing(
    writer: MakeWriter, proxied: ProxiedBroker, read: Reader, name: str, api: int, count: int
) -> None:
    """Its id was another one's before: that is fenced, and its progress found."""
    create_topic(proxied, name)
    first = writer(name, on=proxied.servers)
    assert commits(first, name, range(5), "0")
    proxied.proxy.lose(Loss(api, count=count))
    second = writer(name, on=proxied.servers)
    assert proxied.proxy.lost == count
    assert second.progress == "0"
    wait_until(partial(commits, second, name, range(5, 15), "1"))
    with pytest.raises(Fenced), first.transaction():
        first.send(name, "zombie", id="z")
    assert values(read, name, proxied) == ALL


@BOTH_KINDS
@pytest.mark.parametrize("api", [ADD_PARTITIONS, ADD_OFFSETS])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.in_turn(2)
def test_lost_answers_to_what_joins_a_transaction_at_most_abort_it(
    writer: MakeWriter, proxied: ProxiedBroker, read: Reader, name: str, api: int, count: int
) -> None:
    create_topic(proxied, name)
    shop = writer(name, on=proxied.servers)
    for block in blocks_through(proxied, shop, name, Loss(api, count=count)):
        assert proxied.proxy.lost == (count if block == 1 else 0)
    assert values(read, name, proxied) == ALL


def is_soon_given_up(
    patch: pytest.MonkeyPatch, step: str, when: Callable[[Transactions], bool] = lambda _: True
) -> None:
    """That step alone: to open a writer, or to take its id back, may take longer on a busy machine."""
    take = getattr(Transactions, step)

    def take_for_seconds(transactions: Transactions, *given: object) -> None:
        with pytest.MonkeyPatch.context() as hasty:
            if when(transactions):
                hasty.setattr(transactions, "_patience_s", 3.0)
            take(transactions, *given)

    patch.setattr(Transactions, step, take_for_seconds)


@BOTH_KINDS
@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.in_turn(3)
def test_lost_answers_to_events_end_in_a_bounded_time(
    writer: MakeWriter,
    proxied: ProxiedBroker,
    read: Reader,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    guarded: bool,
) -> None:
    """librdkafka may then not come back from send_offsets_to_transaction: see writer/bounded.py.

    Not guarded: the writer goes on with a producer whose connection broke, so that only the bound is left.
    """
    create_topic(proxied, name)
    shop = writer(name, on=proxied.servers)
    shop._with_transactions().sender.timeout_s = 3.0
    is_soon_given_up(monkeypatch, "_ask", lambda transactions: transactions.state is State.OPEN)
    if not guarded:
        monkeypatch.setattr(type(shop._with_transactions()), "_is_shaken", lambda _self: False)
    assert list(blocks_through(proxied, shop, name, Loss(PRODUCE, count=3))) == [0, 1, 2]
    assert values(read, name, proxied) == ALL


@BOTH_KINDS
def steps_of(patch: pytest.MonkeyPatch) -> list[str]:
    """Those of writers from now on, as they begin."""
    found = list[str]()
    for step in ("_fence", "_claim"):
        patch.setattr(Transactions, step, noting(found, step, getattr(Transactions, step)))
    return found


def noting(found: list[str], step: str, does: Callable[..., None]) -> Callable[..., None]:
    def noted(*arguments: object) -> None:
        found.append(step)
        does(*arguments)

    return noted


@pytest.mark.parametrize(
    ("first", "count", "steps"),
    [
        (0, 1, ["_fence", "_fence", "_claim"]),
        (1, 1, ["_fence", "_claim", "_fence"]),
        (9, 0, ["_fence", "_claim"]),
    ],
    ids=["probe", "claim", "nothing"],
)
def test_where_an_end_may_come_twice_none_of_its_epoch_is_followed_by_a_block(
    writer: MakeWriter,
    proxied: ProxiedBroker,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    count: int,
    steps: list[str],
) -> None:
    """A copy of it that comes late would commit the half of the block that is there."""
    made = steps_of(monkeypatch)
    proxied.proxy.lose(Loss(END_TXN, first=first, count=count))
    writer(name, on=proxied.servers)
    assert (proxied.proxy.lost, made) == (count, steps)


@pytest.mark.parametrize("count", [0, 1])
def test_a_commit_that_is_answered_behind_a_lost_connection_is_looked_up(
    writer: MakeWriter, proxied: ProxiedBroker, read: Reader, name: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Who answers then may have been replaced: ``tests/verify/faults/test_isolated_broker.py``."""
    create_topic(proxied, name)
    shop = writer(name, on=proxied.servers)
    made = steps_of(monkeypatch)
    proxied.proxy.lose(Loss(END_TXN, count=count))
    with shop.transaction() as transaction:
        shop.send(name, "1", id="1")
    assert (transaction.committed, made) == (True, ["_fence"] * count)
    assert values(read, name, proxied) == ["1"]


def test_a_commit_whose_answer_is_lost_and_whose_writer_is_fenced_counts_as_what_it_is(
    writer: MakeWriter, proxied: ProxiedBroker, read: Reader, name: str
) -> None:
    """EndTxn is durable, its answer is lost, a second instance takes over; the first is refused, and must not say aborted."""
    create_topic(proxied, name)
    first = writer(name, on=proxied.servers)
    second: list[Writer] = []
    direct = proxied.bootstrap_servers
    proxied.proxy.lose(Loss(END_TXN, then=lambda: second.append(writer(name, on=direct))))
    with first.transaction(progress="done") as transaction:
        first.send(name, "1", id="1")
    assert proxied.proxy.lost == 1
    assert transaction.committed is True
    assert (first.progress, second[0].progress) == ("done", "done")
    with pytest.raises(Fenced), first.transaction():
        first.send(name, "zombie", id="z")
    with second[0].transaction():
        second[0].send(name, "2", id="2")
    assert values(read, name, proxied) == ["1", "2"]


def test_control_plain_confluent_kafka_reports_that_commit_as_a_failure(
    writer: MakeWriter, proxied: ProxiedBroker, read: Reader, name: str
) -> None:
    create_topic(proxied, name)
    plain = Producer({"bootstrap.servers": proxied.servers, "transactional.id": name, "log_level": 0})
    plain.init_transactions(60)
    plain.begin_transaction()
    plain.produce(name, "1")
    plain.flush(60)
    proxied.proxy.lose(Loss(END_TXN, then=lambda: writer(name, on=proxied.bootstrap_servers)))
    with pytest.raises(KafkaException, match="fenced"):
        plain.commit_transaction(60)
    assert values(read, name, proxied) == ["1"]


def test_a_claim_without_an_answer_gives_way_to_a_newer_one(
    writer: MakeWriter, proxied: ProxiedBroker, read: Reader, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A's claim is committed, its answer lost, a stranger fences A; A reads its own claim; B claims and commits; A fences B.

    A's first EndTxn is its probe's.
    """
    create_topic(proxied, name)
    direct = proxied.bootstrap_servers
    second: list[Writer] = []
    read_marker = Ledger.read

    def read_and_be_overtaken(ledger: Ledger, *, stable: bool = True) -> Marker:
        found = read_marker(ledger, stable=stable)
        if proxied.proxy.lost and not second:
            monkeypatch.setattr(Ledger, "read", read_marker)
            second.append(writer(name, on=direct))
            with second[0].transaction(progress="B's"):
                second[0].send(name, "1", id="1")
        return found

    def stranger() -> None:
        Producer({"bootstrap.servers": direct, "transactional.id": name, "log_level": 0}).init_transactions(60)

    monkeypatch.setattr(Ledger, "read", read_and_be_overtaken)
    proxied.proxy.lose(Loss(END_TXN, first=1, then=stranger))
    with pytest.raises(Fenced):
        writer(name, on=proxied.servers)
    assert second
    assert values(read, name, proxied) == ["1"]
    assert writer(name, on=direct).progress == "B's"


def test_a_claim_that_never_arrives_is_no_sign_of_another_writer(
    writer: MakeWriter, proxied: ProxiedBroker, read: Reader, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told that another one carries on, nobody would start the service again."""
    create_topic(proxied, name)
    cut = Rule(Do.CUT, frozenset({TXN_OFFSET_COMMIT}), Direction.REQUEST, first=0, count=100_000)
    proxied.proxy.rules.clear()
    applied = proxied.proxy.rules.add(cut)
    with monkeypatch.context() as patch:
        is_soon_given_up(patch, "_enter")
        with pytest.raises(BrokerUnreachable, match="was not claimed"):
            writer(name, on=proxied.servers)
    assert applied.applied > 0
    proxied.proxy.lose(NOTHING)
    shop = writer(name, on=proxied.servers)
    with shop.transaction():
        shop.send(name, "1", id="1")
    assert values(read, name, proxied) == ["1"]


@pytest.fixture
def standing_still(monkeypatch: pytest.MonkeyPatch) -> StandingStill:
    """Within it whoever has put an entry of the topic into a transaction goes on when the coordinator has aborted that."""
    enter = Transactions._enter

    @contextmanager
    def within(topic: str) -> Iterator[None]:
        def enter_and_stand_still(transactions: Transactions, entry: TopicPartition) -> None:
            enter(transactions, entry)
            if entry.topic == topic:
                transactions._ledger.read_with_nonce()  # answered when the transaction has ended

        with monkeypatch.context() as slow:
            slow.setattr(Transactions, "_enter", enter_and_stand_still)
            yield

    return within


@pytest.fixture
def of_seconds(writer: MakeWriter, punctual: EmbeddedBroker, name: str) -> Callable[[], Writer]:
    """Makes writers whose transactions may take some seconds, on a broker that aborts them soon after these.

    Long enough for a block on a slow machine: what is to be aborted stands still until it is.
    """
    return lambda: writer(
        name,
        on=punctual.bootstrap_servers,
        kafka={
            "transaction.timeout.ms": 8000,
            "delivery.timeout.ms": 20_000,
            "compression.type": "gzip",
            "batch.size": 2000,
        },
    )


@pytest.mark.parametrize(
    ("topic", "told"),
    [(PROBE_TOPIC, "another writer may have claimed it"), (PROGRESS_TOPIC, "no other writer has claimed it")],
    ids=["probe", "claim"],
)
def test_a_claim_that_outlives_its_transaction_is_no_sign_of_another_writer(
    writer: MakeWriter,
    of_seconds: Callable[[], Writer],
    read: Reader,
    name: str,
    punctual: EmbeddedBroker,
    standing_still: StandingStill,
    topic: str,
    told: str,
) -> None:
    """The coordinator aborts it, in the words of a fence; a service that gives way to nobody would stay away."""
    create_topic(punctual, name)
    with standing_still(topic), pytest.raises(BrokerUnreachable, match=told) as raised:
        of_seconds()
    assert raised.value.retriable
    shop = writer(name, on=punctual.bootstrap_servers)
    with shop.transaction():
        shop.send(name, "1", id="1")
    assert values(read, name, punctual) == ["1"]


@pytest.mark.parametrize("topic", [PROBE_TOPIC, PROGRESS_TOPIC], ids=["probe", "claim"])
def test_the_same_where_the_marker_is_forgotten_and_claimed_anew(
    of_seconds: Callable[[], Writer],
    read: Reader,
    name: str,
    punctual: EmbeddedBroker,
    standing_still: StandingStill,
    topic: str,
) -> None:
    create_topic(punctual, name, config={"max.message.bytes": "2000"})
    shop = of_seconds()
    with shop.transaction(progress="1"):
        shop.send(name, "1", id="1")
    forget_marker(punctual, name)
    with standing_still(topic), pytest.raises(DeliveryFailed), shop.transaction():
        shop.send(name, os.urandom(5000), id="refused")
    with shop.transaction():
        shop.send(name, "2", id="2")
    assert shop.progress == "1"
    assert values(read, name, punctual) == ["1", "2"]


@pytest.mark.parametrize("times", [1, 3])
def test_who_is_fenced_before_its_probe_by_one_that_never_claims_looks_again_and_goes_on(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A service that is started, and killed before its claim: told of another writer, the one that lives would stop for it."""
    target, shop = topic(), writer(name)
    transactions = shop._with_transactions()
    fence, fences = transactions._fence, itertools.count()
    servers = shop._settings.cluster.bootstrap_servers

    def fence_and_be_fenced() -> None:
        fence()
        if next(fences) < times:
            Producer({"bootstrap.servers": servers, "transactional.id": name, "log_level": 0}).init_transactions(60)

    with monkeypatch.context() as patch:
        refuse_commit(patch, transactions, is_made=True)
        patch.setattr(transactions, "_fence", fence_and_be_fenced)
        with shop.transaction() as transaction:
            shop.send(target, "1", id="1")
    assert next(fences) == times + 1
    assert transaction.committed is True
    with shop.transaction():
        shop.send(target, "2", id="2")
    assert values(read, target) == ["1", "2"]


def test_a_writer_that_sleeps_in_its_probe_goes_on_when_it_wakes(
    of_seconds: Callable[[], Writer],
    read: Reader,
    name: str,
    punctual: EmbeddedBroker,
    standing_still: StandingStill,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator has aborted the probe, in the words of a fence; and nobody has claimed the id."""
    create_topic(punctual, name)
    shop = of_seconds()
    transactions = shop._with_transactions()
    with monkeypatch.context() as patch, ExitStack() as sleeps:
        refuse_commit(patch, transactions, is_made=True)
        sleeps.enter_context(standing_still(PROBE_TOPIC))
        waking = transactions._ledger.read

        def look(*, stable: bool = True) -> Marker:
            if looked:
                sleeps.close()
            looked.append(stable)
            return waking(stable=stable)

        looked = list[bool]()
        patch.setattr(transactions._ledger, "read", look)
        with shop.transaction() as transaction:
            shop.send(name, "1", id="1")
    assert (transaction.committed, looked) == (True, [False, False])
    with shop.transaction():
        shop.send(name, "2", id="2")
    assert values(read, name, punctual) == ["1", "2"]


def test_a_commit_that_was_not_made_before_the_fence_is_told_from_it(
    writer: MakeWriter, proxied: ProxiedBroker, read: Reader, name: str
) -> None:
    create_topic(proxied, name)
    first = writer(name, on=proxied.servers)
    direct = proxied.bootstrap_servers
    # The second instance comes between the marker and EndTxn: the transaction is aborted by it.
    proxied.proxy.lose(Loss(TXN_OFFSET_COMMIT, then=lambda: writer(name, on=direct)))
    with pytest.raises(Fenced), first.transaction() as transaction:
        first.send(name, "1", id="1")
    assert transaction.committed is False
    assert values(read, name, proxied) == []


def test_a_look_that_is_interrupted_leaves_the_commit_in_doubt(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes behind the fence: whoever heard "not committed" would run the block again, and its events came twice."""
    target, shop = topic(), writer(name)
    transactions = shop._with_transactions()
    with monkeypatch.context() as patch:
        refuse_commit(patch, transactions, is_made=True)
        interrupt_behind(patch, transactions, "_final_marker")
        with pytest.raises(KeyboardInterrupt), shop.transaction() as transaction:
            shop.send(target, "1", id="1")
    assert transaction.committed is None
    with pytest.raises(OutcomeUnknown), shop.transaction():
        pass
    assert shop.settle() is True
    with shop.transaction():
        shop.send(target, "2", id="2")
    assert values(read, target) == ["1", "2"]


@pytest.mark.parametrize("is_made", [True, False])
@pytest.mark.parametrize("step", ["begin_transaction", "send_offsets_to_transaction", "commit_transaction"])
def test_a_look_that_is_interrupted_in_its_probe_does_not_take_that_for_the_block(
    writer: MakeWriter,
    topic: TopicFactory,
    read: Reader,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    *,
    is_made: bool,
) -> None:
    """The probe's producer, asked to commit, would commit the probe, and say that it has."""
    target, shop = topic(), writer(name)
    transactions = shop._with_transactions()
    with monkeypatch.context() as patch:
        refuse_commit(patch, transactions, is_made=is_made)
        interrupt_in_probe(patch, transactions, step)
        with pytest.raises(KeyboardInterrupt), shop.transaction() as transaction:
            shop.send(target, "1", id="1")
    assert transaction.committed is None
    assert shop.settle() is is_made
    with shop.transaction():
        shop.send(target, "2", id="2")
    assert values(read, target) == (["1", "2"] if is_made else ["2"])


def interrupt_in_probe(patch: pytest.MonkeyPatch, transactions: Transactions, step: str) -> None:
    """Ctrl-C comes behind ``begin_transaction``, and else before the probe's step is asked for."""
    enter, ask = transactions._enter, transactions._ask
    probing: list[bool] = []

    def enters(entry: TopicPartition) -> None:
        if entry.topic == PROBE_TOPIC:
            probing.append(True)
            if step == "begin_transaction":
                raise KeyboardInterrupt
        enter(entry)

    def asks(question: Callable[..., object], *arguments: object) -> None:
        if probing and question.__name__ == step:
            raise KeyboardInterrupt
        ask(question, *arguments)

    patch.setattr(transactions, "_enter", enters)
    patch.setattr(transactions, "_ask", asks)


@pytest.mark.parametrize("way_back", ["_confirmed", "settle", "commit"])
def test_a_commit_that_was_made_is_told_though_the_way_back_is_interrupted(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str, monkeypatch: pytest.MonkeyPatch, way_back: str
) -> None:
    """Ctrl-C behind the coordinator's answer: "not committed" would have the block run again, and its events come twice."""
    target, shop = topic(), writer(name)
    transactions = shop._with_transactions()
    with monkeypatch.context() as patch:
        interrupt_behind(patch, transactions, way_back)
        with pytest.raises(KeyboardInterrupt), shop.transaction() as transaction:
            shop.send(target, "1", id="1")
    assert transaction.committed is True
    with shop.transaction():
        shop.send(target, "2", id="2")
    assert values(read, target) == ["1", "2"]


@pytest.mark.parametrize("is_made", [True, False])
def test_what_a_look_has_found_is_told_though_what_follows_is_interrupted(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str, monkeypatch: pytest.MonkeyPatch, *, is_made: bool
) -> None:
    """EndTxn was refused, and the marker tells what became of it; Ctrl-C comes before the writer has taken the id back."""
    target, shop = topic(), writer(name)
    transactions = shop._with_transactions()
    with monkeypatch.context() as patch:
        refuse_commit(patch, transactions, is_made=is_made)
        interrupt_before(patch, transactions, "_confirmed")
        with pytest.raises(KeyboardInterrupt), shop.transaction() as transaction:
            shop.send(target, "1", id="1")
    assert transaction.committed is is_made
    with shop.transaction():
        shop.send(target, "2", id="2")
    assert values(read, target) == (["1", "2"] if is_made else ["2"])


@pytest.mark.parametrize("then", ["the next block", "the end"])
def test_an_abort_that_was_interrupted_is_made_by_what_comes_next(
    writer: MakeWriter, broker: EmbeddedBroker, topic: TopicFactory, read: Reader, name: str, then: str
) -> None:
    """Else readers of committed records wait behind it until it times out."""
    target, shop = topic(), writer(name)
    transactions = shop._with_transactions()
    ask = transactions._ask

    def interrupted(question: Callable[..., object], *arguments: object) -> None:
        if question.__name__ == "abort_transaction":
            transactions._ask = ask  # type: ignore[method-assign]
            raise KeyboardInterrupt
        ask(question, *arguments)

    transactions._ask = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt), shop.transaction() as transaction:  # noqa: PT012  what ends the block
        shop.send(target, "1", id="1").result()
        raise RuntimeError
    assert transaction.committed is False
    if then == "the next block":
        with shop.transaction():
            shop.send(target, "2", id="2")
    shop.close()
    wait_until(lambda: is_stable_to_the_end(broker, target))
    assert values(read, target) == (["2"] if then == "the next block" else [])


def is_stable_to_the_end(broker: EmbeddedBroker, topic: str) -> bool:
    ends = Asker(broker.bootstrap_servers).ends([(topic, 0)])
    return bool(ends["stable"].equals(ends["end"]))


def interrupt_before(patch: pytest.MonkeyPatch, of: object, name: str) -> None:
    """Ctrl-C is heard when the method is called, the first time."""
    does = getattr(of, name)

    def interrupted(*_: object) -> None:
        patch.setattr(of, name, does)
        raise KeyboardInterrupt

    patch.setattr(of, name, interrupted)


def interrupt_behind(patch: pytest.MonkeyPatch, of: object, name: str) -> None:
    """Ctrl-C is heard when the method has done its work, the first time."""
    does = getattr(of, name)
    heard: list[bool] = []

    def interrupted(*arguments: object, **named: object) -> object:
        done = does(*arguments, **named)
        if not heard:
            heard.append(True)
            raise KeyboardInterrupt
        return done

    patch.setattr(of, name, interrupted)


@pytest.fixture
def without_descriptors(monkeypatch: pytest.MonkeyPatch) -> Callable[[Transactions], AbstractContextManager[object]]:
    """Within it no further producer can be made."""

    def refuse() -> Sender:
        raise ConfigurationError("the writer's settings: Failed to create thread")

    @contextmanager
    def within(transactions: Transactions) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "_make_sender", refuse)
            yield

    return within


def test_a_commit_in_doubt_is_settled_when_a_producer_can_be_made_again(
    writer: MakeWriter,
    proxied: ProxiedBroker,
    read: Reader,
    name: str,
    without_descriptors: Callable[[Transactions], AbstractContextManager[object]],
) -> None:
    """The answer is lost, a stranger fences the id, and the next producer cannot be made."""
    create_topic(proxied, name)
    shop = writer(name, on=proxied.servers)
    direct = proxied.bootstrap_servers

    def stranger() -> None:
        Producer({"bootstrap.servers": direct, "transactional.id": name, "log_level": 0}).init_transactions(60)

    proxied.proxy.lose(Loss(END_TXN, then=stranger))
    with without_descriptors(shop._with_transactions()):
        with pytest.raises(OutcomeUnknown), shop.transaction() as transaction:
            shop.send(name, "1", id="1")
        assert transaction.committed is None
        with pytest.raises(OutcomeUnknown):
            shop.settle()
    assert shop.settle() is True
    with shop.transaction():
        shop.send(name, "2", id="2")
    assert values(read, name, proxied) == ["1", "2"]


def test_a_block_begins_when_a_producer_can_be_made_again(
    writer: MakeWriter,
    topic: TopicFactory,
    read: Reader,
    name: str,
    without_descriptors: Callable[[Transactions], AbstractContextManager[object]],
) -> None:
    target, shop = topic(), writer(name)
    transactions = shop._with_transactions()
    transactions.sender._note(KafkaError(KafkaError._TRANSPORT, "Disconnected"))
    with without_descriptors(transactions):
        for _ in range(2):
            with pytest.raises(ConfigurationError), shop.transaction():
                shop.send(target, "never", id="1")
    with shop.transaction():
        shop.send(target, "1", id="1")
    assert values(read, target) == ["1"]


def test_a_server_that_is_dead_aborts_no_block_while_another_one_answers(
    broker: EmbeddedBroker, writer: MakeWriter, topic: TopicFactory, read: Reader, name: str
) -> None:
    """Each new producer meets it before its first block; init_transactions hears of it and does not tell."""
    target = topic()
    dead = ",".join(f"127.0.0.1:{port}" for port in (1, 2, 3))
    for n in range(2):
        shop = writer(f"{name}-{n}", on=f"{dead},{broker.bootstrap_servers}")
        with shop.transaction():
            shop.send(target, str(n), id=str(n))
    assert values(read, target) == ["0", "1"]


@pytest.mark.parametrize("partition", [0, 1], ids=["new to it", "known to it"])
def test_behind_a_refused_event_what_is_on_its_way_is_written_only_in_a_partition_that_is_new_to_the_writer(
    writer: MakeWriter, proxied: ProxiedBroker, read: Reader, name: str, partition: int
) -> None:
    """The limit that docs/writer.md names: a broker takes any first batch of a producer that it does not know there."""
    create_topic(proxied, name, 2, config={"max.message.bytes": str(SMALL_BYTES)})
    one_by_one = {"linger.ms": 0, "batch.num.messages": 1, "compression.type": "gzip"}
    shop = writer(on=proxied.servers, kafka=one_by_one)
    shop.send(name, "before", id="before", partition=1).result()
    produce, never = frozenset({PRODUCE}), 1_000_000
    seen = [Rule(Do.CUT, produce, direction, first=never) for direction in (Direction.REQUEST, Direction.ANSWER)]
    proxied.proxy.rules.clear()
    with proxied.proxy.rules.during(*seen, Rule(Do.HOLD, produce, Direction.ANSWER)) as (asked, answered, held):
        bad = shop.send(name, os.urandom(2 * SMALL_BYTES), id="bad", partition=partition)
        behind = [shop.send(name, f"behind {n}", id=f"behind {n}", partition=partition) for n in range(6)]
        wait_until(lambda: asked.seen > 1)  # one of them is on its way before the writer can hear of the refusal
        held.release()
        with pytest.raises(DeliveryFailed, match="shop bad") as caught:
            shop.flush()
        wait_until(lambda: answered.seen >= asked.seen)
    written = [value for value in values(read, name, proxied) if value != "before"]
    assert written == [f"behind {n}" for n in range(len(written))]
    assert bool(written) is (partition == 0)
    assert bad.failure is not None
    assert bad.failure.fate is Fate.NOT_WRITTEN
    named = {each.identity.id: each.fate for each in caught.value.fields["failures"]}
    assert named.pop("bad") is Fate.NOT_WRITTEN
    assert set(named.values()) <= {Fate.UNKNOWN}, "nothing that may be written is called unwritten"
    acknowledged = {each.identity.id for each in behind if each.failure is None}
    assert acknowledged <= set(written)
    assert acknowledged | named.keys() == {each.identity.id for each in behind}


@pytest.mark.parametrize("lost", [Do.CUT, Do.HOLD], ids=["cut", "too late"])
def test_what_is_refused_when_it_was_written_is_not_called_unwritten(
    writer: MakeWriter, proxied: ProxiedBroker, read: Reader, name: str, lost: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgement is lost, the topic takes less from then on, and the repeated request is refused for that."""
    monkeypatch.setattr(Sender, "_note", told_where_other_brokers_live)
    create_topic(proxied, name)
    soon = {"request.timeout.ms": 15_000}  # and longer than it takes to limit the topic
    shop = writer(on=proxied.servers, kafka=soon if lost is Do.HOLD else {})
    event = shop.send(name, b"x", id="first")
    event.result()
    proxied.proxy.rules.clear()
    loss = Rule(
        lost,
        frozenset({PRODUCE}),
        Direction.ANSWER,
        count=1,
        then=lambda: limit_batches(proxied.bootstrap_servers, name, 2000),
    )
    with proxied.proxy.rules.during(loss) as (met,):
        event = shop.send(name, b"x" * 5000, id="written")
        with pytest.raises(DeliveryFailed, match="shop written"):
            event.result()
    assert met.applied == 1
    assert event.failure is not None
    assert event.failure.fate is Fate.UNKNOWN
    assert [len(value) for value in values(read, name, proxied)] == [1, 5000]


def told_where_other_brokers_live(sender: Sender, error: KafkaError) -> None:
    """librdkafka tells that no broker is left where one connection is lost to the only one; on a cluster there are others."""
    if error.code() != KafkaError._ALL_BROKERS_DOWN:
        sender._doubt_at = time.monotonic()


@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_refused_at_once_is_not_written(
    writer: MakeWriter, topic: TopicFactory, read: Reader, *, is_first: bool
) -> None:
    """Also where the connection to the bootstrap server is given up meanwhile, for the brokers are known."""
    target = topic(config={"max.message.bytes": "2000"})
    shop = writer(kafka={"compression.type": "gzip"})
    if not is_first:
        shop.send(target, b"x", id="first").result()
    event = shop.send(target, os.urandom(5000), id="refused")
    with pytest.raises(DeliveryFailed, match="shop refused"):
        event.result()
    assert event.failure is not None
    assert event.failure.fate is Fate.NOT_WRITTEN
    assert len(values(read, target)) == (0 if is_first else 1)


@BOTH_KINDS
@pytest.mark.in_turn(3)
def test_a_commit_without_any_answer_is_unknown_until_somebody_answers(
    writer: MakeWriter, killable: EmbeddedBroker, read: Reader, name: str
) -> None:
    broker = killable
    create_topic(broker, name)
    shop = writer(name, on=broker.bootstrap_servers)
    transactions = shop._with_transactions()
    enter, patience_s = transactions._enter, transactions._patience_s

    def enter_and_kill(entry: TopicPartition) -> None:
        enter(entry)
        broker.kill()
        transactions._patience_s = 4.0  # not before: a broker that lives may be slow

    transactions._enter = enter_and_kill  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown) as caught, shop.transaction(progress="p") as transaction:
        shop.send(name, "1", id="1")
    assert caught.value.retriable
    assert transaction.committed is None
    with pytest.raises(OutcomeUnknown), shop.transaction():
        pass
    transactions._enter, transactions._patience_s = enter, patience_s  # type: ignore[method-assign]
    broker.start()
    committed = settled(shop)
    assert values(read, name, broker) == (["1"] if committed else [])
    wait_until(lambda: commits(shop, name, [2]))
    assert values(read, name, broker)[-1] == "2"


def blocks_through(proxied: ProxiedBroker, shop: Writer, name: str, loss: Loss) -> Iterator[int]:
    """Three blocks, each run again until it is committed; the answers of the second one are lost."""
    for block in range(3):
        proxied.proxy.lose(loss if block == 1 else NOTHING)
        wait_until(partial(commits, shop, name, range(block * 5, block * 5 + 5), str(block)))
        assert shop.progress == str(block)
        yield block


def commits(shop: Writer, name: str, numbers: Iterable[int], progress: str | None = None) -> bool:
    """False where the block has to be run again: a machine may be slower than the patience of a broker, or of a writer."""
    try:
        with shop.transaction(progress):
            for n in numbers:
                shop.send(name, str(n), id=str(n))
    except TransactionAborted as error:
        if not error.retriable:
            raise
        return False
    return True


def opened(writer: MakeWriter, name: str, broker: EmbeddedBroker) -> Writer:
    """Also on a machine that is so slow that the id is forgotten again before its claim is made."""
    made: list[Writer] = []

    def opens() -> bool:
        try:
            made.append(writer(name, on=broker.bootstrap_servers))
        except BrokerUnreachable as error:
            if "was not claimed" not in error.message:
                raise
        return bool(made)

    wait_until(opens)
    return made[0]


def settled(shop: Writer) -> bool:
    found: list[bool] = []

    def settle() -> bool:
        try:
            found.append(shop.settle())
        except OutcomeUnknown:
            return False
        return True

    wait_until(settle)
    return found[0]


@BOTH_KINDS
def test_an_idle_writer_whose_producer_id_expired_goes_on(
    writer: MakeWriter, mortal: Callable[[], EmbeddedBroker], read: Reader, name: str
) -> None:
    broker = mortal()
    create_topic(broker, name)
    with writer(on=broker.bootstrap_servers) as shop:
        for n in range(5):
            shop.send(name, str(n), id=str(n)).result()
        wait_until(lambda: not active_producers(broker, name))
        for n in range(5, 10):
            shop.send(name, str(n), id=str(n)).result()
    assert values(read, name, broker) == [str(n) for n in range(10)]


def test_so_does_plain_confluent_kafka(mortal: Callable[[], EmbeddedBroker], read: Reader, name: str) -> None:
    """So nothing here defends it, and docs/writer.md says so: a broker that knows no sequence of a producer takes any."""
    broker = mortal()
    create_topic(broker, name)
    plain = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0})
    for n in range(10):
        if n == 5:
            wait_until(lambda: not active_producers(broker, name))
        plain.produce(name, str(n))
        assert plain.flush(60) == 0
    assert values(read, name, broker) == [str(n) for n in range(10)]


@BOTH_KINDS
def test_a_writer_that_rested_until_its_transactional_id_expired_goes_on_as_if_nothing_had_been(
    writer: MakeWriter, mortal: Callable[[], EmbeddedBroker], read: Reader, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No block has to be run again: the id is taken anew before the first event of the next one, and the progress is kept."""
    monkeypatch.setattr(coordination, "REST_S", 0.0)
    broker = mortal()
    create_topic(broker, name)
    shop = opened(writer, name, broker)
    wait_until(lambda: commits(shop, name, [1], progress="1"))

    def goes_on_behind_a_rest() -> bool:
        """A machine may be so slow that the id is forgotten again behind the look; without the look this is never true."""
        wait_until(lambda: not knows_id(broker, name))
        return commits(shop, name, [2])

    wait_until(goes_on_behind_a_rest)
    assert shop.progress == "1"
    assert values(read, name, broker) == ["1", "2"]


def test_a_writer_that_rested_until_another_one_took_its_id_is_told_before_its_block(
    writer: MakeWriter, topic: TopicFactory, read: Reader, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look behind a rest fences nobody who came since."""
    monkeypatch.setattr(coordination, "REST_S", 0.0)
    target = topic()
    first, second = writer(name), writer(name)
    for _ in range(2):
        with pytest.raises(Fenced), first.transaction():
            pytest.fail("its block began")
    with second.transaction():
        second.send(target, "1", id="1")
    assert values(read, target) == ["1"]


def test_a_writer_whose_transactional_id_expires_sooner_than_it_looks_runs_its_block_again(
    writer: MakeWriter, mortal: Callable[[], EmbeddedBroker], read: Reader, name: str
) -> None:
    """Also the control: so it would be after each rest, without the look."""
    broker = mortal()
    create_topic(broker, name)
    shop = opened(writer, name, broker)
    wait_until(lambda: commits(shop, name, [1], progress="1"))
    wait_until(lambda: not knows_id(broker, name))
    with (
        pytest.raises(TransactionAborted, match=r"(?s)its producer id has expired .*shop 2 to ") as caught,
        shop.transaction(),
    ):
        shop.send(name, "2", id="2")
    assert caught.value.retriable
    assert shop.progress == "1"
    wait_until(lambda: commits(shop, name, [2]))
    assert shop.progress == "1"
    assert values(read, name, broker) == ["1", "2"]
    wait_until(lambda: not knows_id(broker, name))
    with (
        pytest.raises(TransactionAborted, match="the marker was refused: its producer id has expired"),
        shop.transaction(),
    ):
        pass


def test_control_plain_confluent_kafka_whose_transactional_id_expired_has_to_run_its_block_again(
    mortal: Callable[[], EmbeddedBroker], read: Reader, name: str
) -> None:
    broker = mortal()
    create_topic(broker, name)
    begun: list[Producer] = []
    wait_until(lambda: begins(begun, broker, name))
    plain = begun[-1]
    wait_until(lambda: not knows_id(broker, name))
    with pytest.raises(KafkaException) as refused:
        commit_one(plain, name, "2")
    assert refused.value.args[0].txn_requires_abort()
    plain.abort_transaction(60)
    assert values(read, name, broker) == ["1"]


def begins(begun: list[Producer], broker: EmbeddedBroker, name: str) -> bool:
    """False on a machine that is so slow that the id is forgotten before its first transaction."""
    begun.append(Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, "log_level": 0}))
    begun[-1].init_transactions(60)
    try:
        commit_one(begun[-1], name, "1")
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        return False
    return True


def commit_one(producer: Producer, topic: str, value: str) -> None:
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.commit_transaction(60)


@BOTH_KINDS
def test_a_commit_in_doubt_whose_marker_is_forgotten_stays_in_doubt(
    writer: MakeWriter, proxied: ProxiedBroker, read: Reader, name: str
) -> None:
    """Whether it was made cannot be told any more: here it was, and "not committed" would have it made twice."""
    create_topic(proxied, name)
    direct = proxied.bootstrap_servers
    shop = writer(name, on=proxied.servers)

    def fence_and_forget() -> None:
        Producer({"bootstrap.servers": direct, "transactional.id": name, "log_level": 0}).init_transactions(60)
        forget_marker(proxied, name)

    proxied.proxy.lose(Loss(END_TXN, then=fence_and_forget))
    with pytest.raises(OutcomeForgotten) as caught, shop.transaction(progress="1") as transaction:
        shop.send(name, "1", id="1")
    assert proxied.proxy.lost == 1
    assert (transaction.committed, caught.value.retriable) == (None, False)
    for _ in range(2):
        with pytest.raises(OutcomeForgotten):
            shop.settle()
    with pytest.raises(OutcomeUnknown), shop.transaction():
        pass
    assert values(read, name, proxied) == ["1"]
    assert writer(name, on=direct).progress == "", "nothing tells a forgotten id from a new one"


def forget_marker(broker: EmbeddedBroker, transactional_id: str) -> None:
    """As the cluster does when nothing was committed for ``offsets.retention.minutes``."""
    group = f"onceflow.writer.{transactional_id}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_consumer_groups([group], request_timeout=60)[group].result(60)


def active_producers(broker: EmbeddedBroker, topic: str) -> int:
    """How many producer ids the leader of the topic's first partition remembers."""
    from kafka.protocol.admin import DescribeProducersRequest

    from onceflow.kafka.client import KafkaClient
    from onceflow.kafka.settings import ClusterSettings

    with KafkaClient(ClusterSettings.of(broker.bootstrap_servers).for_protocol()) as client:
        leader = client.topics([topic])[topic].leaders[0]
        wanted = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])
        answer = client.ask(leader, DescribeProducersRequest(topics=[wanted]))
        return len(answer.topics[0].partitions[0].active_producers)


def knows_id(broker: EmbeddedBroker, transactional_id: str) -> bool:
    """Whether the coordinator still remembers the id."""
    from kafka.protocol.admin import DescribeTransactionsRequest

    from onceflow.kafka import codes
    from onceflow.kafka.client import TRANSACTION, KafkaClient
    from onceflow.kafka.settings import ClusterSettings

    with KafkaClient(ClusterSettings.of(broker.bootstrap_servers).for_protocol()) as client:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer = client.ask_coordinator(TRANSACTION, transactional_id, request)
        return bool(answer.transaction_states[0].error_code != codes.TRANSACTIONAL_ID_NOT_FOUND)
