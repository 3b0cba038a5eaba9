"""A real Spark cluster with a real query: it works, its processes fail in every way, and every record is there exactly once."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import cast

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.support import Cluster, eventually
from tests.verify.cluster.lives_once import LivesOnce
from tests.verify.cluster.retried_driver import (
    ROWS,
    TASKS,
    attempts,
    by_its_own_transactions,
    by_sparks_own_sink,
)

from onceflow.config import Plan, load
from onceflow.verify.cluster import KafkaCluster, SparkCluster, processes, spark
from onceflow.verify.faults import at_work
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.faults.python_workers import (
    KillPythonDaemon,
    KillPythonWorker,
    PausePythonDaemon,
    PausePythonWorker,
)
from onceflow.verify.faults.spark import (
    KillExecutor,
    KillSparkMaster,
    KillSparkWorker,
    PauseExecutor,
    PauseSparkMaster,
    PauseSparkWorker,
)
from onceflow.verify.running.encounters import NOTHING, UnderWay
from onceflow.verify.running.world import World, committed_end
from onceflow.verify.workload import builtin_plan

pytestmark = pytest.mark.faults

PATIENCE_S = 800.0
RECORDS = 200
MANY = 50  # batches; to look for a worker at work takes its time
DRIVER = Path(__file__).with_name("spark_driver.py")
REHEARSING = Path(__file__).with_name("rehearsing_driver.py")
RETRIED = Path(__file__).with_name("retried_driver.py")


class SparkDriver(LivesOnce):
    """What faults of Spark use of a ``DriverProcess``: a query that copies ``source`` to ``target``."""

    under_way: UnderWay = NOTHING  # it tells no steps

    def __init__(self, world: SparkWorld, checkpoint: Path) -> None:
        self._world, self.checkpoint = world, checkpoint
        spark, kafka = world.spark, world.kafka
        timeout_ms = world.plan.output.transaction_timeout.ms
        arguments = [spark.master_url, json.dumps(dict(spark.settings)), kafka.bootstrap_servers, "source", "target"]
        self.process = subprocess.Popen(
            [sys.executable, DRIVER, *arguments, checkpoint, str(timeout_ms)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self.process.pid  # the process group, too

    @property
    def commits(self) -> int:
        """The batches that Spark has called committed."""
        log = self.checkpoint / "commits"
        return sum(each.name.isdecimal() for each in log.iterdir()) if log.exists() else 0

    def await_batches(self, count: int, patience_s: float) -> bool:  # noqa: ARG002  a busy machine is given more
        wanted = self.commits + count
        while self.commits < wanted:
            self._world.goes_on()
        return True


@dataclass(frozen=True, slots=True)
class TasksInHand(LivesOnce):
    """What faults of Spark use of a driver: this one has no batches, but one job, and a task of it is run again."""

    process: subprocess.Popen[bytes]
    gate: Path
    under_way: UnderWay = NOTHING

    @property
    def pid(self) -> int:
        """The process group, too."""
        return self.process.pid

    @property
    def commits(self) -> int:
        """Of the task that commits by itself."""
        return attempts(self.gate)

    def await_batches(self, count: int, patience_s: float) -> bool:  # noqa: ARG002  the interface
        return False

    def eventually(self, count: Callable[[], int], enough: int, what: str) -> None:
        def counted() -> int:
            assert self.process.poll() is None, "the driver ended"
            return count()

        eventually(counted, enough.__le__, what, PATIENCE_S)


class SparkWorld:
    """What faults of Spark use of a ``World``."""

    transactional_id = "onceflow-target"

    def __init__(self, kafka: KafkaCluster, spark: SparkCluster, directory: Path) -> None:
        self.kafka, self.spark = kafka, spark
        self.plan: Plan = load(builtin_plan(), {"ONCEFLOW_OUTPUT__TRANSACTION_TIMEOUT": "5 seconds"}).plan
        self.notes: list[str] = []
        self.meetings: list[str] = []
        self._batches = 0  # of input
        self._writing = threading.Lock()
        self._judge = Cluster(kafka)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        made = admin.create_topics([NewTopic("source", 2, 1), NewTopic("target", 2, 1)])
        for future in made.values():
            future.result(PATIENCE_S)
        self.driver = SparkDriver(self, directory / "checkpoint")

    def goes_on(self) -> None:
        """Writes input and waits until a batch with all of it is committed."""
        wanted = self._write()

        def committed() -> int:
            assert self.driver.process.poll() is None, "the driver ended"
            return sum((committed_end(self.driver.checkpoint) or {}).values())

        eventually(committed, lambda end: end >= wanted, "output", PATIENCE_S)

    def _write(self) -> int:
        """More input; how many records there are of it."""
        with self._writing:
            producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "enable.idempotence": True})
            for each in range(self._batches * RECORDS, (self._batches + 1) * RECORDS):
                producer.produce("source", str(each), key=str(each % 7))
            assert producer.flush(PATIENCE_S) == 0
            self._batches += 1
            return self._batches * RECORDS

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """Input goes on coming, so that tasks come upon each other."""
        ending = threading.Event()

        def write() -> None:
            while not ending.wait(0.2):
                self._write()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            ending.set()
            writer.join()

    def end(self) -> None:
        """The driver ends well, and has copied everything once."""
        self.driver.process.communicate(timeout=PATIENCE_S)
        assert self.driver.process.returncode == 0
        total = RECORDS * self._batches
        self._judge.check_exactly("target", [(str(each % 7), str(each)) for each in range(total)])
        self._judge.close()

    def beside(self, driver: TasksInHand, transactional_id: str) -> World:
        """The same world for faults that are to meet another driver."""
        other = copy.copy(self)
        other.transactional_id = transactional_id
        other.driver = cast(SparkDriver, driver)
        return other.as_world()

    def make_topic(self) -> str:
        return self._judge.make_topic()

    def committed(self, topic: str) -> list[str]:
        """The numbers in a topic that has no other text."""
        return [(value or "").strip() for *_, value in self._judge.read(topic)]

    def kill(self) -> None:
        with self.driver.process as process:
            process.kill()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def missed(self, text: str) -> None:
        self.note(f"missed: {text}")

    def met(self, text: str, at: UnderWay | None = None) -> None:  # noqa: ARG002  the interface
        self.meetings.append(text)

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
            started = [*spark.executors(), *spark.python_daemons(), *spark.python_workers()]
    assert not any(map(processes.is_there, started)), "nothing stays"


def test_each_worker_runs_an_executor_and_all_listen_on_the_loopback_alone(world: SparkWorld) -> None:
    executors = eventually(world.spark.executors, lambda found: len(found) == 2, "an executor of each", PATIENCE_S)
    for pid in [world.spark.master.pid, *(worker.pid for worker in world.spark.workers), *executors]:
        process = psutil.Process(pid)
        places = eventually(lambda: addresses(process), bool, f"{process} listens", PATIENCE_S)  # noqa: B023
        assert places <= {"127.0.0.1", "::ffff:127.0.0.1"}


def addresses(process: psutil.Process) -> set[str]:
    """Where it listens."""
    return {each.laddr.ip for each in process.net_connections("tcp") if each.status == "LISTEN"}


def test_kill_executor(world: SparkWorld) -> None:
    before = set(world.spark.executors())
    KillExecutor().inject(world.as_world(), Random(1))
    assert set(world.spark.executors()) - before
    world.goes_on()


@pytest.mark.long
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


@pytest.mark.long
def test_pause_executor(world: SparkWorld) -> None:
    before = set(world.spark.executors())
    PauseExecutor().inject(world.as_world(), Random(1))
    eventually(lambda: set(world.spark.executors()) - before, bool, "another executor in its place", PATIENCE_S)
    world.goes_on()


def test_kill_python_worker(world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_work, "_BATCHES", MANY)
    with world.under_load():
        KillPythonWorker().inject(world.as_world(), Random(1))
    met = re.fullmatch(r"Python worker (\d+) killed while it wrote to Kafka", world.meetings[-1])
    assert met
    assert not processes.is_there(int(met[1]))
    world.goes_on()


@pytest.mark.long
def test_pause_python_worker(world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sends when it wakes is of a transaction that was aborted: in the end all is there once."""
    monkeypatch.setattr(at_work, "_BATCHES", MANY)
    with world.under_load():
        PausePythonWorker().inject(world.as_world(), Random(1))
    assert re.fullmatch(
        r"Python worker \d+ went on in its write, of a transaction that was given up", world.meetings[-1]
    )
    world.goes_on()


def test_a_python_worker_that_has_outlived_its_daemon_is_known(world: SparkWorld) -> None:
    worker = eventually(world.spark.python_workers, bool, "a Python worker", PATIENCE_S)[0]
    daemon = world.spark.python_daemon(worker)
    assert daemon is not None
    assert daemon not in world.spark.python_workers()
    processes.kill(daemon)
    assert worker in world.spark.python_workers(world.driver.pid)
    assert world.spark.python_daemon(worker) is None
    processes.kill(worker)  # the next one has to come from another daemon
    world.goes_on()


@pytest.mark.long
def test_kill_python_daemon(world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_work, "_BATCHES", MANY)
    with world.under_load():
        KillPythonDaemon().inject(world.as_world(), Random(1))
    met = re.fullmatch(r"Python worker (\d+) killed while it wrote to Kafka, and its daemon (\d+)", world.meetings[-1])
    assert met
    assert not any(processes.is_there(int(pid)) for pid in met.groups())

    def daemons() -> int:
        world.goes_on()
        return len(world.spark.python_daemons())

    eventually(daemons, lambda count: count == 2, "another daemon in its place", PATIENCE_S)


@pytest.mark.long
def test_pause_python_daemon(world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is committed meanwhile, and then all of it once."""
    monkeypatch.setattr(at_work, "_BATCHES", MANY)
    with world.under_load():
        PausePythonDaemon().inject(world.as_world(), Random(1))
    met = re.fullmatch(
        r"Python worker (\d+) killed while it wrote to Kafka, and its daemon (\d+) woke", world.meetings[-1]
    )
    assert met
    assert not processes.is_there(int(met[1]))
    world.goes_on()


@pytest.mark.long
@pytest.mark.parametrize("fault", [KillSparkWorker(), PauseSparkWorker()], ids=lambda fault: fault.name)
def test_spark_worker(world: SparkWorld, fault: KillSparkWorker | PauseSparkWorker) -> None:
    before = [worker.pid for worker in world.spark.workers]
    fault.inject(world.as_world(), Random(1))
    after = [worker.pid for worker in world.spark.workers]
    assert sum(old != new for old, new in zip(before, after, strict=True)) == isinstance(fault, KillSparkWorker)
    world.goes_on()


def test_kill_spark_master(world: SparkWorld) -> None:
    """The next one knows the driver: it replaces what is lost."""
    master = world.spark.master.pid
    KillSparkMaster().inject(world.as_world(), Random(1))
    assert world.spark.master.pid != master
    assert int(world.notes[-1].split()[0]) >= 2
    world.goes_on()
    KillExecutor().inject(world.as_world(), Random(1))
    world.goes_on()


@pytest.mark.long
def test_pause_spark_master(world: SparkWorld) -> None:
    master = world.spark.master.pid
    PauseSparkMaster().inject(world.as_world(), Random(1))
    assert world.spark.master.pid == master
    world.goes_on()


def test_a_master_that_wakes_is_at_work_when_it_has_heard_of_its_workers(world: SparkWorld) -> None:
    """At first it believes what was true before."""
    world.spark.master.pause()
    woken_at = time.time()
    world.spark.heal()
    assert world.spark.alive_workers(woken_at) == sorted(worker.port for worker in world.spark.workers)


def test_a_master_that_counts_executors_that_do_not_run_is_started_again(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One core more, as a master does that was told of an executor twice; that cannot be brought about at will.

    More than run, and not than it gives: one that has just come back may give fewer for a while.
    """
    master, count = world.spark.master, world.spark._cores_given
    masters = [master.pid]

    def too_many() -> dict[str, int]:
        if masters[-1] != master.pid:
            masters.append(master.pid)
        return {app: cores + 1 for app, cores in world.spark._cores_taken().items()} if len(masters) == 2 else count()

    master.kill()
    with monkeypatch.context() as patched:
        patched.setattr(spark, "_COUNTS_S", 5.0)
        patched.setattr(world.spark, "_cores_given", too_many)
        again = world.spark.heal()
    assert again >= 1
    assert len(set(masters)) == 2 + again
    world.goes_on()


@contextmanager
def tasks_in_hand(world: SparkWorld, directory: Path, way: Callable[..., None], topic: str) -> Iterator[TasksInHand]:
    """A driver that writes to ``topic``: its tasks are to come to their middle within, and end behind it."""
    gate = directory / "gate"
    settings, servers = json.dumps(dict(world.spark.settings)), world.kafka.bootstrap_servers
    arguments = [way.__name__, world.spark.master_url, settings, servers, topic, str(gate)]
    with subprocess.Popen([sys.executable, str(RETRIED), *arguments], start_new_session=True) as process:
        try:
            yield TasksInHand(process, gate)
            gate.touch()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def repeated(world: SparkWorld, topic: str) -> set[int]:
    times = Counter(map(int, world.committed(topic)))
    assert set(times) == set(range(ROWS)), "its tasks were run again, so none is lost"
    return {number for number, count in times.items() if count > 1}


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [KillExecutor(), PauseExecutor(), KillSparkWorker(), PauseSparkWorker(), PauseSparkMaster()],
    ids=lambda fault: fault.name,
)
def test_control_sparks_own_sink_repeats_what_a_task_had_written_that_is_run_again(
    world: SparkWorld, tmp_path: Path, fault: Fault
) -> None:
    """The same faults as above. Each executor has a task in hand, with half of its records in the topic."""
    topic = world.make_topic()
    with tasks_in_hand(world, tmp_path, by_sparks_own_sink, topic) as driver:
        halves = len(range(0, ROWS, 2)) - TASKS * 5  # but for some that are still on their way to Spark
        driver.eventually(lambda: len(world.committed(topic)), halves, "half of the records")
        fault.inject(world.beside(driver, topic), Random(1))
    assert repeated(world, topic)
    world.goes_on()


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [KillPythonWorker(), PausePythonWorker(), KillPythonDaemon(), PausePythonDaemon()],
    ids=lambda fault: fault.name,
)
def test_control_a_task_that_commits_by_itself_repeats_what_it_had_committed(
    world: SparkWorld, tmp_path: Path, fault: Fault
) -> None:
    """The same faults as above. Half of the records are committed when they come, and the transaction of the others is open."""
    topic, met = world.make_topic(), len(world.meetings)
    with tasks_in_hand(world, tmp_path, by_its_own_transactions, topic) as driver:
        driver.eventually(lambda: driver.commits, 1, "the second transaction")
        fault.inject(world.beside(driver, topic), Random(1))
    [told] = world.meetings[met:] or world.notes[-1:]
    assert re.match(r"Python worker \d+ (killed|went on)", told), told
    assert "nobody had waited" not in told
    assert repeated(world, topic) == set(range(ROWS // 2)), "what was open is aborted"
    world.goes_on()


ALIKE = """
import os, sys
child = os.fork()
if child:
    print(child, flush=True)
sys.stdin.read()
"""


def test_what_an_executor_starts_is_no_executor(tmp_path: Path) -> None:
    """Until it has a command line of its own it has its parent's."""
    cluster = SparkCluster(tmp_path)
    told = ["CoarseGrainedExecutorBackend", "--worker-url", f"spark://Worker@127.0.0.1:{cluster.workers[0].port}"]
    with subprocess.Popen(
        [sys.executable, "-c", ALIKE, *told], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as executor:
        assert executor.stdout is not None
        assert processes.is_there(int(executor.stdout.readline()))
        assert cluster.executors() == [executor.pid]


def test_a_worker_that_cannot_be_killed_leaves_nothing_else_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of Spark's processes are some that do nothing; one is an executor whose worker has ended before."""
    cluster = SparkCluster(tmp_path)
    for each in (cluster.master, *cluster.workers):
        monkeypatch.setattr(each, "_command", ["sleep", "600"])
        each.start()
    first, second = cluster.workers
    told = ["CoarseGrainedExecutorBackend", "--worker-url", f"spark://Worker@127.0.0.1:{second.port}"]
    executor = subprocess.Popen([sys.executable, "-c", "input()", *told], stdin=subprocess.PIPE)
    end_all = first.end_all

    def fail() -> None:
        end_all()
        raise subprocess.TimeoutExpired("the first one", 30)

    monkeypatch.setattr(first, "end_all", fail)
    with executor:
        eventually(cluster.executors, lambda found: found == [executor.pid], "the executor", PATIENCE_S)
        with pytest.raises(subprocess.TimeoutExpired, match="the first one"):
            cluster.kill()
        left = [each for each in (cluster.master, second) if each.is_running], cluster.executors()
        monkeypatch.undo()
        cluster.kill()
    assert left == ([], [])


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


@pytest.mark.long
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


@pytest.mark.long
def test_a_standby_that_has_lost_an_executor_is_cold_until_there_is_another_one(
    world: SparkWorld, tmp_path: Path
) -> None:
    """On those that are left it is warm; but whoever takes over meanwhile has a new one soon."""
    world.goes_on()
    with rehearsing(world, tmp_path) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        assert driver.stdout.readline() == "rehearsed\n"
        worker = world.spark.workers[0]
        worker.end_all()
        driver.stdin.write("go on\n")
        driver.stdin.flush()
        assert driver.stdout.readline() == "cold 1\n", "not only when another one has come"
        eventually(
            lambda: worker.port in world.spark.alive_workers(), lambda known: not known, "it is missed", PATIENCE_S
        )
        world.spark.heal()
        tasks = tasks_of(driver, "")
    assert len(tasks) == 2, "it has waited for the other one"
    assert all(tasks.values())


@pytest.mark.long
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


@pytest.mark.long
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
