"""The model of the broker against a real one: the same random requests to both, the same answers and the same records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.conftest import Reader, TopicFactory
from tests.verify.simulator.real import RealBroker

from onceflow.broker import EmbeddedBroker
from onceflow.kafka import codes
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.transaction.messages import Identity
from onceflow.transaction.progress import Progress
from onceflow.verify.simulator.broker import Broker
from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.requests import (
    GROUP,
    AddPartitions,
    Answer,
    CommitOffsets,
    DescribeProducer,
    DescribeTransaction,
    EndTransaction,
    FetchOffsets,
    InitProducerId,
    Produce,
    Request,
)
from onceflow.verify.simulator.scheduler import Scheduler

SEQUENCES = 30
REQUESTS = 40
PARTITIONS = 2
NEVER_GIVEN = Identity(123_456, 7)
Pair = tuple[Identity, Identity]  # the same identity in the model and on the real broker


class Both:
    """One transactional id in the model and on the real broker."""

    def __init__(self, version: int, real: RealBroker, random: Random, first_epoch: int = 0) -> None:
        self._scheduler = Scheduler()
        self.model = Broker(self._scheduler, Choices(0, {}), version, PARTITIONS, first_epoch)
        self.real = real
        self._random = random
        self._version = version
        self.known: list[Pair] = [(NEVER_GIVEN, NEVER_GIVEN)]
        self._written: list[Produce] = []
        self._next: dict[tuple[Identity, int], int] = {}
        self._values = iter(range(10_000))
        self.story: list[str] = []
        self.codes: set[tuple[str, int]] = set()

    def step(self) -> None:
        """One random request to both."""
        self._compare_answers(*self._request())

    def ask(self, request: Request) -> None:
        """One request of the model's identities to both."""
        twins = dict(self.known)
        named: dict[str, Any] = {
            field: twins[value]
            for field in ("identity", "expected")
            if (value := getattr(request, field, None)) is not None
        }
        self._compare_answers(request, replace(request, **named))

    def _compare_answers(self, request: Request, twin: Request) -> None:
        modelled = self.ask_model(request)
        real = self.real.ask(twin)
        self.story.append(f"{request}: model {modelled}, real {real}")
        self.codes.add((type(request).__name__, real.code))
        assert modelled.code == real.code, "\n".join(self.story)
        assert (modelled.identity is None) == (real.identity is None), "\n".join(self.story)
        self._compare(modelled, real)
        if isinstance(request, Produce) and real.code == codes.NONE:
            self._written.append(request)
            self._next[request.identity, request.partition] = request.sequence + len(request.values)

    def _compare(self, modelled: Answer, real: Answer) -> None:
        if modelled.identity is not None and real.identity is not None:
            assert modelled.identity.epoch == real.identity.epoch, "\n".join(self.story)
            same_pid = (modelled.identity.producer_id, real.identity.producer_id)
            seen = {(m.producer_id, r.producer_id) for m, r in self.known[1:]}
            assert all((m == same_pid[0]) == (r == same_pid[1]) for m, r in seen), "\n".join(self.story)
            self.known.append((modelled.identity, real.identity))
        self._compare_producers(modelled, real)
        assert modelled.committed == real.committed, "\n".join(self.story)
        if modelled.snapshot is not None and real.snapshot is not None:
            assert modelled.snapshot.state is real.snapshot.state, "\n".join(self.story)
            epochs = [shown.identity and shown.identity.epoch for shown in (modelled.snapshot, real.snapshot)]
            assert epochs[0] == epochs[1], "\n".join(self.story)

    def _compare_producers(self, modelled: Answer, real: Answer) -> None:
        """What a leader knows of this transactional id's producer ids; others write to the topic too."""
        twins = {ours.producer_id: theirs.producer_id for ours, theirs in self.known}
        expected = {(twins[at.producer_id], at.epoch, last) for at, last in modelled.producers}
        found = {(at.producer_id, at.epoch, last) for at, last in real.producers if at.producer_id in twins.values()}
        assert expected == found, "\n".join(self.story)

    def ask_model(self, request: Request) -> Answer:
        """As a client: what only says later is asked again when the markers are written."""
        for _ in range(10):
            answer = self.model.ask(request)
            self.settle()
            if answer.code not in codes.RETRIABLE:
                return answer
        raise AssertionError(f"{request} is never answered")

    def settle(self) -> None:
        """Writes the markers that are missing."""
        while self.model._markers_missing:
            self._scheduler.step()

    def move(self) -> None:
        """The model's coordinators and leaders move, as the real ones just did."""
        self.model.move_coordinator(away=0)
        self.model.move_group(away=0)
        for partition in range(PARTITIONS):
            self.model.move_leader(partition)
        self.story.append("everything moves")

    def _request(self) -> tuple[Request, Request]:
        """The same request with the model's identities and with the real ones."""
        random = self._random
        ours, theirs = self.known[-1] if random.random() < 0.85 else random.choice(self.known[-5:])
        kind = random.choices(KINDS, WEIGHTS)[0]
        partition = random.randrange(PARTITIONS)
        match kind:
            case "fence":
                return InitProducerId(None), InitProducerId(None)
            case "initialise":
                return InitProducerId(ours), InitProducerId(theirs)
            case "add" if self._version == 1:
                partition = random.choice((0, 1, GROUP))
                return AddPartitions(ours, partition), AddPartitions(theirs, partition)
            case "offsets":
                progress, source = Progress(random.randrange(9), "q", "i", ("d",)), random.randrange(100)
                return CommitOffsets(ours, progress, source), CommitOffsets(theirs, progress, source)
            case "commit" | "abort":
                commit = kind == "commit"
                return EndTransaction(ours, commit), EndTransaction(theirs, commit)
            case "transaction":
                return DescribeTransaction(), DescribeTransaction()
            case "producer":
                return DescribeProducer(partition), DescribeProducer(partition)
        return self._produce(ours, theirs, partition)

    def _produce(self, ours: Identity, theirs: Identity, partition: int) -> tuple[Request, Request]:
        random = self._random
        again = [p for p in self._written[-6:] if p.identity == ours]
        if again and random.random() < 0.2:
            old = random.choice(again)
            return old, Produce(theirs, old.partition, old.sequence, old.values)
        expected = self._next.get((ours, partition), 0)
        sequence = expected if random.random() < 0.7 else random.choice((0, expected + 1, expected + 3))
        values = tuple(next(self._values) for _ in range(random.randrange(1, 4)))
        return Produce(ours, partition, sequence, values), Produce(theirs, partition, sequence, values)

    def finish(self) -> None:
        """Ends what is open, and compares the committed offsets."""
        fence = InitProducerId(None)
        assert self.ask_model(fence).code == self.real.ask(fence).code
        assert self.ask_model(FetchOffsets()).committed == self.real.ask(FetchOffsets()).committed


KINDS = ("fence", "initialise", "add", "offsets", "commit", "abort", "transaction", "producer", "produce")
WEIGHTS = (6, 8, 14, 12, 12, 6, 4, 6, 34)


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
    models: dict[str, Broker] = {}
    answered: set[tuple[str, int]] = set()
    for seed in range(SEQUENCES):
        name = f"model-{version}-{seed}"
        both = Both(version, RealBroker(client, name, version, target), Random(seed))
        for _ in range(REQUESTS):
            both.step()
        both.finish()
        models[name] = both.model
        answered |= both.codes
    visible: dict[tuple[str, int], list[int]] = {}
    for message in read(target, on=broker):
        name, _, value = (message.value() or b"").decode().partition(":")
        visible.setdefault((name, message.partition() or 0), []).append(int(value))
    for name, model in models.items():
        for number, partition in enumerate(model.partitions):
            assert partition.visible == visible.get((name, number), []), f"{name}, partition {number}"
    check_that_refusals_were_met(answered, version)


def check_that_refusals_were_met(answered: set[tuple[str, int]], version: int) -> None:
    """Random requests that are all accepted, or all refused, would compare nothing."""
    wanted = {("InitProducerId", 0), ("InitProducerId", 90), ("Produce", 0), ("Produce", 45), ("Produce", 47)}
    wanted |= {("EndTransaction", 0), ("EndTransaction", 48), ("EndTransaction", 90), ("CommitOffsets", 0)}
    wanted |= {("Produce", 120)} if version == 1 else set()
    assert wanted <= answered, f"not met: {wanted - answered}"


def test_an_expected_identity_is_not_compared_when_the_transactional_id_is_unknown(
    cluster: tuple[int, EmbeddedBroker], client: KafkaClient, topic: TopicFactory
) -> None:
    """Why InitProducerId is no compare-and-set once a transactional id has expired."""
    version, broker = cluster
    both = Both(version, RealBroker(client, f"unknown-{version}", version, topic(PARTITIONS, on=broker)), Random(0))
    asked = InitProducerId(NEVER_GIVEN)
    modelled, real = both.ask_model(asked), both.real.ask(asked)
    assert (modelled.code, real.code) == (codes.NONE, codes.NONE)
    assert real.identity is not None
    assert real.identity.producer_id != NEVER_GIVEN.producer_id
    assert modelled.identity is not None
    assert modelled.identity.epoch == real.identity.epoch
