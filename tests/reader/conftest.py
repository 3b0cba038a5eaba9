"""A broker whose groups notice a dead member within seconds, servers for stores, and a place for each test to work on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.conftest import HEAP_MB
from tests.reader.servers import Server, postgresql_server, running_redis
from tests.reader.support import Place

from onceflow.broker import EmbeddedBroker
from onceflow.reader import assignment, closing

SESSION_TIMEOUT_S = 3.0
PROTOCOLS: dict[str, dict[str, Any]] = {"classic": {"session_timeout_s": SESSION_TIMEOUT_S}, "consumer": {}}
"""What a reader is told of its group's protocol besides its name: with the new one the session is the brokers' alone."""
_GROUPS = {
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": str(int(SESSION_TIMEOUT_S * 1000)),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
}


@pytest.fixture(scope="session")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker for the tests of readers; none of them stops it."""
    with EmbeddedBroker(tmp_path_factory.mktemp("reader-broker"), heap_mb=HEAP_MB, config=_GROUPS) as running:
        yield running


class Places(Protocol):
    """Makes places, gone after the test with all their processes."""

    def __call__(self, partitions: int = 1, *, on: EmbeddedBroker | None = None) -> Place: ...


@pytest.fixture(autouse=True)
def a_reader_takes_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an answer may take longer than it waits for: its last events would come again, or its lag stay."""
    monkeypatch.setattr(assignment, "LAST_WORD_S", 60.0)
    monkeypatch.setattr(closing, "CLOSE_S", 60.0)


@pytest.fixture
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    made: list[Place] = []

    def make(partitions: int = 1, *, on: EmbeddedBroker | None = None) -> Place:
        made.append(Place(on or request.getfixturevalue("group_broker"), tmp_path, partitions))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def place(places: Places) -> Place:
    """A topic of one partition."""
    return places()


@pytest.fixture(scope="module")
def database() -> Iterator[Server]:
    """A PostgreSQL of the file's own: tests kill it, and drop its tables."""
    with postgresql_server() as server:
        yield server


@pytest.fixture(scope="module")
def redis_server() -> Iterator[Server]:
    """A Redis of the file's own: tests kill it, and flush it."""
    with running_redis() as server:
        yield server
