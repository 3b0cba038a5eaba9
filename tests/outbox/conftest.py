"""A real PostgreSQL, SQLite files, and relays in processes of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onceflow.broker import EmbeddedBroker

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what the tests of this directory share

from tests.faults.support import Cluster
from tests.forkserver import ForkServer
from tests.outbox.support import Shop, make_postgresql, make_sqlite
from tests.postgresql import running_postgresql


@pytest.fixture(scope="session")
def cluster(broker: EmbeddedBroker) -> Iterator[Cluster]:
    found = Cluster(broker)
    yield found
    found.close()


@pytest.fixture(scope="session")
def cluster_v1(broker_v1: EmbeddedBroker) -> Iterator[Cluster]:
    """Of transaction version 1."""
    found = Cluster(broker_v1)
    yield found
    found.close()


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Of a broker to be killed."""
    with (
        EmbeddedBroker(tmp_path_factory.mktemp("mortal-outbox"), heap_mb=256) as running,
        closing(Cluster(running)) as found,
    ):
        yield found


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a server for these tests alone."""
    with running_postgresql() as address:
        yield address


@pytest.fixture
def shop_postgresql(cluster: Cluster, postgresql: str) -> Shop:
    return make_postgresql(cluster, postgresql)


@pytest.fixture
def shop_sqlite(cluster: Cluster, tmp_path: Path) -> Shop:
    return make_sqlite(cluster, tmp_path)


@pytest.fixture(params=["postgresql", "sqlite"])
def shop(request: pytest.FixtureRequest) -> Shop:
    """An empty outbox in each database."""
    found: Shop = request.getfixturevalue(f"shop_{request.param}")
    return found


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with ForkServer("tests.outbox.worker", tmp_path_factory.mktemp("workers")) as found:
        yield found
