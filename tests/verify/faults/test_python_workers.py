"""Faults of executors' Python processes strike what is at work: a supervised driver. See also test_spark_cluster.py."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.faults.support import eventually
from tests.verify.running.injected import injected
from tests.verify.running.supervised import supervised, world_of

from onceflow.errors import VerificationError
from onceflow.verify.cluster import processes
from onceflow.verify.cluster.transaction_log import Entry
from onceflow.verify.engines.transaction import Transaction
from onceflow.verify.faults import at_work, python_workers
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.faults.python_workers import (
    KillPythonDaemon,
    KillPythonWorker,
    PausePythonDaemon,
    PausePythonWorker,
)
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
WORKERS = [KillPythonWorker(), PausePythonWorker()]
DAEMONS = [KillPythonDaemon(), PausePythonDaemon()]
ANY = pytest.mark.parametrize("fault", [*WORKERS, *DAEMONS], ids=lambda fault: fault.name)
OF_A_DAEMON = pytest.mark.parametrize("fault", DAEMONS, ids=lambda fault: fault.name)


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
def with_worker(tmp_path: Path, daemon: int | None = None) -> Iterator[tuple[PrivateWorld, Worker]]:
    """A driver that commits batches, a broker that listens, and one Python worker without a task."""
    with socket.create_server(("127.0.0.1", 0)) as broker, supervised(tmp_path) as driver:
        worker = Worker(broker.getsockname()[1])
        with worker.process:
            spark: Any = SimpleNamespace(
                python_workers=lambda driver: [worker.process.pid], python_daemon=lambda pid: daemon
            )
            kafka: Any = SimpleNamespace(bootstrap_servers=f"127.0.0.1:{broker.getsockname()[1]}", client=None)
            assert driver.await_batches(1)
            try:
                yield replace(world_of(driver, tmp_path), spark=spark, kafka=kafka), worker
            finally:
                worker.process.kill()


@ANY
def test_an_idle_python_worker_is_not_struck(tmp_path: Path, fault: Fault) -> None:
    with with_worker(tmp_path) as (world, worker):
        worker.begins()
        worker.ends()
        found = injected(world, fault)
        worker.begins()  # it lives, and is not frozen
    assert not found.met
    assert found.found.startswith("its moment did not come: no Python worker was seen to write to Kafka")


@ANY
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
    monkeypatch.setattr(python_workers, "entry_of", entry_of)
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
    monkeypatch.setattr(python_workers, "entry_of", lambda client, name: next(given_up, last))
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
    monkeypatch.setattr(python_workers, "entry_of", lambda client, name: Entry(1, 5, 1000))
    monkeypatch.setattr(python_workers, "_NOTICED_WITHIN_S", 0.1)
    with with_worker(tmp_path) as (world, worker):
        worker.begins()
        found = injected(world, PausePythonWorker())
        worker.ends()
    assert not found.met, "it woke as no zombie"
    assert found.found.endswith(" went on in its write, and no transaction was given up meanwhile")


FORKING = """
import os, signal
os.setpgid(0, 0)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
workers = []
for _ in range(2):
    if not (worker := os.fork()):
        signal.sigwait([signal.SIGUSR1])
        print("goes on", flush=True)
        os._exit(0)
    workers.append(worker)
print(*workers, flush=True)
signal.sigwait([signal.SIGUSR1])
print("goes on", flush=True)
"""


class Daemon:
    """As PySpark's: it has a process group of its own, in which its two workers are."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", FORKING], stdout=subprocess.PIPE, text=True)
        self.writing, self.other = map(int, self._line().split())

    def goes_on(self, pid: int) -> bool:
        return processes.send(pid, signal.SIGUSR1) and self._line() == "goes on\n"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> None:
        for pid in (self.writing, self.other):
            processes.send(pid, signal.SIGKILL)
        self.process.kill()


@contextmanager
def with_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PrivateWorld, Daemon]]:
    """A driver that commits batches, and a Python worker that is caught in its write."""
    with supervised(tmp_path) as driver:
        daemon = Daemon()
        spark: Any = SimpleNamespace(python_daemon=lambda worker: daemon.process.pid)

        def frozen_at_work(world: object, random: object, *, in_transaction: bool) -> int:
            assert in_transaction
            assert processes.freeze(daemon.writing)
            return daemon.writing

        monkeypatch.setattr(python_workers, "frozen_at_work", frozen_at_work)
        with daemon.process:
            try:
                yield replace(world_of(driver, tmp_path), spark=spark), daemon
            finally:
                daemon.end()


def test_a_daemon_is_killed_and_of_its_workers_the_one_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_daemon(tmp_path, monkeypatch) as (world, daemon):
        found = injected(world, KillPythonDaemon())
        assert daemon.process.wait(PATIENCE_S) == -signal.SIGKILL
        assert not processes.is_there(daemon.writing)
        assert daemon.goes_on(daemon.other)
    text = f"Python worker {daemon.writing} killed while it wrote to Kafka, and its daemon {daemon.process.pid}"
    assert (found.met, found.found, found.transaction) == (True, text, Transaction.OPEN)


@pytest.mark.parametrize("commits", [False, True], ids=["waited for", "not waited for"])
def test_a_daemon_sleeps_for_longer_than_a_transaction_when_its_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, commits: bool
) -> None:
    slept: list[tuple[float, str]] = []

    def sleep(world: PrivateWorld, seconds: float) -> None:
        slept.append((seconds, psutil.Process(daemon.process.pid).status()))
        if commits:
            resting.close()
            assert world.driver.await_batches(1)

    monkeypatch.setattr(PrivateWorld, "sleep", sleep)
    with with_daemon(tmp_path, monkeypatch) as (world, daemon), ExitStack() as resting:
        resting.enter_context(world.driver.resting())
        found = injected(world, PausePythonDaemon())
        assert not processes.is_there(daemon.writing)
        assert daemon.goes_on(daemon.process.pid)
    ((seconds, status),) = slept
    assert status == psutil.STATUS_STOPPED
    assert seconds >= world.plan.output.transaction_timeout.ms / 1000
    text = f"Python worker {daemon.writing} killed while it wrote to Kafka, and its daemon {daemon.process.pid} woke"
    assert (found.met, found.found) == (True, text + ", for which nobody had waited" * commits)


@OF_A_DAEMON
def test_nobody_stays_frozen_whose_worker_cannot_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    def refuse(pid: int) -> bool:
        raise VerificationError(f"{pid} does not end")

    with with_daemon(tmp_path, monkeypatch) as (world, daemon):
        monkeypatch.setattr(processes, "kill", refuse)
        with pytest.raises(VerificationError, match="does not end"):
            injected(world, fault)
        for pid in (daemon.writing, daemon.process.pid):
            eventually(psutil.Process(pid).status, lambda status: status != psutil.STATUS_STOPPED, f"{pid} woke")
            assert daemon.goes_on(pid)


def ended() -> int:
    """The pid of a process that was there."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@OF_A_DAEMON
@pytest.mark.parametrize("daemon", [lambda: None, ended], ids=["it is unknown", "it has just ended"])
def test_a_worker_that_has_outlived_its_daemon_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, daemon: Callable[[], int | None]
) -> None:
    monkeypatch.setattr(at_work, "entry_of", lambda client, name: Entry(1, 5, 1000, "Ongoing"))
    with with_worker(tmp_path, daemon()) as (world, worker):
        worker.begins()
        found = injected(world, fault)
        worker.ends()  # it lives, and is not frozen
    text = f"its moment did not come: the daemon of Python worker {worker.process.pid} had ended before"
    assert (found.met, found.found) == (False, text)
