"""A request that comes late, when the next transaction is open, has no part in that; and under one epoch for many it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Self

import pytest
import tests.faults.light
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.protocol.admin import DescribeTransactionsRequest
from tests.faults.light import RECORDS_PER_BATCH, LightDriver
from tests.faults.support import Cluster, eventually
from tests.new_topics import create
from tests.verify.faults.bare import PATIENCE_S, BareWorld, Steady, SteadyDriver

from onceflow.kafka.client import TRANSACTION, KafkaClient
from onceflow.transaction.messages import Counts, Identity
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.faults import late
from onceflow.verify.faults.late import LateEndTxn, LateWrite
from onceflow.verify.recording.ends import committed_of
from onceflow.verify.simulator.variants import VARIANTS
from onceflow.verify.wire import Do, Rule, apis
from onceflow.verify.wire.rules import ActiveRule

pytestmark = pytest.mark.faults

ARRIVED = "the late {} arrived while the next transaction was open"
REQUEST_TIMEOUT_MS = 60_000


@pytest.fixture
def request_timeout_ms() -> int:
    return REQUEST_TIMEOUT_MS


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine, too, the next transaction stays open until the late request is answered."""
    monkeypatch.setattr(late, "_KEPT_OPEN_S", REQUEST_TIMEOUT_MS / 2000)


def test_late_endtxn(world: BareWorld) -> None:
    for seed in range(3):
        LateEndTxn().inject(world.as_world(), Random(seed))
        assert world.notes[-1] == ARRIVED.format("EndTxn")


@pytest.fixture
def silent(wired: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BareWorld]:
    """With a driver whose batches have no output: its transactions are of offsets alone."""
    monkeypatch.setattr(LightDriver, "_write", lambda driver, identity, batch: {})
    driver = SteadyDriver(wired, tmp_path, request_timeout_ms=REQUEST_TIMEOUT_MS)
    driver.goes_on()
    yield BareWorld(wired, driver)
    driver.goes_on()
    driver.end()


@pytest.fixture
def went_back(wired: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(what it has committed, what is committed) of each batch of a driver behind which the two differ."""
    found = list[tuple[int, int]]()
    note_done = LightDriver.note_done

    def look(driver: LightDriver, batch_id: int) -> None:
        note_done(driver, batch_id)
        told = (batch_id + 1) * RECORDS_PER_BATCH
        committed = committed_of(wired.direct_servers, driver.job.name).offsets[driver.topic, 0]
        if committed != told:
            found.append((told, committed))

    monkeypatch.setattr(LightDriver, "note_done", look)
    return found


def test_late_endtxn_of_transactions_without_output(silent: BareWorld) -> None:
    """As most are of a plan over long windows, or behind a filter that seldom lets something pass."""
    for seed in range(3):
        LateEndTxn().inject(silent.as_world(), Random(seed))
        assert silent.notes[-1] == ARRIVED.format("EndTxn")
    assert not silent.misses


def before_it_is_released(monkeypatch: pytest.MonkeyPatch, look: Callable[[], object]) -> None:
    """Looks right before a request that is held is let go."""
    release = ActiveRule.release

    def look_first(active: ActiveRule) -> None:
        if active.rule.do is Do.HOLD and not active.is_released:
            look()
        release(active)

    monkeypatch.setattr(ActiveRule, "release", look_first)


def test_the_next_transaction_is_open_when_a_late_endtxn_arrives(
    silent: BareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of offsets alone has ended some milliseconds after it began; an EndTxn that comes then is late for nothing."""
    states = list[str]()
    before_it_is_released(monkeypatch, lambda: states.append(state_of_transaction(silent)))
    for seed in range(3):
        LateEndTxn().inject(silent.as_world(), Random(seed))
    assert states == ["Ongoing"] * 3


def state_of_transaction(world: BareWorld) -> str:
    request = DescribeTransactionsRequest(transactional_ids=[world.transactional_id])
    with KafkaClient({"bootstrap_servers": [world.kafka.direct_servers]}, patience_s=PATIENCE_S) as client:
        answer = client.ask_coordinator(TRANSACTION, world.transactional_id, request)
    return str(answer.transaction_states[0].transaction_state)


def test_a_late_endtxn_that_comes_when_the_next_transaction_has_ended_has_missed(
    silent: BareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late, "_KEPT_OPEN_S", 0.0)
    ends = silent.kafka.wires[0].seen

    def await_its_end() -> None:
        before = ends[apis.END_TXN]
        eventually(lambda: ends[apis.END_TXN], lambda now: now > before, "the next EndTxn", PATIENCE_S)

    before_it_is_released(monkeypatch, await_its_end)
    LateEndTxn().inject(silent.as_world(), Random(1))
    assert silent.misses == ["no late EndTxn: the next transaction ended before it was answered"]


@pytest.mark.long
def test_late_endtxn_that_nothing_follows_has_missed(silent: BareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no reason to break the run off."""
    monkeypatch.setattr(late, "_ANY_WRITE", frozenset[int]())
    monkeypatch.setattr(late, "_PATIENCE_S", 30.0)
    LateEndTxn().inject(silent.as_world(), Random(1))
    assert silent.misses == ["no late EndTxn: no transaction came that writes"]


@pytest.mark.parametrize("kind", ["Produce", "TxnOffsetCommit"])
@pytest.mark.in_turn(2)
def test_late_write(world: BareWorld, went_back: list[tuple[int, int]], kind: str) -> None:
    for seed in range(3):
        LateWrite(kinds=(kind,)).inject(world.as_world(), Random(seed))
        assert world.notes[-1] == ARRIVED.format(kind)
        world.driver_of_batches.goes_on()
    assert not world.misses
    assert went_back == []


def test_late_offsets_of_transactions_without_output(silent: BareWorld, went_back: list[tuple[int, int]]) -> None:
    """No sequence number defends them."""
    LateWrite(kinds=("TxnOffsetCommit",)).inject(silent.as_world(), Random(1))
    silent.driver_of_batches.goes_on()
    assert silent.notes == [ARRIVED.format("TxnOffsetCommit")]
    assert went_back == []


@pytest.fixture
def one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests.faults.light, "Protocol", VARIANTS["no fresh epoch"].machine)


@pytest.mark.parametrize("wired", [1], ids=["v1"], indirect=True)  # version 2 gives each its own
@pytest.mark.usefixtures("one_epoch")
def test_control_without_an_epoch_for_each_transaction_late_offsets_take_the_committed_ones_back(
    silent: BareWorld, went_back: list[tuple[int, int]]
) -> None:
    LateWrite(kinds=("TxnOffsetCommit",)).inject(silent.as_world(), Random(1))
    silent.driver_of_batches.goes_on()
    assert silent.notes == [ARRIVED.format("TxnOffsetCommit")]
    ((told, committed),) = went_back
    assert committed == told - RECORDS_PER_BATCH


class Plain(Steady):
    """Records by a producer that is not idempotent, and offsets in transactions under one epoch, which it looks at after each."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        super().__init__()
        admin = AdminClient({"bootstrap.servers": cluster.direct_servers})
        create(admin, NewTopic(topic), PATIENCE_S)
        self.topic = topic
        self.went_back = list[tuple[int, int]]()
        options = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
        self._writer = Producer({**options, "acks": "all", "linger.ms": 0})
        self._offsets = Producer({**options, "transactional.id": topic})
        self._consumer = Consumer({"bootstrap.servers": cluster.direct_servers, "group.id": topic})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.ends()
        self._consumer.close()

    def _work(self) -> None:
        self._offsets.init_transactions(PATIENCE_S)
        while not self._ending.is_set():
            self._transact()

    def _transact(self) -> None:
        offset = self.done + 1
        self._writer.produce(self.topic, str(offset))
        assert self._writer.flush(PATIENCE_S) == 0
        self._offsets.begin_transaction()
        group = self._consumer.consumer_group_metadata()
        self._offsets.send_offsets_to_transaction([TopicPartition(self.topic, 0, offset)], group, PATIENCE_S)
        self._offsets.commit_transaction(PATIENCE_S)
        (place,) = self._consumer.committed([TopicPartition(self.topic, 0)], PATIENCE_S)
        if place.offset != offset:
            self.went_back.append((offset, place.offset))
        self.done = offset


def test_control_under_one_epoch_late_offsets_take_the_committed_ones_back(wired: KafkaCluster) -> None:
    """Whoever starts there repeats a transaction: the late offsets are those of the one before."""
    world = BareWorld(wired)
    with Plain(wired, f"offsets-{wired.transaction_version}") as plain:
        plain.goes_on()
        LateWrite(kinds=("TxnOffsetCommit",)).inject(world.as_world(), Random(1))
        plain.goes_on()
    assert world.notes == [ARRIVED.format("TxnOffsetCommit")]
    ((told, committed),) = plain.went_back
    assert committed == told - 1


def test_control_records_without_a_sequence_come_again(wired: KafkaCluster) -> None:
    world = BareWorld(wired)
    with Plain(wired, f"records-{wired.transaction_version}") as plain:
        plain.goes_on()
        LateWrite(kinds=("Produce",)).inject(world.as_world(), Random(1))
        plain.goes_on()
    assert world.notes == [ARRIVED.format("Produce")]
    judge = Cluster(wired)
    found = Counter(value for _, _, value in judge.read(plain.topic))
    judge.close()
    assert sorted(found.values())[-2:] == [1, 2]


def test_a_late_write_where_nobody_writes_has_missed(silent: BareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "_PATIENCE_S", 1.0)
    LateWrite(kinds=("Produce",)).inject(silent.as_world(), Random(1))
    assert silent.misses == ["no late Produce: none was sent"]


def test_transactions_that_write_nothing_are_let_pass(
    wired: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a plan over windows only some batches have output: a late Produce waits for the next one that has."""
    write = LightDriver._write

    def seldom(driver: LightDriver, identity: Identity, batch_id: int) -> Counts:
        return {} if batch_id % 4 else write(driver, identity, batch_id)

    monkeypatch.setattr(LightDriver, "_write", seldom)
    driver = SteadyDriver(wired, tmp_path, request_timeout_ms=REQUEST_TIMEOUT_MS)
    driver.goes_on()
    world = BareWorld(wired, driver)
    written = list[bool]()
    before_it_is_released(monkeypatch, lambda: written.append(driver.batches % 4 == 0))
    LateWrite(kinds=("Produce",)).inject(world.as_world(), Random(1))
    driver.goes_on()
    driver.end()
    assert world.notes == [ARRIVED.format("Produce")]
    assert written == [True]


def test_control_a_late_endtxn_commits_what_a_plain_producer_aborts(wired: KafkaCluster) -> None:
    """librdkafka begins the next transaction under the same epoch, so the late request commits it (KAFKA-17754)."""
    topic = f"control-{wired.transaction_version}"
    admin = AdminClient({"bootstrap.servers": wired.direct_servers})
    create(admin, NewTopic(topic), PATIENCE_S)
    options = {"bootstrap.servers": wired.bootstrap_servers, "transactional.id": topic, "log_level": 0}
    producer = Producer(options)
    producer.init_transactions(PATIENCE_S)
    rule = Rule(Do.HOLD, frozenset({apis.END_TXN}), count=1)
    with wired.rules.during(rule) as (held,):
        producer.begin_transaction()
        producer.produce(topic, "committed")
        producer.commit_transaction(PATIENCE_S)
        assert held.applied == 1
        producer.begin_transaction()
        producer.produce(topic, "aborted")
        assert producer.flush(PATIENCE_S) == 0
    judge = Cluster(wired)
    judge.stable_end(topic)  # nobody has ended the second transaction but the late request
    with suppress(KafkaException):
        producer.abort_transaction(PATIENCE_S)
    assert [value for _, _, value in judge.read(topic)] == ["committed", "aborted"]
    judge.close()
