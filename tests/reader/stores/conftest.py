"""Real servers for the stores that last, started when first asked for; tests that kill one start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.reader.servers import Server, postgresql_server, running_redis


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with postgresql_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    with running_redis() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each kind of store, one after the other."""
    servers = {"postgresql": "postgresql", "redis": "redis_server"}
    if request.param in servers:
        return str(request.getfixturevalue(servers[request.param]).url)
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'store.db'}"
