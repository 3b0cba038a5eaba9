"""KAFKA-14402: a Produce of an aborted transaction comes late, and opens one in the log that nobody ends (KIP-890).

::

    producer      adds a partition to its transaction; its Produce is under way for long
    coordinator   aborts the transaction, and writes the marker
    leader        gets the Produce, of an epoch that is as good as before: a transaction begins, of which nobody knows

A leader asks the coordinator before it takes the first write of a transaction, since Kafka 3.6. Here one is told not to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import tests.faults.light
from confluent_kafka import TopicPartition
from tests.conftest import read_topic
from tests.faults.light import Job, LightDriver
from tests.faults.support import PUNCTUAL, TIMEOUT_S, UNVERIFIED, Cluster, eventually, expected_records
from tests.faults.test_known_bugs import add, identified, transactional
from tests.faults.test_lost_answers import job
from tests.faults.test_timed_out import wait_for_the_abort
from tests.verify.simulator.real import RealBroker

from onceflow.broker import EmbeddedBroker
from onceflow.config import load
from onceflow.errors import BrokerUnreachable
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.kafka_python import DescribeTransactionsRequest
from onceflow.pipeline.preflight import check_cluster
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.transaction.asking import Asking
from onceflow.transaction.messages import Identity
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import describe_producers
from onceflow.transaction.requests import Requests
from onceflow.verify.checker import check_history
from onceflow.verify.oracle.judging.history import history_of
from onceflow.verify.recording import Recorded, observe, read_all
from onceflow.verify.recording.final import committed_reader
from onceflow.verify.recording.tables import SENT
from onceflow.verify.simulator.requests import (
    GROUP,
    INVALID_PRODUCER_EPOCH,
    OK,
    TRANSACTION_ABORTABLE,
    UNSTABLE_OFFSET_COMMIT,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
    FetchOffsets,
    InitProducerId,
    Produce,
)
from onceflow.verify.simulator.variants import AbortsUnderItsEpoch
from onceflow.verify.wire import ActiveRule, Direction, Do, Rule, Wire, apis

pytestmark = pytest.mark.faults

SHORT_MS = 5000  # the timeout of a transaction that is to outlive it, and is to be aborted before
IMPATIENT_S = 1.0
LATE = 1
NEVER = 1_000_000
LATE_AT = 1  # behind the marker of the abort


@contextmanager
def cluster_of(directory: Path, version: int, config: Mapping[str, str]) -> Iterator[Cluster]:
    with (
        EmbeddedBroker(directory, transaction_version=version, heap_mb=256, config={**PUNCTUAL, **config}) as broker,
        closing(Cluster(broker)) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Of version 1, and its leaders ask nobody."""
    with cluster_of(tmp_path_factory.mktemp("trusting"), 1, UNVERIFIED) as cluster:
        yield cluster


@contextmanager
def talking(cluster: Cluster, version: int = 1) -> Iterator[RealBroker]:
    topic = cluster.make_topic(1)
    with KafkaClient({"bootstrap_servers": [cluster.servers]}, patience_s=TIMEOUT_S) as client:
        yield RealBroker(client, topic, version, topic, SHORT_MS)


def aborted(real: RealBroker) -> Identity:
    """The identity of a transaction that is aborted, with its marker in the partition; its only Produce has not come yet."""
    late = identified(real, InitProducerId(None))
    add(real, late)
    real.ask(EndTransaction(late, commit=False))
    return late


def outlive_the_timeout(real: RealBroker, cluster: Cluster) -> None:
    """Until a transaction that was begun later, with the same timeout, is aborted for it."""
    with KafkaClient({"bootstrap_servers": [cluster.servers]}, patience_s=TIMEOUT_S) as client:
        later = RealBroker(client, f"{real.name}-later", real.version, real.name, SHORT_MS)
        identity = identified(later, InitProducerId(None))
        add(later, identity)
        assert later.ask(Produce(identity, 0, 0, (LATE,))) == OK
        wait_for_the_abort(later.requests)


def known_to_the_coordinator(real: RealBroker) -> tuple[str, list[str]]:
    """The state of the transaction, and the topics in which it waits for something."""
    request = DescribeTransactionsRequest(transactional_ids=[real.requests.id])
    question = real.questions.describe(settle=True)
    state = real.requests.client.ask_coordinator(question.kind, real.requests.id, request).transaction_states[0]
    return state.transaction_state, [topic.topic for topic in state.topics]


def open_in_the_log(real: RealBroker) -> dict[int, int]:
    """Where the open transactions of each producer id begin, as the leader has it."""
    answer = real.requests.client.ask(1, describe_producers({real.name: [0]}))
    producers = answer.topics[0].partitions[0].active_producers
    return {each.producer_id: each.current_txn_start_offset for each in producers if each.current_txn_start_offset >= 0}


def commit_another(cluster: Cluster, topic: str) -> tuple[str, int]:
    """An event of another producer, committed behind it all, and its offset."""
    offsets: list[int] = []
    producer = transactional(cluster, f"{topic}-other", "none")
    producer.begin_transaction()
    producer.produce(topic, "committed", on_delivery=lambda error, message: offsets.append(message.offset() or 0))
    producer.commit_transaction(TIMEOUT_S)
    return "committed", offsets[0]


def where_a_reader_stands_still(cluster: Cluster, topic: str) -> int:
    """Of committed records: what it is told to be the end, with nothing read before it."""
    with closing(committed_reader(cluster.servers, **{"enable.partition.eof": True})) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        message = reader.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.name() == "_PARTITION_EOF"
        return message.offset() or 0


def sent(topic: str, events: list[tuple[str, str, int | None]]) -> pa.Table:
    """Of each event its value, what became of it, and its offset."""
    rows = [(value, 0, status, topic, 0, offset, value, 0.0, 0.0) for value, status, offset in events]
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SENT, strict=True)], schema=SENT)


def violations(cluster: Cluster, topic: str, committed: tuple[str, int]) -> dict[str, int]:
    """What the checker finds in a history of who wrote, and of what is seen of it in the end."""
    observed = observe(cluster.servers, [topic], topic, patience_s=1.0)
    final = read_all(cluster.servers, observed.ends)
    events = [("late", "fail", None), (committed[0], "ok", committed[1])]
    recorded = Recorded(topic, (topic,), (), final, observed, sent(topic, events))
    history, *_ = history_of(recorded, None)
    return check_history(history).violations


def test_control_a_late_produce_opens_a_transaction_that_nobody_ends(trusting: Cluster) -> None:
    with talking(trusting) as real:
        late = aborted(real)
        assert real.ask(Produce(late, 0, 0, (LATE,))) == OK
        outlive_the_timeout(real, trusting)
        committed = commit_another(trusting, real.name)
        assert known_to_the_coordinator(real) == ("CompleteAbort", [])
        only = {late.producer_id: LATE_AT}  # the other producer was told of its commit before its marker was written
        eventually(lambda: open_in_the_log(real), lambda found: found == only, "the transaction that nobody ends")
        assert where_a_reader_stands_still(trusting, real.name) == LATE_AT < committed[1]
        assert len(read_topic(trusting.broker, real.name, committed=False)) == 3, "what it does not get"
        assert violations(trusting, real.name, committed) == {"hung_transaction": 1}


# ------------------------------------------------------------------------------------------------------ what refuses it


def test_a_late_produce_is_refused_by_a_leader_that_asks_the_coordinator(tmp_path: Path) -> None:
    with cluster_of(tmp_path / "asking", 1, {}) as cluster, talking(cluster) as real:
        late = aborted(real)
        assert real.ask(Produce(late, 0, 0, (LATE,))) == TRANSACTION_ABORTABLE
        assert open_in_the_log(real) == {}
        assert read_topic(cluster.broker, real.name, committed=False) == []


def test_a_late_produce_is_refused_by_transaction_version_2_whatever_leaders_are_told(tmp_path: Path) -> None:
    with cluster_of(tmp_path / "version-2", 2, UNVERIFIED) as cluster, talking(cluster, version=2) as real:
        late = aborted(real)
        assert real.ask(Produce(late, 0, 0, (LATE,))) == INVALID_PRODUCER_EPOCH
        assert open_in_the_log(real) == {}


def test_a_late_produce_is_refused_where_the_next_epoch_has_written(trusting: Cluster) -> None:
    with talking(trusting) as real:
        late = aborted(real)
        current = identified(real, InitProducerId(late))
        add(real, current)
        assert real.ask(Produce(current, 0, 0, (LATE + 1,))) == OK
        assert real.ask(Produce(late, 0, 0, (LATE,))) == INVALID_PRODUCER_EPOCH
        real.ask(EndTransaction(current, commit=True))
        assert open_in_the_log(real) == {}
    assert [value for _, _, value in trusting.read(real.name)] == [f"{real.name}:{LATE + 1}"]


# ------------------------------------------------------------------------- what a fresh epoch alone does not defend from


def test_control_where_the_next_epoch_has_not_written_yet_a_late_produce_is_committed_with_it(
    trusting: Cluster,
) -> None:
    """A leader hears of an epoch by what that writes, a marker or records, and of the one that is fresh by neither."""
    with talking(trusting) as real:
        late = aborted(real)
        current = identified(real, InitProducerId(late))
        assert real.ask(Produce(late, 0, 0, (LATE,))) == OK
        add(real, current)
        assert real.ask(Produce(current, 0, 0, (LATE + 1,))) == OK
        real.ask(EndTransaction(current, commit=True))
    assert [value for _, _, value in trusting.read(real.name)] == [f"{real.name}:{value}" for value in (LATE, LATE + 1)]


class Impatient(LightDriver):
    """It does not wait for the answers to its records, and does wait for all the others."""

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        self.requests.client.patience_s = IMPATIENT_S if step == "WRITE" else TIMEOUT_S


class Successor(LightDriver):
    """Before it writes its first batch, what is under way of its predecessor arrives, and is answered."""

    def __init__(self, job: Job, held: ActiveRule, answers: ActiveRule) -> None:
        super().__init__(job)
        self._held, self._answers = held, answers

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        if (step, batch_id) == ("WRITE", 0):
            self._held.release()
            eventually(lambda: self._answers.seen, lambda seen: seen == self._held.applied > 0, "the late records")


def records_of_two_drivers(cluster: Cluster, directory: Path) -> Counter[tuple[str, str]]:
    """How often each record is committed::

    driver 1   its records are under way; nobody answers; it aborts, and stops
    driver 2   fences, claims, and is about to write the batch
    leader     gets the records of driver 1, and then those of driver 2
    """
    produce = frozenset({apis.PRODUCE})
    with Wire() as wire:
        held = wire.rules.add(Rule(Do.HOLD, produce))
        answers = wire.rules.add(Rule(Do.CUT, produce, Direction.ANSWER, first=NEVER))
        first = Impatient(replace(job(cluster, directory, wire), patience_s=TIMEOUT_S))
        with pytest.raises(BrokerUnreachable, match="no record was acknowledged"):
            first.run()
        assert ("ABORT", 0) in first.steps
        Successor(replace(first.job, options={}, patience_s=TIMEOUT_S), held, answers).run()
    return Counter((key or "", value or "") for _, key, value in cluster.read(first.topic))


def test_a_pipeline_repeats_nothing_although_leaders_ask_nobody(trusting: Cluster, tmp_path: Path) -> None:
    """On transaction version 1 the markers of an abort carry the next epoch: late records are refused for theirs."""
    assert records_of_two_drivers(trusting, tmp_path) == Counter(expected_records(2))


class AbortingUnderItsEpoch(Requests):
    @property
    def _asking(self) -> Asking:
        return replace(super()._asking, questions=AbortsUnderItsEpoch(self.name, self.version, self.timeout_ms))


def test_control_an_abort_that_leaves_the_epoch_as_it_is_repeats_records(
    trusting: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the leader the late records have the newest epoch that it knows."""
    monkeypatch.setattr(tests.faults.light, "Requests", AbortingUnderItsEpoch)
    found = records_of_two_drivers(trusting, tmp_path)
    assert set(found) == set(expected_records(2))
    assert max(found.values()) > 1


def test_control_offsets_that_come_late_hold_a_start_up(trusting: Cluster) -> None:
    """Asked for twice, and once long after their transaction was committed; group coordinators are told by the same setting.

    A limit of ours: nothing is wrong or twice, but progress cannot be read until a transaction on the group ends, and a start
    reads it first.
    """
    with talking(trusting) as real:
        ensure_anchor_topic(real.requests.client)
        identity = identified(real, InitProducerId(None))
        assert real.ask(AddPartitions(identity, GROUP)) == OK
        assert real.ask(CommitOffsets(identity, Progress.empty("late"))) == OK
        real.ask(EndTransaction(identity, commit=True))
        assert real.ask(CommitOffsets(identity, Progress.empty("late"))) == OK
        assert real.ask(InitProducerId(None)).code == 0
        assert real.ask(FetchOffsets(by_name=True)) == UNSTABLE_OFFSET_COMMIT


PLAN = """
name = "told"
checkpoint = "state"

[kafka]
bootstrap_servers = "{servers}"

[[source]]
name = "lines"
topics = ["{topic}"]
format = "raw"

[[sink]]
from = "lines"
topic = "{topic}"
value = "value"
feeds_back = true
"""


def told_of(cluster: Cluster, directory: Path) -> list[str]:
    """The notes at the start of a pipeline on this cluster."""
    plan, settings = directory / "pipeline.toml", ClusterSettings.of(cluster.servers)
    plan.write_text(PLAN.format(servers=cluster.servers, topic=cluster.make_topic(1)))
    found = check_cluster(load(plan, {}), settings, ClusterAdmin(settings))
    assert found.error is None
    return found.notes


def test_a_pipeline_says_at_its_start_that_leaders_ask_nobody(trusting: Cluster, v1: Cluster, tmp_path: Path) -> None:
    (note,) = told_of(trusting, tmp_path)
    assert "transaction.partition.verification.enable = false" in note
    assert told_of(v1, tmp_path) == []
