"""What our refusal of speculation is for: Spark's own sink repeats what a slow attempt had written before another overtook it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.verify.cluster import retried_driver
from tests.verify.cluster.retried_driver import ROWS, TASKS, by_sparks_own_sink_with_a_slow_attempt

from onceflow.broker.settings import HOST
from onceflow.verify.cluster import SparkCluster

if TYPE_CHECKING:
    from tests.conftest import Reader, TopicFactory

    from onceflow.broker import EmbeddedBroker

pytestmark = pytest.mark.faults

ANOTHER_HOST = "127.0.0.2"  # of the same loopback: Spark speculates only where the slow attempt is not
PATIENCE_S = 300.0
SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}


@pytest.fixture
def on_two_hosts(tmp_path: Path) -> Iterator[SparkCluster]:
    cluster = SparkCluster(tmp_path / "spark")
    second = cluster.workers[1]
    second._command = [ANOTHER_HOST if word == HOST else word for word in second._command]
    with cluster:
        yield cluster


@pytest.mark.long
def test_control_sparks_own_sink_repeats_what_a_slow_attempt_had_written(
    on_two_hosts: SparkCluster, broker: EmbeddedBroker, topic: TopicFactory, read: Reader, tmp_path: Path
) -> None:
    target, gate = topic(), tmp_path / "gate"
    settings = json.dumps({**on_two_hosts.settings, **SPECULATIVE})
    way = by_sparks_own_sink_with_a_slow_attempt.__name__
    arguments = [way, on_two_hosts.master_url, settings, broker.bootstrap_servers, target, str(gate)]
    driver = subprocess.Popen([sys.executable, retried_driver.__file__, *arguments], start_new_session=True)
    with driver:
        try:
            assert driver.wait(PATIENCE_S) == 0
        finally:
            gate.touch()
            driver.kill()
    times = Counter(int(message.key() or b"") for message in read(target))
    assert set(times) == set(range(ROWS)), "another attempt overtook the slow one"
    repeated = {number for number, count in times.items() if count > 1}
    first, half = ROWS - ROWS // TASKS, ROWS // TASKS // 2
    assert repeated
    assert repeated <= set(range(first, first + half))
