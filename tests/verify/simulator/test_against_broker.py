"""The model of the broker against a real one: the same random requests to both, the same answers and the same records."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from tests.conftest import Reader, TopicFactory
from tests.verify.simulator.both import NEVER_GIVEN, PARTITIONS, Both, check_visible
from tests.verify.simulator.real import RealBroker

from onceflow.broker import EmbeddedBroker
from onceflow.kafka import codes
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.verify.simulator.requests import InitProducerId

SEQUENCES = 30
REQUESTS = 40


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
    several = [
        Both(RealBroker(client, f"model-{version}-{seed}", version, target), Random(seed)) for seed in range(SEQUENCES)
    ]
    for both in several:
        for _ in range(REQUESTS):
            both.step()
        both.finish()
    check_visible(several, read(target, on=broker))
    check_that_refusals_were_met({each for both in several for each in both.codes}, version)


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
    both = Both(RealBroker(client, f"unknown-{version}", version, topic(PARTITIONS, on=broker)), Random(0))
    asked = InitProducerId(NEVER_GIVEN)
    modelled, real = both.ask_model(asked), both.real.ask(asked)
    assert (modelled.code, real.code) == (codes.NONE, codes.NONE)
    assert real.identity is not None
    assert real.identity.producer_id != NEVER_GIVEN.producer_id
    assert modelled.identity is not None
    assert modelled.identity.epoch == real.identity.epoch
