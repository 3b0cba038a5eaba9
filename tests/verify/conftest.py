"""What the tests of the verification share: three brokers behind wires, of each transaction version."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.cluster.producer_ids import FORGET_SOON

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what the tests of these directories share

from tests.three_brokers import BrokersOf, brokers_of

# Else a leader goes back by itself, every five minutes, to where it was first.
STAYS = {"auto.leader.rebalance.enable": "false"}


@pytest.fixture(scope="session")
def shared_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokersOf]:
    with brokers_of(tmp_path_factory, config={**FORGET_SOON, **STAYS}, wire=True) as started:
        yield started


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.long), 2], ids=["v1", "v2"])
def three_brokers(request: pytest.FixtureRequest, shared_brokers: BrokersOf) -> Iterator[KafkaCluster]:
    """Three brokers behind wires, of each transaction version."""
    yield from healed(shared_brokers(request.param))


@pytest.fixture
def three_brokers_v2(shared_brokers: BrokersOf) -> Iterator[KafkaCluster]:
    """The same of version 2 alone, for what has no part in a transaction."""
    yield from healed(shared_brokers(2))


def healed(cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    """Whoever breaks them heals them; a test that fails before does not."""
    yield cluster
    if any(node.is_paused or not node.is_running for node in cluster.nodes):
        cluster.heal()
