"""A real Spark cluster with a real query: it works, its processes fail in every way, and every record is there exactly once."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import cast

import psutil
import pytest
from confluent_kafka import IsolationLevel, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.support import Cluster, eventually

from onceflow.broker import EmbeddedBroker
from onceflow.verify.cluster import KafkaCluster, SparkCluster, processes
from onceflow.verify.faults.spark import (
    KillExecutor,
    KillPythonWorker,
    KillSparkWorker,
    PauseExecutor,
    PauseSparkWorker,
)
from onceflow.verify.running.world import World

pytestmark = pytest.mark.faults

PATIENCE_S = 800.0
RECORDS = 200
DRIVER = Path(__file__).with_name("spark_driver.py")
REHEARSING = Path(__file__).with_name("rehearsing_driver.py")


class SparkWorld:
    """What faults of Spark use of a ``World``, and a query that copies ``source`` to ``target``."""

    def __init__(self, kafka: KafkaCluster, spark: SparkCluster, directory: Path) -> None:
        self.kafka, self.spark = kafka, spark
        self.notes: list[str] = []
        self._numbers = itertools.count()
        self._judge = Cluster(cast(EmbeddedBroker, kafka))
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        made = admin.create_topics([NewTopic("source", 2, 1), NewTopic("target", 2, 1)])
        for future in made.values():
            future.result(PATIENCE_S)
        arguments = [spark.master_url, json.dumps(dict(spark.settings)), kafka.bootstrap_servers, "source", "target"]
        self._driver = subprocess.Popen(
            [sys.executable, DRIVER, *arguments, directory / "checkpoint"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.driver = self._driver  # its ``pid`` is the process group, as that of a ``DriverProcess`` is

    def goes_on(self) -> None:
        """Writes input and waits until its output is committed."""
        number = next(self._numbers)
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for each in range(number * RECORDS, (number + 1) * RECORDS):
            producer.produce("source", str(each), key=str(each % 7))
        assert producer.flush(PATIENCE_S) == 0

        def committed() -> int:
            assert self._driver.poll() is None, "the driver ended"
            return sum(self._judge.ends("target", IsolationLevel.READ_COMMITTED).values())

        before = committed()
        eventually(committed, lambda end: end >= before + RECORDS, "output", PATIENCE_S)

    def end(self) -> None:
        """The driver ends well, and has copied everything once."""
        self._driver.communicate(timeout=PATIENCE_S)
        assert self._driver.returncode == 0
        total = RECORDS * next(self._numbers)
        self._judge.check_exactly("target", [(str(each % 7), str(each)) for each in range(total)])
        self._judge.close()

    def kill(self) -> None:
        with self._driver:
            self._driver.kill()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def strikes_now(self) -> None:
        pass

    def wait_for(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        eventually(condition, bool, what, max(patience_s, PATIENCE_S))

    def sleep(self, seconds: float) -> None:
        """The time for which a fault lasts."""
        time.sleep(seconds)

    def as_world(self) -> World:
        return cast(World, self)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkWorld]:
    directory = tmp_path_factory.mktemp("spark-cluster")
    with (
        KafkaCluster(directory / "kafka") as kafka,
        SparkCluster(directory / "spark", executor_memory_mb=512, silence_s=20) as spark,
    ):
        world = SparkWorld(kafka, spark, directory)
        try:
            world.goes_on()
            yield world
            world.goes_on()
            world.end()
        finally:
            world.kill()
            executors = spark.executors()
    assert not any(map(processes.is_there, executors)), "nothing stays"


def test_each_worker_runs_an_executor_and_all_listen_on_the_loopback_alone(world: SparkWorld) -> None:
    executors = world.spark.executors()
    assert len(executors) == 2
    pids = [world.spark.master.pid, *(worker.pid for worker in world.spark.workers), *executors]
    for pid in pids:
        places = [each.laddr.ip for each in psutil.Process(pid).net_connections("tcp") if each.status == "LISTEN"]
        assert places
        assert set(places) <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_kill_executor(world: SparkWorld) -> None:
    before = set(world.spark.executors())
    KillExecutor().inject(world.as_world(), Random(1))
    assert set(world.spark.executors()) - before
    world.goes_on()


def test_the_executor_is_the_running_drivers_and_not_a_standbys(world: SparkWorld) -> None:
    of_driver = set(world.spark.executors(world.driver.pid))
    standby = subprocess.Popen(
        [sys.executable, "-c", STANDBY, world.spark.master_url, json.dumps(dict(world.spark.settings))],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    with standby:
        eventually(lambda: len(world.spark.executors(standby.pid)), lambda count: count == 2, "executors", PATIENCE_S)
        of_standby = set(world.spark.executors(standby.pid))
        assert not of_standby & of_driver
        for seed in range(4):
            KillExecutor().inject(world.as_world(), Random(seed))
            eventually(
                lambda: len(world.spark.executors(world.driver.pid)), lambda count: count == 2, "both", PATIENCE_S
            )
        assert set(world.spark.executors(standby.pid)) == of_standby
        standby.communicate(timeout=PATIENCE_S)
    assert standby.returncode == 0
    world.goes_on()


def test_pause_executor(world: SparkWorld) -> None:
    before = set(world.spark.executors())
    PauseExecutor().inject(world.as_world(), Random(1))
    eventually(lambda: set(world.spark.executors()) - before, bool, "another executor in its place", PATIENCE_S)
    world.goes_on()


def test_kill_python_worker(world: SparkWorld) -> None:
    world.goes_on()
    before = set(world.spark.python_workers())
    assert before
    KillPythonWorker().inject(world.as_world(), Random(1))
    assert world.notes[-1] == "a Python worker was killed"
    eventually(lambda: before - set(world.spark.python_workers()), bool, "it is gone", PATIENCE_S)
    world.goes_on()


@pytest.mark.parametrize("fault", [KillSparkWorker(), PauseSparkWorker()], ids=lambda fault: fault.name)
def test_spark_worker(world: SparkWorld, fault: KillSparkWorker | PauseSparkWorker) -> None:
    before = [worker.pid for worker in world.spark.workers]
    fault.inject(world.as_world(), Random(1))
    after = [worker.pid for worker in world.spark.workers]
    assert sum(old != new for old, new in zip(before, after, strict=True)) == isinstance(fault, KillSparkWorker)
    world.goes_on()


STANDBY = """
import json, sys
from onceflow import spark_session
spark = spark_session("standby", master=sys.argv[1], config=json.loads(sys.argv[2]))
sys.stdin.read()
spark.stop()
"""

REHEARSED = """
name = "rehearsed"
checkpoint = "{checkpoint}"
kafka.bootstrap_servers = "{servers}"

[[source]]
name = "s"
topics = ["source"]
format = "raw"

[[transform]]
name = "counted"
sql = "SELECT _key AS key, count(*) AS times FROM s GROUP BY _key"

[[sink]]
from = "counted"
topic = "counts"
key = "key"
value = "CAST(times AS STRING)"

[output]
mode = "update"
"""


def rehearse(world: SparkWorld, directory: Path, **more: str) -> dict[str, int]:
    """A stateful plan over ``source``, rehearsed on the cluster: how many tasks each executor ended."""
    with rehearsing(world, directory, **more) as driver:
        return tasks_of(driver, "")


def rehearsing(world: SparkWorld, directory: Path, **more: str) -> subprocess.Popen[str]:
    """A driver that rehearses."""
    plan = directory / "pipeline.toml"
    checkpoint = directory / "checkpoint"
    plan.write_text(REHEARSED.format(checkpoint=checkpoint, servers=world.kafka.bootstrap_servers))
    (directory / "scratch").mkdir()
    settings = json.dumps({**world.spark.settings, **more})
    command: list[str | Path] = [
        sys.executable,
        REHEARSING,
        plan,
        world.spark.master_url,
        settings,
        directory / "scratch",
    ]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def tasks_of(driver: subprocess.Popen[str], told: str) -> dict[str, int]:
    """How many tasks each of its executors has ended that is there in the end; ``told`` it meanwhile."""
    try:
        said, _ = driver.communicate(told, timeout=PATIENCE_S)
    finally:
        driver.kill()
    assert driver.returncode == 0
    tasks: dict[str, int] = json.loads(said.splitlines()[-1])
    del tasks["driver"]
    return tasks


def test_a_standby_whose_executor_was_replaced_rehearses_again(world: SparkWorld, tmp_path: Path) -> None:
    """Whoever takes over then would wait for the new one's first steps."""
    world.goes_on()
    with rehearsing(world, tmp_path) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "rehearsed\n"
        assert world.spark.python_workers(driver.pid), "executors have encoded as well"
        first, other = world.spark.executors(driver.pid)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: set(world.spark.executors(driver.pid)) - {first, other}, bool, "another one", PATIENCE_S)
        tasks = tasks_of(driver, "go on\n")
    assert len(tasks) == 2
    assert all(tasks.values()), "the new one has worked too"


def test_a_standby_rehearses_on_its_executors_and_leaves_nothing(world: SparkWorld, tmp_path: Path) -> None:
    world.goes_on()
    place = tmp_path / "checkpoint" / "_rehearsals"
    left, present, foreign = (place / name for name in (f"1-{'a' * 32}", f"{time.time():.0f}-{'b' * 32}", "1-foreign"))
    for each in (left, present, foreign):
        (each / "rehearsal-0").mkdir(parents=True)
    tasks = rehearse(world, tmp_path)
    assert sum(tasks.values()) > 0
    assert set(place.iterdir()) == {present, foreign}, (
        "another standby may rehearse there; what has no such name is not ours"
    )
    assert list((tmp_path / "checkpoint").iterdir()) == [place], "nothing of the pipeline's own"


def test_a_standby_whose_executors_come_with_the_work_rehearses_nothing(world: SparkWorld, tmp_path: Path) -> None:
    world.goes_on()
    own = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": "0",
    }
    assert sum(rehearse(world, tmp_path, **own).values()) == 0
    assert not (tmp_path / "checkpoint").exists()


START = """
import sys
from onceflow.verify.cluster import SparkCluster
with SparkCluster(sys.argv[1], workers=1) as cluster:
    cluster.workers[0].pause()
    print(cluster.master.pid, cluster.workers[0].pid, flush=True)
    sys.stdin.read()
"""


def test_nothing_stays_when_the_interpreter_is_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", START, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with starter:
        assert starter.stdout is not None
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        assert len(pids) == 2
        os.kill(starter.pid, signal.SIGKILL)
    eventually(lambda: [pid for pid in pids if processes.is_there(pid)], lambda left: not left, "they end", PATIENCE_S)
