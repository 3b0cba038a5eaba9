"""A world without Spark for faults of whole drivers: processes that commit with the production protocol, and a supervisor."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.light import records_of
from tests.faults.support import Cluster
from tests.new_topics import create
from tests.verify.running.supervised import BESIDE_JAVA, TWO_PROCESSES, supervised

from onceflow.config import load
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.engines import Engine
from onceflow.verify.engines.transaction import ENDS, NEVER, OPENS, THROUGHOUT
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.running.world import PrivateWorld
from onceflow.verify.workload import builtin_plan

ROOT = Path(__file__).parents[3]
SCRIPT = str(Path(__file__).with_name("light_engine.py"))
LIGHT = Engine(
    "light", "light", (sys.executable, SCRIPT),
    steps=("WRITE", "AUDIT", "STORE", "COMMIT", "DONE"),
    transactions={"WRITE": OPENS, "AUDIT": THROUGHOUT, "COMMIT": ENDS, "DONE": NEVER}, visible_from="COMMIT",
)  # fmt: skip
LIGHT_IN_TWO = replace(LIGHT, command=(*TWO_PROCESSES, SCRIPT))
LIGHT_IN_THE_FIRST = replace(LIGHT, command=(*BESIDE_JAVA, SCRIPT))
PATIENCE_S = 240.0
_names = (f"light-{number}" for number in itertools.count())


def engine_for(fault: Fault) -> Engine:
    """One whose process that the fault strikes is the one that works."""
    return LIGHT_IN_THE_FIRST if fault.name in {"kill-driver-python", "pause-driver-python"} else LIGHT_IN_TWO


def make_tests_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the engine's process."""
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*inherited, str(ROOT)]))


@contextmanager
def at_work(
    cluster: KafkaCluster, directory: Path, variant: str = "", *, engine: Engine = LIGHT, timeout_s: int = 10
) -> Iterator[PrivateWorld]:
    """A driver that commits one batch after the other, and one that waits to take over; ``variant`` lacks a defence."""
    name = next(_names)
    admin = AdminClient({"bootstrap.servers": cluster.direct_servers, "log_level": 0})
    create(admin, NewTopic(name, 2), PATIENCE_S)
    settings = {"ONCEFLOW_OUTPUT__TRANSACTION_TIMEOUT": f"{timeout_s} seconds"}
    plan = load(builtin_plan(), settings).plan.model_copy(update={"name": name})
    with supervised(
        directory, engine=engine, servers=cluster.bootstrap_servers, name=name, topic=name, variant=variant,
        timeout_ms=str(1000 * timeout_s),
    ) as driver:  # fmt: skip
        assert driver._await(lambda: driver.has_recovered(2), PATIENCE_S)
        checkpoint = directory / "checkpoint"
        yield PrivateWorld(cluster, None, driver, plan, checkpoint, (), (name,), driver._timeline, threading.Event())


@contextmanager
def proved(cluster: KafkaCluster, directory: Path) -> Iterator[PrivateWorld]:
    """The same; at the end all that was committed is there exactly once."""
    with at_work(cluster, directory) as world:
        yield world
        assert world.driver.await_batches(2, PATIENCE_S)
        assert world.driver.stop(PATIENCE_S) == ""
        batches = range(max(world.driver.course.committed_batches) + 1)
    judge = Cluster(cluster)
    judge.check_exactly(world.plan.name, [record for batch in batches for record in records_of(batch)])
    judge.close()


def found(world: PrivateWorld) -> list[str]:
    """The values that a reader of committed records finds."""
    judge = Cluster(world.kafka)
    values = [str(value) for _, _, value in judge.read(world.plan.name)]
    judge.close()
    return values
