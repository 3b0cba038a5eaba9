"""One broker behind a wire, and a driver that writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.support import Cluster
from tests.verify.faults.bare import BareWorld, SteadyDriver

from onceflow.verify.cluster import KafkaCluster


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def wired(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Of each transaction version."""
    directory = tmp_path_factory.mktemp("wired")
    with KafkaCluster(directory, transaction_version=request.param, wire=True) as cluster:
        yield cluster


@pytest.fixture
def request_timeout_ms() -> int:
    """How long the driver waits for an answer."""
    return 5_000


@pytest.fixture
def world(wired: KafkaCluster, tmp_path: Path, request_timeout_ms: int) -> Iterator[BareWorld]:
    """With a driver that writes; at the end all it has committed is there exactly once."""
    driver = SteadyDriver(wired, tmp_path, request_timeout_ms=request_timeout_ms)
    driver.goes_on()
    yield BareWorld(wired, driver)
    assert not wired.rules._active  # no fault leaves a rule behind
    driver.goes_on()
    judge = Cluster(wired)
    written = driver.end()
    judge.check_exactly(driver.name, written)
    judge.close()
