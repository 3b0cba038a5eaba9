"""Clusters and light drivers for the fault tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceflow.broker import EmbeddedBroker

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what the tests of this directory share

from tests.faults.support import Cluster, LightDrivers


@pytest.fixture(scope="session")
def v2(broker: EmbeddedBroker) -> Iterator[Cluster]:
    cluster = Cluster(broker)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def v1(broker_v1: EmbeddedBroker) -> Iterator[Cluster]:
    cluster = Cluster(broker_v1)
    yield cluster
    cluster.close()


@pytest.fixture(params=["v1", "v2"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """A cluster of each transaction version."""
    found: Cluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def light(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightDrivers]:
    drivers = LightDrivers(tmp_path_factory.mktemp("light"))
    yield drivers
    drivers.close()


@pytest.fixture(scope="session")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], EmbeddedBroker]]:
    """A broker of a transaction version for tests that kill and restart it; running when it is asked for."""
    brokers: dict[int, EmbeddedBroker] = {}

    def get(version: int) -> EmbeddedBroker:
        if version not in brokers:
            directory = tmp_path_factory.mktemp(f"mortal-{version}")
            brokers[version] = EmbeddedBroker(directory, transaction_version=version, heap_mb=256)
        return brokers[version] if brokers[version].is_running else brokers[version].start()

    yield get
    for broker in brokers.values():
        broker.kill()
