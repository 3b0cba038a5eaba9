"""Known bugs of Kafka and its clients, brought about on a real broker: what they do to who has no defence, and not to us.

docs/faults.md has all of them; these are those that no other test is about.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import tests.faults.light
from confluent_kafka import Consumer, KafkaException, Message, Producer
from pyspark.sql import SparkSession
from tests.conftest import read_topic
from tests.faults.light import FailsOnce, Job, LightDriver, records_of
from tests.faults.naive_readers import Fetched, fetched
from tests.faults.support import PUNCTUAL, TIMEOUT_S, Cluster, eventually, expected_records
from tests.faults.takeover import Dying, listen
from tests.faults.test_lost_answers import job
from tests.faults.test_timed_out import wait_for_the_abort
from tests.verify.simulator.real import RealBroker
from tests.writer.wire import ProxiedBroker, WireProxy

import onceflow
from onceflow.broker import EmbeddedBroker
from onceflow.errors import OnceflowError, RequestFailed
from onceflow.kafka import codes
from onceflow.kafka.client import KafkaClient
from onceflow.reader.event import Event as Consumed
from onceflow.transaction.asking import Asking
from onceflow.transaction.messages import Ended, Event, Identity
from onceflow.transaction.questions import Question, Questions, transactional_id
from onceflow.transaction.requests import Requests
from onceflow.verify.simulator.requests import (
    UNKNOWN_SERVER_ERROR,
    AddPartitions,
    EndTransaction,
    InitProducerId,
    Produce,
)
from onceflow.verify.simulator.variants import RefusedIsAborted
from onceflow.verify.wire import Direction, Do, Rule, Wire, apis

pytestmark = pytest.mark.faults

VALUES = [str(number) for number in range(6)]
LATE = 1


@pytest.fixture(scope="module")
def punctual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Of version 1, as most clients are; it ends a transaction soon after its timeout, and not up to 10 s later."""
    directory = tmp_path_factory.mktemp("punctual")
    with (
        EmbeddedBroker(directory, transaction_version=1, heap_mb=256, config=PUNCTUAL) as broker,
        closing(Cluster(broker)) as cluster,
    ):
        yield cluster


# ------------------------------------------------------------- KAFKA-14402 (KIP-890): a late Produce joins the next transaction


def committed_after_a_late_produce(cluster: Cluster, version: int, *, fresh_epoch: bool) -> list[str | None]:
    """What is visible when a Produce of an aborted transaction comes in the next one, which is committed."""
    topic = cluster.make_topic(1)
    with KafkaClient({"bootstrap_servers": [cluster.servers]}, patience_s=60) as client:
        real = RealBroker(client, topic, version, topic)
        late = identified(real, InitProducerId(None))
        add(real, late)
        current = identified(real, EndTransaction(late, commit=False), otherwise=late)
        if fresh_epoch:
            current = identified(real, InitProducerId(current))
        add(real, current)
        real.ask(Produce(late, 0, 0, (LATE,)))
        real.ask(EndTransaction(current, commit=True))
    return [value for _, _, value in cluster.read(topic)]


def identified(
    real: RealBroker, request: InitProducerId | EndTransaction, otherwise: Identity | None = None
) -> Identity:
    found = real.ask(request).identity or otherwise
    assert found is not None
    return found


def add(real: RealBroker, identity: Identity) -> None:
    """The partition joins the transaction; version 2 has no request of its own for that."""
    if real.version == 1:
        assert real.ask(AddPartitions(identity, 0)).code == codes.NONE


def test_a_late_produce_is_refused_where_each_batch_has_its_own_epoch(punctual: Cluster) -> None:
    assert committed_after_a_late_produce(punctual, 1, fresh_epoch=True) == []


def test_a_late_produce_is_refused_by_transaction_version_2(v2: Cluster) -> None:
    assert committed_after_a_late_produce(v2, 2, fresh_epoch=False) == []


def test_control_under_one_epoch_a_late_produce_of_an_aborted_transaction_is_committed(punctual: Cluster) -> None:
    (value,) = committed_after_a_late_produce(punctual, 1, fresh_epoch=False)
    assert (value or "").endswith(f":{LATE}")


# --------------------------------------------------------------- KAFKA-17582: a consumer does not go back when a block is aborted


def copied(cluster: Cluster, *, goes_back: bool) -> list[str | None]:
    """A copy whose first block, of three events, is aborted; and that is as the documentation has it, or does not seek back."""
    source, target = cluster.make_topic(1), cluster.make_topic(1)
    settings = {"group.id": source, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": cluster.servers, "isolation.level": "read_committed", **settings})
    writer = onceflow.Writer(bootstrap_servers=cluster.servers, source="copy", transactional_id=source)
    with closing(consumer), writer:
        consumer.subscribe([source])
        # An error, as that a topic made a moment ago is not known yet, is no assignment.
        eventually(lambda: (consumer.poll(0.1), consumer.assignment())[1], bool, "an assignment")
        fill(cluster, source)
        with suppress(ZeroDivisionError), writer.transaction(consumer=consumer) as block:
            copy(consumer, writer, target, 3)
            block.consumed(consumer)
            _ = 1 / 0
        if goes_back:
            for at in consumer.committed(consumer.assignment(), timeout=TIMEOUT_S):
                consumer.seek(at)
        with writer.transaction(consumer=consumer) as block:
            copy(consumer, writer, target, len(VALUES) if goes_back else len(VALUES) - 3)
            block.consumed(consumer)
        (committed,) = consumer.committed(consumer.assignment(), timeout=TIMEOUT_S)
        assert committed.offset == len(VALUES), "it is behind all of them"
    return [value for _, _, value in cluster.read(target)]


def fill(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.servers, "log_level": 0})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def copy(consumer: Consumer, writer: onceflow.Writer, target: str, count: int) -> None:
    for _ in range(count):
        message = eventually(lambda: consumer.poll(1), bool, "an event")
        assert message is not None
        assert message.error() is None
        writer.send(target, message.value() or b"", key="k", id=position_of(message))


def position_of(message: Message) -> str:
    return f"{message.topic()}:{message.partition()}:{message.offset()}"


def test_a_copy_that_seeks_back_after_an_aborted_block_loses_nothing(punctual: Cluster) -> None:
    assert copied(punctual, goes_back=True) == VALUES


def test_control_a_consumer_that_is_not_sought_back_passes_the_aborted_blocks_events_over(punctual: Cluster) -> None:
    assert copied(punctual, goes_back=False) == VALUES[3:]


# ------------------------------------------- two-phase commit around a checkpoint, as Flink's: prepared, timed out, and lost


def copied_in_two_phases(cluster: Cluster, *, times_out: bool) -> list[str | None]:
    """What is visible of a job that is away between its checkpoint and its commit::

    job   writes some values: prepared; its checkpoint is complete, and behind them
    job   is away, for longer than its transaction may last or not; is up again, and commits what was prepared
    job   goes on from its checkpoint, whatever became of that
    """
    topic = cluster.make_topic(1)
    timeout_ms = 1000 if times_out else 60_000
    producer = transactional(cluster, transactional_id(topic), "none", timeout_ms)
    write(producer, topic, VALUES[:3])
    checkpoint = 3
    if times_out:
        with KafkaClient({"bootstrap_servers": [cluster.servers]}) as client:
            wait_for_the_abort(Requests(client, topic, 1, timeout_ms))
    with pytest.raises(KafkaException) if times_out else nullcontext():
        producer.commit_transaction(TIMEOUT_S)
    successor = transactional(cluster, transactional_id(topic), "none", timeout_ms=60_000)
    write(successor, topic, VALUES[checkpoint:])
    successor.commit_transaction(TIMEOUT_S)
    return [value for _, _, value in cluster.read(topic)]


def write(producer: Producer, topic: str, values: list[str]) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def test_what_is_prepared_before_a_checkpoint_is_committed_behind_it_where_that_is_in_time(punctual: Cluster) -> None:
    assert copied_in_two_phases(punctual, times_out=False) == VALUES


def test_control_what_is_prepared_before_a_checkpoint_is_lost_when_its_transaction_times_out(punctual: Cluster) -> None:
    """Ours is no such commit: the progress is in the transaction itself (``test_timed_out.py``, at its COMMIT)."""
    assert copied_in_two_phases(punctual, times_out=True) == VALUES[3:]


# ------------------------------------------------- librdkafka #3020, franz-go: aborted records that are packed, or out of order


CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
def test_of_overlapping_transactions_only_the_committed_ones_are_read(punctual: Cluster, codec: str) -> None:
    topic = punctual.make_topic(1)
    expected = overlapping(punctual, topic, codec)
    assert sorted(handled(punctual, topic)) == expected
    assert sorted(value or "" for _, _, value in punctual.read(topic)) == expected
    assert len(read_topic(punctual.broker, topic, committed=False)) == 4 * 4 * 3, "the others are there"


def test_control_who_takes_the_list_of_aborted_transactions_for_sorted_reads_aborted_records(
    punctual: Cluster,
) -> None:
    topic = punctual.make_topic(1)
    expected = overlapping(punctual, topic, "none")
    found = fetched_below_the_stable_end(punctual, topic)
    by_offset = sorted(found.aborted, key=lambda each: each[1])
    assert list(found.aborted) != by_offset, "the broker lists them as they ended"
    assert sorted(found.values(by_offset)) == expected
    assert set(found.values()) - set(expected)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_control_who_does_not_filter_compressed_batches_reads_aborted_records(punctual: Cluster, codec: str) -> None:
    topic = punctual.make_topic(1)
    expected = overlapping(punctual, topic, codec)
    found = fetched_below_the_stable_end(punctual, topic)
    by_offset = sorted(found.aborted, key=lambda each: each[1])
    given = found.values(by_offset, filters_compressed=False)
    assert len(given) == (len(expected) if codec == "none" else 4 * 4 * 3)


def fetched_below_the_stable_end(cluster: Cluster, topic: str) -> Fetched:
    cluster.stable_end(topic)  # where it ends
    with KafkaClient({"bootstrap_servers": [cluster.servers]}, patience_s=60) as client:
        return fetched(client, topic)


@pytest.mark.parametrize("codec", CODECS)
def test_of_overlapping_transactions_a_pipeline_s_source_reads_only_the_committed_ones(
    punctual: Cluster, spark: SparkSession, codec: str
) -> None:
    """It reads by Kafka's Java consumer."""
    topic = punctual.make_topic(1)
    expected = overlapping(punctual, topic, codec)
    punctual.stable_end(topic)
    assert read_by_spark(punctual, spark, topic, "read_committed") == expected
    assert len(read_by_spark(punctual, spark, topic, "read_uncommitted")) == 4 * 4 * 3, "the others are there"


def overlapping(cluster: Cluster, topic: str, codec: str) -> list[str]:
    """Transactions that end in the opposite order of their beginnings, so that the broker's list of aborted ones is not sorted by
    these. The values that are committed, in order.
    """
    committed = []
    producers = [transactional(cluster, f"{topic}-{number}", codec) for number in range(4)]
    for turn in range(4):
        for number, producer in enumerate(producers):
            producer.begin_transaction()
            for part in range(3):
                producer.produce(topic, f"{turn} {number} {part} ".ljust(500, "x"))
            assert producer.flush(TIMEOUT_S) == 0
        for number, producer in reversed([*enumerate(producers)]):
            if (turn + number) % 3 == 0:
                producer.commit_transaction(TIMEOUT_S)
                committed += [f"{turn} {number} {part} ".ljust(500, "x") for part in range(3)]
            else:
                producer.abort_transaction(TIMEOUT_S)
    return sorted(committed)


def read_by_spark(cluster: Cluster, spark: SparkSession, topic: str, isolation: str) -> list[str]:
    options = {
        "kafka.bootstrap.servers": cluster.servers,
        "kafka.isolation.level": isolation,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    frame = spark.read.format("kafka").options(**options).load()
    return sorted(row.value for row in frame.selectExpr("cast(value AS string) AS value").collect())


def transactional(cluster: Cluster, name: str, codec: str, timeout_ms: int = 60_000) -> Producer:
    settings = {
        "transactional.id": name,
        "compression.type": codec,
        "transaction.timeout.ms": timeout_ms,
        "log_level": 0,
    }
    producer = Producer({"bootstrap.servers": cluster.servers, **settings})
    producer.init_transactions(TIMEOUT_S)
    return producer


def handled(cluster: Cluster, topic: str) -> list[str]:
    found: list[str] = []
    cluster.stable_end(topic)  # where it ends
    reader = onceflow.Reader(topic, group=topic, store="memory:", bootstrap_servers=cluster.servers)

    @reader.handler
    def note(event: Consumed) -> None:
        found.append((event.value or b"").decode())

    reader.run(until_end=True)
    return found


# ------------------------------------- librdkafka before 1.7: a commit that was ok although its events had timed out before


def test_a_block_whose_events_timed_out_before_their_partition_joined_is_not_reported_as_committed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("proxied")
    # The block behind has to keep the first; librdkafka waits longer with each connection that is cut.
    kafka = {"delivery.timeout.ms": 5000, "reconnect.backoff.max.ms": 500}
    with WireProxy() as proxy, ProxiedBroker(directory, proxy) as broker, closing(Cluster(broker)) as cluster:
        topic = cluster.make_topic(1)
        place = {"bootstrap_servers": broker.servers, "source": "shop", "transactional_id": topic}
        with onceflow.Writer(**place, kafka=kafka) as writer:
            with proxy.rules.during(Rule(Do.CUT, frozenset({apis.ADD_PARTITIONS}))) as (cut,):
                with pytest.raises(OnceflowError) as raised, writer.transaction() as block:
                    send(writer, topic)
                assert cut.applied > 0
            assert block.committed is False, raised.value
            assert cluster.read(topic) == []
            with writer.transaction():
                send(writer, topic)
        assert [value for _, _, value in cluster.read(topic)] == VALUES


def send(writer: onceflow.Writer, topic: str) -> None:
    for value in VALUES:
        writer.send(topic, value.encode(), key="k", id=value)


# ------------------------------------------------------------ franz-go: an EndTxn that failed is reported as committed


def told_of_an_unknown_error(direction: Direction) -> Rule:
    """The end of the first batch, which the broker did not get, or which it has done (the answer is another one)."""
    error = UNKNOWN_SERVER_ERROR.code
    return Rule(Do.FAIL, frozenset({apis.END_TXN}), direction, first=1, count=1, error=error)


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("ends", ["COMMIT", "ABORT"])
def test_an_end_that_failed_for_a_reason_unknown_is_asked_again_and_neither_done_nor_refused(
    cluster: Cluster, tmp_path: Path, direction: Direction, ends: str
) -> None:
    if ends == "ABORT" and cluster.broker.status().transaction_version == 1:
        pytest.skip("no EndTxn aborts on transaction version 1")
    with Wire() as wire:
        failed = wire.rules.add(told_of_an_unknown_error(direction))
        driver = (LightDriver if ends == "COMMIT" else FailsOnce)(job(cluster, tmp_path, wire))
        driver.run()
    assert failed.applied == 1
    cluster.check_exactly(driver.topic, expected_records(2))
    steps = [step for step, _ in driver.steps]
    assert steps.count("ABORT") == (ends == "ABORT")
    assert steps.count("LOOK") == 0


class TakesItForDone(Questions):
    """As franz-go did."""

    def end(self, identity: Identity, *, commit: bool) -> Question[Event]:
        question = super().end(identity, commit=commit)

        def read(answer: Any) -> Event:
            if answer.error_code == UNKNOWN_SERVER_ERROR.code:
                return Ended(identity if self.version >= 2 else None)
            return question.read(answer)

        return replace(question, _read=read)


class Believing(Requests):
    @property
    def _asking(self) -> Asking:
        return replace(super()._asking, questions=TakesItForDone(self.name, self.version, self.timeout_ms))


def test_control_who_takes_a_commit_for_done_that_failed_for_a_reason_unknown_loses_it(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And lets nothing that it reads later tell it better: else the next batch does not continue what is committed."""
    monkeypatch.setattr(tests.faults.light, "Requests", Believing)
    monkeypatch.setattr(tests.faults.light, "Protocol", RefusedIsAborted)
    with Wire() as wire:
        failed = wire.rules.add(told_of_an_unknown_error(Direction.REQUEST))
        driver = LightDriver(job(cluster, tmp_path, wire))
        driver.run()
    assert failed.applied == 1
    assert driver.done() == 2
    found = {value for _, _, value in cluster.read(driver.topic)}
    assert found == {value for _, value in records_of(1)}


# -------------------------------------- franz-go: who takes over does not ask again after CONCURRENT_TRANSACTIONS


@pytest.fixture
def left_open(cluster: Cluster, tmp_path: Path) -> Job:
    """The job of a driver that has ended with its first transaction open. Whoever takes over aborts that by asking at all."""
    name = cluster.unique("left-open")
    left = Job(cluster.servers, name, cluster.make_topic(), str(tmp_path / name))
    Dying(left, "STORE").run()
    return left


def test_who_takes_over_asks_again_until_what_was_open_is_aborted(
    cluster: Cluster, left_open: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While markers wait, for as long as they do: ``tests/verify/faults/test_isolated_broker.py``."""
    told: list[int] = []
    listen(monkeypatch, told.append)
    LightDriver(left_open).run()
    assert set(takewhile(lambda code: code != codes.NONE, told)) == {codes.CONCURRENT_TRANSACTIONS}
    cluster.check_exactly(left_open.topic, expected_records(2))


def test_control_who_gives_up_at_concurrent_transactions_does_not_take_over(
    cluster: Cluster, left_open: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As franz-go did: the same client, to whom this one code does not say to ask again."""
    monkeypatch.setattr(codes, "RETRIABLE", codes.RETRIABLE - {codes.CONCURRENT_TRANSACTIONS})
    driver = LightDriver(left_open)
    with pytest.raises(RequestFailed, match="InitProducerId: ConcurrentTransactions") as raised:
        driver.run()
    assert raised.value.fields["error_code"] == codes.CONCURRENT_TRANSACTIONS
    assert driver.steps[-1] == ("FENCE", -1)
    assert driver.done() == 0
    assert cluster.read(left_open.topic) == []
