"""A broker whose groups notice a dead member within seconds, servers for stores, and a place for each test to work on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.conftest import HEAP_MB
from tests.reader.light import Job
from tests.reader.servers import Server, postgresql_server, running_redis
from tests.reader.support import Place

from onceflow.broker import EmbeddedBroker
from onceflow.reader import assignment, closing

SESSION_TIMEOUT_S = 5.0
PROTOCOLS: dict[str, dict[str, Any]] = {"classic": {"session_timeout_s": SESSION_TIMEOUT_S}, "consumer": {}}
"""What a reader that is to be stopped or killed is told besides its group's protocol, so that the group soon notices.

Whoever is to live has the usual session: one whose heartbeat is late on a busy machine would lose its partitions, too. With the
new protocol the session is the brokers' alone, and the same for all.
"""
_CONSUMER_SESSION_S = 6.0
_GROUPS = {
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": str(int(_CONSUMER_SESSION_S * 1000)),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
}


def soon_missed(job: Job) -> Job:
    """The same, done by a reader that is to be stopped or killed."""
    return replace(job, options={**job.options, **PROTOCOLS[job.options.get("group_protocol", "classic")]})


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
