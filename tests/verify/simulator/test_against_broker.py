"""The model of the broker against a real one: the same random requests to both, the same answers and the same records."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random, SystemRandom

import pytest
from confluent_kafka import KafkaError, Producer
from tests.conftest import Reader, TopicFactory, create_topic, read_what_is_stable
from tests.faults.support import UNVERIFIED, eventually
from tests.topic_limits import set_limit
from tests.verify.simulator.both import (
    AND_READS,
    KINDS,
    NEVER_GIVEN,
    PARTITIONS,
    Both,
    check_readable,
    check_visible,
    hold_back,
)
from tests.verify.simulator.real import RealBroker

from onceflow.broker import EmbeddedBroker
from onceflow.kafka import codes
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.verify.simulator.requests import (
    MESSAGE_TOO_LARGE,
    UNSTABLE_OFFSET_COMMIT,
    AddPartitions,
    Answer,
    DescribeProducer,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    Produce,
)

SEQUENCES = 30
REQUESTS = 40
LOOKS = 4
A_MARKER_BYTES = 78  # a transaction's end is written to the topic too, so it must still be taken


@pytest.fixture(params=[1, 2])
def cluster(request: pytest.FixtureRequest) -> tuple[int, EmbeddedBroker]:
    version: int = request.param
    return version, request.getfixturevalue("broker" if version == 2 else "broker_v1")


@pytest.fixture
def client(cluster: tuple[int, EmbeddedBroker]) -> Iterator[KafkaClient]:
    with KafkaClient({"bootstrap_servers": [cluster[1].bootstrap_servers]}, patience_s=60) as opened:
        ensure_anchor_topic(opened)
        yield opened


def test_the_model_answers_as_a_real_broker(
    cluster: tuple[int, EmbeddedBroker], client: KafkaClient, topic: TopicFactory, read: Reader
) -> None:
    version, broker = cluster
    target = topic(PARTITIONS, on=broker)
    several = [compared(client, version, target, seed) for seed in range(SEQUENCES)]
    check_visible(several, read(target, on=broker))
    check_that_refusals_were_met({each for both in several for each in both.codes}, version)


@pytest.mark.long
def test_the_model_answers_as_a_real_broker_what_nobody_has_asked_before(
    cluster: tuple[int, EmbeddedBroker], client: KafkaClient, topic: TopicFactory, read: Reader
) -> None:
    """The story of one that is answered otherwise begins with its transactional id, which has the seed."""
    version, broker = cluster
    target = topic(PARTITIONS, on=broker)
    first = SystemRandom().randrange(SEQUENCES, 10**9)
    several = [compared(client, version, target, first + more) for more in range(10 * SEQUENCES)]
    check_visible(several, read(target, on=broker))


def compared(client: KafkaClient, version: int, target: str, seed: int) -> Both:
    """A sequence of requests, drawn from ``seed``, after both were asked, and it was ended."""
    both = Both(RealBroker(client, f"model-{version}-{seed}", version, target), Random(seed))
    both.begin_alone()
    for _ in range(REQUESTS):
        both.step(AND_READS)
    both.finish()
    return both


def test_readers_of_committed_records_wait_in_the_model_where_they_do_on_a_real_broker(
    cluster: tuple[int, EmbeddedBroker], client: KafkaClient, topic: TopicFactory
) -> None:
    """Two transactional ids on one topic: what the one commits waits for a transaction of the other's that is older."""
    version, broker = cluster
    target = topic(PARTITIONS, on=broker)
    older = Both(RealBroker(client, f"older-{version}", version, target), Random(1))
    older.begin_alone()
    newer = Both(RealBroker(client, f"newer-{version}", version, target), Random(2), beside=older)
    partitions = older.model.partitions
    for look in range(LOOKS):
        hold_back(newer, older)
        check_readable(partitions, read_what_is_stable(broker, target))
        older.ask(EndTransaction(older.ours, commit=bool(look % 2)))
        check_readable(partitions, read_what_is_stable(broker, target))
        assert partitions[0].readable == partitions[0].visible
        for _ in range(REQUESTS // LOOKS):
            for both in (older, newer):
                both.step()
        check_readable(partitions, read_what_is_stable(broker, target))
    for both in (older, newer):
        both.finish()


def test_the_model_answers_as_leaders_that_ask_nobody(tmp_path: Path) -> None:
    """What coordinators of groups ask is told by the same setting, and is not modelled; nor who reads behind what hangs."""
    kinds = {kind: often for kind, often in KINDS.items() if kind != "offsets"}
    answered: set[tuple[str, int]] = set()
    with (
        EmbeddedBroker(tmp_path, transaction_version=1, heap_mb=256, config=UNVERIFIED) as broker,
        KafkaClient({"bootstrap_servers": [broker.bootstrap_servers]}, patience_s=60) as client,
    ):
        for seed in range(SEQUENCES):
            name = (
                f"trusting-{seed}"  # each with a topic of its own: a producer id that was never given is as good as any
            )
            create_topic(broker, name, PARTITIONS)
            both = Both(RealBroker(client, name, 1, name), Random(seed))
            both.model.verifies = False
            both.begin_alone()
            for _ in range(REQUESTS):
                both.step(kinds)
            answered |= both.codes
    assert {("Produce", 0), ("Produce", 45), ("Produce", 47), ("EndTransaction", 48)} <= answered
    assert ("Produce", 120) not in answered, "nobody was asked"


def test_the_model_answers_as_a_leader_that_takes_only_smaller_batches(
    cluster: tuple[int, EmbeddedBroker], client: KafkaClient, topic: TopicFactory, read: Reader
) -> None:
    """It looks at the size after it has asked the coordinator, and before it looks at the sequence."""
    version, broker = cluster
    target = topic(PARTITIONS, on=broker)

    def real(name: str) -> RealBroker:
        return RealBroker(client, f"a-batch-too-large-{version}-{name}", version, target)

    several = [Both(real(str(seed)), Random(seed)) for seed in range(SEQUENCES // 3)]
    steps(several)
    written, fenced, beginning = Both.opened(real("written")), Both.opened(real("fenced")), Both(real("new"), Random(0))
    fenced.ask(InitProducerId(None))
    everybody = [*several, written, fenced, beginning]
    limit_every_leader(broker, target, A_MARKER_BYTES)
    refuse(everybody, MESSAGE_TOO_LARGE)
    for sequence in (1, 0, 7):  # the next one, the one that is written, and one behind a gap
        assert written.ask(Produce(written.ours, 0, sequence, (100 + sequence,))) == MESSAGE_TOO_LARGE.code
    for identity in (fenced.known[-2][0], NEVER_GIVEN):
        assert fenced.ask(Produce(identity, 0, 1, (101,))) != MESSAGE_TOO_LARGE.code
    check_joined(beginning)
    steps(several)
    assert ("Produce", MESSAGE_TOO_LARGE.code) in {each for both in several for each in both.codes}
    limit_every_leader(broker, target, None)
    refuse(everybody, None)
    for sequence in (2, 0, 1, 2):  # one that overtakes the refused first one is not taken for it
        beginning.ask(Produce(beginning.ours, 0, sequence, (100 + sequence,)))
    written.ask(Produce(written.ours, 0, 1, (101,)))
    for both in (written, beginning):
        both.ask(EndTransaction(both.ours, commit=True))
    steps(several)
    for both in everybody:
        both.finish()
    check_visible(everybody, read(target, on=broker))


def steps(several: list[Both]) -> None:
    for both in several:
        for _ in range(REQUESTS // 2):
            both.step()


def refuse(several: list[Both], refusal: Answer | None) -> None:
    for both in several:
        for partition in both.model.partitions:
            partition.refuses = refusal


def check_joined(both: Both) -> None:
    """A partition whose first batch is too large is part of the transaction; the leader holds nothing of it."""
    both.ask(InitProducerId(None))
    if both.real.version == 1:
        both.ask(AddPartitions(both.ours, 0))
    for sequence in (0, 2):
        assert both.ask(Produce(both.ours, 0, sequence, (100 + sequence,))) == MESSAGE_TOO_LARGE.code
    both.ask(DescribeTransaction())
    both.ask(DescribeProducer(0))


def limit_every_leader(broker: EmbeddedBroker, topic: str, size: int | None) -> None:
    set_limit(broker.bootstrap_servers, topic, size)
    for partition in range(PARTITIONS):
        eventually(partial(takes_larger, broker, topic, partition), lambda takes: takes == (size is None), "the limit")


def takes_larger(broker: EmbeddedBroker, topic: str, partition: int) -> bool:
    """Whether a leader appends a record of nobody's, which is larger than a marker."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    value = f"nobody:{10 * A_MARKER_BYTES:0{A_MARKER_BYTES}}"
    producer.produce(topic, value, partition=partition, on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(60) == 0
    assert errors[0] is None or errors[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    return errors[0] is None


def check_that_refusals_were_met(answered: set[tuple[str, int]], version: int) -> None:
    """Random requests that are all accepted, or all refused, would compare nothing."""
    wanted = {("InitProducerId", 0), ("InitProducerId", 90), ("Produce", 0), ("Produce", 45), ("Produce", 47)}
    wanted |= {("EndTransaction", 0), ("EndTransaction", 48), ("EndTransaction", 90), ("CommitOffsets", 0)}
    wanted |= {("CommitOffsets in part", codes.NONE)}
    wanted |= {("CommitOffsets in part", codes.UNKNOWN_TOPIC_OR_PARTITION)}  # the others of a fenced identity
    wanted |= {("FetchOffsets", 0), ("FetchOffsets", UNSTABLE_OFFSET_COMMIT.code)}
    wanted |= {("Produce", 120)} if version == 1 else set()
    assert wanted <= answered, f"not met: {wanted - answered}"


def test_an_expected_identity_is_not_compared_when_the_transactional_id_is_unknown(
    cluster: tuple[int, EmbeddedBroker], client: KafkaClient, topic: TopicFactory
) -> None:
    """Why InitProducerId is no compare-and-set once a transactional id has expired."""
    version, broker = cluster
    both = Both(RealBroker(client, f"unknown-{version}", version, topic(PARTITIONS, on=broker)), Random(0))
    asked = InitProducerId(NEVER_GIVEN)
    modelled, real = both.ask_model(asked), both.real.ask(asked)
    assert (modelled.code, real.code) == (codes.NONE, codes.NONE)
    assert real.identity is not None
    assert real.identity.producer_id != NEVER_GIVEN.producer_id
    assert modelled.identity is not None
    assert modelled.identity.epoch == real.identity.epoch
