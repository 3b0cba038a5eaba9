"""What the tests of the verification share: three brokers behind wires."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.verify.cluster import KafkaCluster

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what the tests of these directories share


@pytest.fixture(scope="session")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers behind wires, transaction version 2. Whoever breaks them heals them (``heal``)."""
    with KafkaCluster(tmp_path_factory.mktemp("three-brokers"), brokers=3, heap_mb=192, wire=True) as cluster:
        yield cluster
