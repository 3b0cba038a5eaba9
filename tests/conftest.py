"""What tests share: a real broker of each transaction version and a Spark session, started when first asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceflow.broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAP_MB = 256
_ADMIN_TIMEOUT_S = 30


class TopicFactory(Protocol):
    """Makes a topic and gives its name, which no other topic of this run has."""

    def __call__(
        self, partitions: int = 1, *, config: Mapping[str, str] | None = None, on: EmbeddedBroker | None = None
    ) -> str: ...


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with transaction version 2, for all tests that do not stop or kill it."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), heap_mb=HEAP_MB) as running:
        yield running


@pytest.fixture(scope="session")
def broker_v1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with transaction version 1, for all tests that do not stop or kill it."""
    directory = tmp_path_factory.mktemp("broker-v1")
    with EmbeddedBroker(directory, transaction_version=1, heap_mb=HEAP_MB) as running:
        yield running


@pytest.fixture(scope="session")
def topic(request: pytest.FixtureRequest) -> TopicFactory:
    """Makes topics, on ``broker`` where no other is named."""
    numbers = itertools.count()

    def make(partitions: int = 1, *, config: Mapping[str, str] | None = None, on: EmbeddedBroker | None = None) -> str:
        name = f"topic-{next(numbers)}"
        create_topic(on or request.getfixturevalue("broker"), name, partitions, config)
        return name

    return make


def create_topic(
    broker: EmbeddedBroker, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Make a topic and wait until the broker has it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    new = NewTopic(name, partitions, replication_factor=1, config=dict(config or {}))
    admin.create_topics([new], operation_timeout=_ADMIN_TIMEOUT_S)[name].result(timeout=_ADMIN_TIMEOUT_S)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session."""
    from onceflow.session import spark_session

    session = spark_session("onceflow-tests")
    yield session
    session.stop()
