"""The model against a real broker where a test broker does not come by itself: the last epochs, timeouts, forgotten ids."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import AdminClient
from tests.conftest import HEAP_MB, create_topic
from tests.faults.newer import NEWER
from tests.verify.simulator.both import NEVER_GIVEN, PARTITIONS, Both
from tests.verify.simulator.real import RealBroker

from onceflow.broker import EmbeddedBroker
from onceflow.broker.installation import LOCKED, Installation
from onceflow.broker.settings import NODE_ID
from onceflow.kafka import codes
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.transaction.messages import Coordinated, Described, Identity
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import ANCHOR_TOPIC, transactional_id
from onceflow.verify.cluster.producer_ids import forgetting
from onceflow.verify.cluster.transaction_log import Entry, write_entries
from onceflow.verify.simulator import broker as model
from onceflow.verify.simulator.requests import (
    GROUP,
    NO_SOURCES,
    AddPartitions,
    CommitOffsets,
    DescribeProducer,
    DescribeTransaction,
    EndTransaction,
    FetchOffsets,
    InitProducerId,
    Produce,
    Request,
    sources_at,
)
from onceflow.verify.simulator.transactions import EXHAUSTED

TOPIC = "out"
PID_FROM_THE_LOG = 9_000_000  # far from those that the broker gives
REQUESTS = 30
FIRST_EPOCHS = (EXHAUSTED - 9, EXHAUSTED - 4, EXHAUSTED - 3, EXHAUSTED - 2, EXHAUSTED - 1, EXHAUSTED)
TIMEOUT_MS = 30_000
KEPT_OPEN_MS = 600_000
LATE = ("produce", "again", "offsets", "commit", "abort", "initialise", "add", "describe", "producer", "fence")


@contextmanager
def running(
    directory: Path, version: int, installation: Installation = LOCKED, /, **config: str
) -> Iterator[tuple[EmbeddedBroker, KafkaClient]]:
    settings = {"transaction.state.log.num.partitions": "1"}
    settings |= {key.replace("_", "."): value for key, value in config.items()}
    with (
        EmbeddedBroker(
            directory, transaction_version=version, heap_mb=HEAP_MB, config=settings, installation=installation
        ) as broker,
        KafkaClient({"bootstrap_servers": [broker.bootstrap_servers]}, patience_s=60) as client,
    ):
        ensure_anchor_topic(client)
        yield broker, client


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kafka", [LOCKED, pytest.param(NEWER, marks=pytest.mark.long)], ids=["embedded", "newer"])
def test_the_model_answers_as_a_real_broker_at_the_edges(kafka: Installation, version: int, tmp_path: Path) -> None:
    """One storage, three lives of the broker: it forgets ids at once, then producers, and then epochs are near their end."""
    forgets = {
        "transactional_id_expiration_ms": "1000",
        "transaction_remove_expired_transaction_cleanup_interval_ms": "200",
    }
    with running(tmp_path, version, kafka, **forgets) as (broker, client):
        create_topic(broker, TOPIC, PARTITIONS)
        check_forgotten_ids(client, version)
        write_transaction_log(broker, {edge_name(epoch): epoch - 1 for epoch in FIRST_EPOCHS})
    with running(tmp_path, version, kafka, producer_id_expiration_check_interval_ms="200") as (broker, client):
        check_forgotten_producers(broker, client, version)
    with running(tmp_path, version, kafka, transaction_abort_timed_out_transaction_cleanup_interval_ms="100") as (
        broker,
        client,
    ):
        overdue = [opened_alone(broker, client, version, f"overdue-{seed}") for seed in range(len(LATE))]
        check_last_epochs(client, version)
        for seed, both in enumerate(overdue):
            check_timed_out(both, version, LATE[seed:] + LATE[:seed])


@pytest.mark.parametrize("version", [1, 2])
def test_the_model_answers_as_a_broker_whose_topic_of_the_progress_is_deleted(version: int, tmp_path: Path) -> None:
    """What was committed on it is gone, the source offsets are not; and offsets of it are refused until it is made anew."""
    with running(tmp_path, version) as (broker, client):
        create_topic(broker, TOPIC, PARTITIONS)
        both = Both.opened(RealBroker(client, "deleted", version, TOPIC))
        both.ask(EndTransaction(both.ours, commit=True))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_topics([ANCHOR_TOPIC])[ANCHOR_TOPIC].result(60)
        wait_until_progress_is_gone(both.real)
        assert both.model.group.delete_topic()
        check_refused_offsets(both)
        with KafkaClient({"bootstrap_servers": [broker.bootstrap_servers]}, patience_s=60) as another:
            ensure_anchor_topic(another)  # as another process does; the one that runs remembers the topic
        both.model.group.has_topic, both.real.told = True, frozenset()
        commit_offsets(both, 30)
        both.ask(EndTransaction(both.ours, commit=True))
        for by_name in (False, True):
            both.ask(FetchOffsets(by_name))
        both.finish()


@pytest.mark.parametrize("version", [1, 2])
def test_the_model_answers_as_a_broker_that_lets_transactions_last_less_than_they_are_to(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives no identity, and so fences and aborts for nobody who asks for one; what is open goes on, and ends."""
    monkeypatch.setattr(model, "BY_HAND", 10**9)  # the model's time goes on with each request, and this is to last
    names = [f"too-long-{seed}" for seed in range(len(LATE))]
    with running(tmp_path, version) as (broker, client):
        create_topic(broker, TOPIC, PARTITIONS)
        several = [Both.opened(RealBroker(client, name, version, TOPIC)) for name in names]
    with running(tmp_path, version, transaction_max_timeout_ms=str(TIMEOUT_MS)) as (broker, client):
        for seed, both in enumerate(several):
            both.real.reconnect(client)
            both.model.shorten_transactions()
            for request in late_requests(version, both.ours, LATE[seed:] + LATE[:seed]):
                both.ask(request)
            for _ in range(REQUESTS):
                both.step()
            both.finish()
    answered = {each for both in several for each in both.codes}
    assert {("InitProducerId", codes.INVALID_TRANSACTION_TIMEOUT), ("EndTransaction", codes.NONE)} <= answered
    assert ("InitProducerId", codes.NONE) in answered, "it was given one before"


def wait_until_progress_is_gone(real: RealBroker) -> None:
    deadline = time.monotonic() + 120
    while (found := real.ask(FetchOffsets()).committed) is None or found.progress is not None:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.mark.long  # a broker keeps offsets for a minute at least
@pytest.mark.parametrize("version", [1, 2])
def test_the_model_answers_as_a_broker_that_has_dropped_what_was_committed(version: int, tmp_path: Path) -> None:
    """All offsets of a group that rests, the progress too; but none that an open transaction holds anew."""
    forgets = {"offsets_retention_minutes": "1", "offsets_retention_check_interval_ms": "200"}
    with running(tmp_path, version, **forgets) as (broker, client):
        create_topic(broker, TOPIC, PARTITIONS)
        rests, works = (
            Both.opened(RealBroker(client, name, version, TOPIC, KEPT_OPEN_MS)) for name in ("rests", "works")
        )
        for both in (rests, works):
            both.ask(EndTransaction(both.ours, commit=True))
        commit_offsets(works, 20)
        wait_until_progress_is_gone(rests.real)
        assert rests.model.group.forget()
        assert works.real.requests.read_committed(stable=False).progress is not None
        assert not works.model.group.forget()
        for both in (rests, works):
            for by_name in (False, True):
                both.ask(FetchOffsets(by_name))
        for both in (rests, works):
            commit_offsets(both, 30)  # what is older than a minute would be dropped as soon as it is committed
            both.ask(EndTransaction(both.ours, commit=True))
            both.ask(FetchOffsets())
            both.finish()


def check_refused_offsets(both: Both) -> None:
    """Those of the source join the transaction all the same, which its driver aborts."""
    for by_name in (False, True):
        both.ask(FetchOffsets(by_name))
    both.real.told = frozenset({codes.UNKNOWN_TOPIC_OR_PARTITION})
    for read in (None, 20):
        assert commit_offsets(both, read) == codes.UNKNOWN_TOPIC_OR_PARTITION
        both.ask(DescribeTransaction())
    fenced = both.ours
    both.ask(EndTransaction(both.ours, commit=False))
    both.ask(FetchOffsets())
    both.ask(InitProducerId(None))
    both.real.told = frozenset({codes.UNKNOWN_TOPIC_OR_PARTITION})
    both.ask(CommitOffsets(fenced, Progress(2, "q", "i", ("d", "e")), sources_at(20)))


def commit_offsets(both: Both, read: int | None) -> int:
    if both.real.version == 1:
        both.ask(AddPartitions(both.ours, GROUP))
    return both.ask(
        CommitOffsets(both.ours, Progress(2, "q", "i", ("d", "e")), NO_SOURCES if read is None else sources_at(read))
    )


# ------------------------------------------------------------------------------------------------------- forgotten ids


def check_forgotten_ids(client: KafkaClient, version: int) -> None:
    """A driver that slept for longer than ``transactional.id.expiration.ms`` meets a coordinator that never heard of it."""
    both = Both(RealBroker(client, "forgotten", version, TOPIC), Random(0))
    both.ask(InitProducerId(None))
    ours, theirs = both.ours, both.theirs
    wait_for_state(both.real, Coordinated.ABSENT)
    assert both.model.transactions.forget()
    for request in late_requests(
        version, ours, ("describe", "offsets", "commit", "abort", "add", "produce", "producer")
    ):
        both.ask(request)
    both.ask(InitProducerId(ours))
    assert both.theirs.producer_id != theirs.producer_id, "an unknown id compares nothing"


def wait_for_state(real: RealBroker, *wanted: Coordinated) -> None:
    deadline = time.monotonic() + 120
    while True:
        described = real.requests.describe(settle=True)
        assert isinstance(described, Described)
        if described.snapshot.state in wanted:
            return
        assert time.monotonic() < deadline, described
        time.sleep(0.05)


def late_requests(version: int, identity: Identity, kinds: tuple[str, ...]) -> list[Request]:
    asked: dict[str, Request] = {
        "produce": Produce(identity, 0, 1, (101,)),
        "again": Produce(identity, 0, 0, (100,)),
        "offsets": CommitOffsets(identity, Progress(5, "q", "late", ("d",)), sources_at(50)),
        "commit": EndTransaction(identity, commit=True),
        "abort": EndTransaction(identity, commit=False),
        "initialise": InitProducerId(identity),
        "add": AddPartitions(identity, 1) if version == 1 else Produce(identity, 1, 0, (102,)),
        "describe": DescribeTransaction(),
        "producer": DescribeProducer(0),
        "fence": InitProducerId(None),
    }
    return [asked[kind] for kind in kinds]


# ------------------------------------------------------------------------------------------------- forgotten producers


def check_forgotten_producers(broker: EmbeddedBroker, client: KafkaClient, version: int) -> None:
    """Leaders forget the sequences and epochs of whoever has nothing open; what comes then is answered alike.

    Whoever has a transaction open is not forgotten, however long it lasts.
    """
    kinds = ("produce", "again", "offsets", "commit", "abort", "initialise", "add", "producer")
    going_on = [with_transaction(client, version, f"going-on-{n}", ends=False) for n in range(2)]
    ended = [with_transaction(client, version, f"ended-{n}", ends=True) for n in range(len(kinds))]
    fenced = with_transaction(client, version, "fenced", ends=True)
    older = fenced.ours
    fenced.ask(InitProducerId(None))
    with forgetting(broker.bootstrap_servers, [NODE_ID]):  # and nothing more: a second is over soon
        wait_until_forgotten([both.real for both in (*ended, fenced)], [both.theirs for both in (*ended, fenced)])
    for both in (*going_on, *ended, fenced):
        both.model.expire_producers()
        both.ask(DescribeProducer(0))
    for both in going_on:  # the third batch of the same transaction, and the first one again
        ours = both.ours
        for sequence in (1, 0, 5):
            both.ask(Produce(ours, 0, sequence, (100 + sequence,)))
        both.finish()
    for seed, both in enumerate(ended):
        ours = both.ours
        for request in late_requests(version, ours, kinds[seed:] + kinds[:seed]):
            both.ask(request)
        for _ in range(REQUESTS):
            both.step()
        both.finish()
    for request in late_requests(version, older, kinds):
        fenced.ask(request)
    fenced.finish()


def with_transaction(client: KafkaClient, version: int, name: str, *, ends: bool) -> Both:
    both = Both.opened(RealBroker(client, name, version, TOPIC))
    if ends:
        both.ask(EndTransaction(both.ours, commit=True))
    return both


def wait_until_forgotten(brokers: list[RealBroker], identities: list[Identity]) -> None:
    """Until the leader of partition 0 knows none of the producers."""
    wanted = {identity.producer_id for identity in identities}
    deadline = time.monotonic() + 120
    while known := wanted & {at.producer_id for at, _ in brokers[0].ask(DescribeProducer(0)).producers}:
        assert time.monotonic() < deadline, known
        time.sleep(0.05)


# ----------------------------------------------------------------------------------------------------------- timeouts


def opened_alone(broker: EmbeddedBroker, client: KafkaClient, version: int, name: str) -> Both:
    """With a topic of its own: how far that is stable can be compared."""
    create_topic(broker, name, PARTITIONS)
    return Both.opened(RealBroker(client, name, version, name, TIMEOUT_MS), alone=True)


def check_timed_out(both: Both, version: int, kinds: tuple[str, ...]) -> None:
    """The broker aborted it under the next epoch; whatever its driver then sends is answered alike."""
    ours = both.ours
    wait_for_state(both.real, Coordinated.ABORTED)
    assert both.model.transactions.metadata is not None
    both.model.transactions.expire(both.model.transactions.metadata.begun)
    both.settle()
    both.compare_stable()
    for request in late_requests(version, ours, kinds):
        both.ask(request)
    both.finish()
    both.ask(FetchOffsets())


# ------------------------------------------------------------------------------------------------------ the last epochs


def edge_name(epoch: int) -> str:
    return f"edge-{epoch}"


def write_transaction_log(broker: EmbeddedBroker, epochs: dict[str, int]) -> None:
    """Empty transactions with these epochs, as the coordinator writes them; it reads them at its next start.

    32,767 InitProducerId requests for each, one after the other, would lead there too, in minutes.
    """
    entries = {
        transactional_id(name): Entry(PID_FROM_THE_LOG + epoch, epoch, timeout_ms=60_000)
        for name, epoch in epochs.items()
    }
    write_entries(broker.bootstrap_servers, 0, entries)


def check_last_epochs(client: KafkaClient, version: int) -> None:
    """Random requests while the epochs run out: the coordinator goes on with another producer id."""
    rotated = 0
    for epoch in FIRST_EPOCHS:
        real = RealBroker(client, edge_name(epoch), version, TOPIC)
        both = Both(real, Random(epoch), first_epoch=epoch)
        both.ask(InitProducerId(None))
        for _ in range(REQUESTS):
            both.step()
        both.finish()
        given = {theirs.producer_id for _, theirs in both.known if theirs != NEVER_GIVEN}
        rotated += len(given) > 1
    assert rotated >= len(FIRST_EPOCHS) - 1, "the epochs did not come to their end"
