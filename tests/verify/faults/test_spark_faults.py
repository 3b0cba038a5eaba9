"""Faults of Spark's processes strike what is at work: real processes, a supervised driver. See also test_spark_cluster.py."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.verify.running.supervised import supervised, world_of

from onceflow.verify.cluster import processes
from onceflow.verify.cluster.transaction_log import Entry
from onceflow.verify.engines.transaction import Transaction
from onceflow.verify.faults import at_work
from onceflow.verify.faults import spark as spark_faults
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.faults.spark import KillPythonWorker, KillSparkMaster, PausePythonWorker, PauseSparkMaster
from onceflow.verify.result import Encounter
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.outcome import Raw
from onceflow.verify.running.run import _encounter
from onceflow.verify.running.schedule import Turn
from onceflow.verify.running.world import PrivateWorld

WORKER = """
import socket, sys
connection = None
for line in sys.stdin:
    if line == "write\\n":
        connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    else:
        connection.close()
    print("done", flush=True)
"""
PATIENCE_S = 60.0
MANY = 10_000  # batches; to look takes its time
BOTH = pytest.mark.parametrize("fault", [KillPythonWorker(), PausePythonWorker()], ids=lambda fault: fault.name)


class Worker:
    """A process that is connected to a broker while it writes."""

    def __init__(self, port: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begins(self) -> None:
        self._does("write")

    def ends(self) -> None:
        self._does("end")

    def _does(self, what: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    @property
    def status(self) -> str:
        return psutil.Process(self.process.pid).status()


@contextmanager
def with_worker(tmp_path: Path) -> Iterator[tuple[PrivateWorld, Worker]]:
    """A driver that commits batches, a broker that listens, and one Python worker without a task."""
    with socket.create_server(("127.0.0.1", 0)) as broker, supervised(tmp_path) as driver:
        worker = Worker(broker.getsockname()[1])
        with worker.process:
            spark: Any = SimpleNamespace(python_workers=lambda driver: [worker.process.pid])
            kafka: Any = SimpleNamespace(bootstrap_servers=f"127.0.0.1:{broker.getsockname()[1]}", client=None)
            assert driver.await_batches(1)
            try:
                yield replace(world_of(driver, tmp_path), spark=spark, kafka=kafka), worker
            finally:
                worker.process.kill()


def injected(world: PrivateWorld, fault: Fault) -> Encounter:
    return _encounter(world, Raw(world.driver.engine, world), Turn(1.0, fault, "seed"))


@BOTH
def test_an_idle_python_worker_is_not_struck(tmp_path: Path, fault: Fault) -> None:
    with with_worker(tmp_path) as (world, worker):
        worker.begins()
        worker.ends()
        found = injected(world, fault)
        worker.begins()  # it lives, and is not frozen
    assert not found.met
    assert found.found.startswith("its moment did not come: no Python worker was seen to write to Kafka")


@BOTH
def test_one_whose_task_has_just_ended_is_not_struck(
    tmp_path: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is seen to write, and rests when the signal comes."""
    with with_worker(tmp_path) as (world, worker):
        worker.begins()
        tasks = ["its only one"]

        def freeze_late(pid: int, freeze: Any = processes.freeze) -> bool:
            if tasks:
                worker.ends()
                tasks.clear()
            return bool(freeze(pid))

        monkeypatch.setattr(processes, "freeze", freeze_late)
        found = injected(world, fault)
        worker.begins()
    assert not tasks
    assert not found.met


def test_a_python_worker_that_writes_is_killed(tmp_path: Path) -> None:
    with with_worker(tmp_path) as (world, worker):
        worker.begins()
        found = injected(world, KillPythonWorker())
        assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL
    assert (found.met, found.found) == (True, f"Python worker {worker.process.pid} killed while it wrote to Kafka")


def test_a_python_worker_that_writes_sleeps_until_its_transaction_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs, seen = iter([5, 5, 5, 5, 6, 6]), []

    def entry_of(client: object, name: str) -> Entry:
        seen.append(worker.status)
        return Entry(1, next(epochs), 1000, "Ongoing")

    monkeypatch.setattr(at_work, "entry_of", entry_of)
    monkeypatch.setattr(spark_faults, "entry_of", entry_of)
    with with_worker(tmp_path) as (world, worker):
        worker.begins()
        found = injected(world, PausePythonWorker())
        worker.ends()
    assert seen == [psutil.STATUS_STOPPED] * 6
    pid = worker.process.pid
    assert found.found == f"Python worker {pid} went on in its write, of a transaction that was given up"
    assert (found.met, found.transaction) == (True, Transaction.OPEN)


def test_one_that_has_sent_nothing_yet_is_let_go_until_a_transaction_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is connected to its broker; a worker that sleeps through no transaction wakes as no zombie."""
    monkeypatch.setattr(at_work, "_BATCHES", MANY)
    entries = [None, Entry(1, 5, 1000), Entry(1, 5, 1000, "Ongoing")]
    monkeypatch.setattr(at_work, "entry_of", lambda client, name: entries.pop(0))
    given_up = iter([Entry(1, 5, 1000, "Ongoing"), Entry(1, 6, 1000)])
    last = Entry(1, 6, 1000)
    monkeypatch.setattr(spark_faults, "entry_of", lambda client, name: next(given_up, last))
    with with_worker(tmp_path) as (world, worker):
        worker.begins()
        found = injected(world, PausePythonWorker())
        worker.ends()
    assert not entries
    assert (found.met, found.transaction) == (True, Transaction.OPEN)


def test_where_a_transaction_was_ended_and_not_given_up_it_woke_as_no_zombie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_work, "entry_of", lambda client, name: Entry(1, 5, 1000, "Ongoing"))
    monkeypatch.setattr(spark_faults, "entry_of", lambda client, name: Entry(1, 5, 1000))
    monkeypatch.setattr(spark_faults, "_NOTICED_WITHIN_S", 0.1)
    with with_worker(tmp_path) as (world, worker):
        worker.begins()
        found = injected(world, PausePythonWorker())
        worker.ends()
    assert not found.met, "it woke as no zombie"
    assert found.found.endswith(" went on in its write, and no transaction was given up meanwhile")


class Master:
    """Notes what was done to it, and how many batches were committed by then."""

    def __init__(self, driver: DriverProcess) -> None:
        self._driver = driver
        self.done: list[tuple[str, int]] = []
        self.silence_s = 0.1
        self.master = SimpleNamespace(kill=lambda: self._note("kill"), pause=lambda: self._note("pause"))

    def heal(self) -> None:
        self._note("heal")

    def _note(self, what: str) -> None:
        self.done.append((what, self._driver.commits))


MASTERS = pytest.mark.parametrize("fault", [KillSparkMaster(), PauseSparkMaster()], ids=lambda fault: fault.name)


@MASTERS
def test_batches_are_committed_before_there_is_a_master_again(
    tmp_path: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_faults, "_BEYOND_SILENCE_S", 0.0)
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        master: Any = Master(driver)
        found = injected(replace(world_of(driver, tmp_path), spark=master), fault)
    (struck, before), (healed, after) = master.done
    assert (struck, healed) == (fault.name.split("-", maxsplit=1)[0], "heal")
    assert after >= before + 2
    assert found.met


@MASTERS
def test_who_rests_does_not_notice_that_there_is_no_master(
    tmp_path: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_faults, "_WITHOUT_MASTER_S", 0.1)
    monkeypatch.setattr(spark_faults, "_BEYOND_SILENCE_S", 0.0)
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        master: Any = Master(driver)
        with driver.resting():
            found = injected(replace(world_of(driver, tmp_path), spark=master), fault)
    assert [what for what, _ in master.done][-1] == "heal"
    assert (found.met, found.found) == (
        False,
        "its moment did not come: no batch was run while there was no master",
    )
