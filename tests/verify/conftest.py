"""What the tests of the verification share: three brokers behind wires."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.cluster.producer_ids import FORGET_SOON

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what the tests of these directories share

# Else a leader goes back by itself, every five minutes, to where it was first.
STAYS = {"auto.leader.rebalance.enable": "false"}


@pytest.fixture(scope="session")
def shared_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    directory = tmp_path_factory.mktemp("three-brokers")
    with KafkaCluster(directory, brokers=3, heap_mb=192, config={**FORGET_SOON, **STAYS}, wire=True) as cluster:
        yield cluster


@pytest.fixture
def three_brokers(shared_brokers: KafkaCluster) -> Iterator[KafkaCluster]:
    """Three brokers behind wires, transaction version 2. Whoever breaks them heals them; a test that fails before does not."""
    yield shared_brokers
    if any(node.is_paused or not node.is_running for node in shared_brokers.nodes):
        shared_brokers.heal()
