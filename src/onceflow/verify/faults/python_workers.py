"""Faults of the Python processes of executors: workers, which run tasks, and the daemons that fork them (F2, F3).

An executor starts a daemon, has it fork a worker where none is idle, and tells it which worker to end. A worker does many
tasks, one after the other. What is struck writes to Kafka at that moment; where the driver writes by itself there are none.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from onceflow.verify.cluster import processes
from onceflow.verify.cluster.transaction_log import entry_of
from onceflow.verify.engines.transaction import Transaction
from onceflow.verify.faults.at_work import frozen_at_work
from onceflow.verify.faults.spark import SPARK

if TYPE_CHECKING:
    from onceflow.verify.cluster.transaction_log import Entry
    from onceflow.verify.running.encounters import UnderWay
    from onceflow.verify.running.world import World

_PATIENCE_S = 300.0
_BEYOND_TIMEOUT_S = 3.0
_NOTICED_WITHIN_S = 60.0  # a coordinator looks every 10 s, and has other work
_COORDINATOR_LOOKS_S = 10.0  # for transactions that have lasted too long


@dataclass(frozen=True, slots=True)
class KillPythonWorker:
    """SIGKILL to a Python worker of the driver's executors, in the middle of its task: it fails, and Spark runs that again."""

    name: str = "kill-python-worker"
    text: str = "SIGKILL to a Python worker that writes to Kafka"
    needs: tuple[str, ...] = (SPARK,)

    def inject(self, world: World, random: Random) -> None:
        pid = frozen_at_work(world, random)
        if pid is None:
            return
        at = world.driver.under_way
        world.strikes_now()
        processes.kill(pid)
        world.met(f"Python worker {pid} killed while it wrote to Kafka", at)


@dataclass(frozen=True, slots=True)
class PausePythonWorker:
    """SIGSTOP to a Python worker of the driver's executors, in the middle of its task, until its transaction was given up.

    ::

        worker       frozen; its executor goes on telling the driver that all is well, so its task is not given to another one
        coordinator  ends the transaction when it has lasted for too long, and fences its epoch
        worker       wakes: a zombie goes on to send what belongs to a transaction that was aborted
        driver       hears of it from the task alone, or not at all, and must not commit without its records
    """

    name: str = "pause-python-worker"
    text: str = "SIGSTOP to a Python worker that writes to Kafka, beyond its transaction's timeout, then SIGCONT"
    needs: tuple[str, ...] = (SPARK,)

    def inject(self, world: World, random: Random) -> None:
        pid = frozen_at_work(world, random, in_transaction=True)
        if pid is None:
            return
        at = world.driver.under_way
        world.strikes_now()
        world.note(f"Python worker {pid} frozen while it wrote to Kafka")
        try:
            given_up = _is_given_up(world)
            world.sleep(random.uniform(0, _BEYOND_TIMEOUT_S))
        finally:
            woke = processes.send(pid, signal.SIGCONT)
        text = f"Python worker {pid} {'went on' if woke else 'was ended'} in its write"
        if given_up:
            world.met(f"{text}, of a transaction that was given up", replace(at, transaction=Transaction.OPEN))
        else:
            world.missed(f"{text}, and no transaction was given up meanwhile")


@dataclass(frozen=True, slots=True)
class KillPythonDaemon:
    """SIGKILL to a Python worker in the middle of its task, and to the daemon that it was forked from.

    ::

        worker    dies: its task fails, and Spark runs it again
        daemon    dies: its other workers go on, without anybody who ends them by their pid
        executor  finds nobody to fork another worker from, and starts another daemon

    In that order, and with the daemon frozen from the beginning: no worker is forked between, and none is stopped when the daemon
    dies. Its process group is an orphan then, and a kernel ends all of an orphaned group (SIGHUP) in which anything is stopped.
    """

    name: str = "kill-python-daemon"
    text: str = "SIGKILL to a Python worker that writes to Kafka, and to the daemon that it was forked from"
    needs: tuple[str, ...] = (SPARK,)

    def inject(self, world: World, random: Random) -> None:
        at = _kill_under_a_frozen_daemon(world, random)
        if at is None:
            return
        processes.kill(at.daemon)
        world.met(f"{at.text}, and its daemon {at.daemon}", at.under_way)


@dataclass(frozen=True, slots=True)
class PausePythonDaemon:
    """SIGSTOP to an executor's Python daemon, SIGKILL to a worker of its in the middle of its task, and SIGCONT much later.

    ::

        worker       dies: its task fails, and Spark runs it again, here or elsewhere
        executor     asks for another worker as soon as it has a task, and waits for an answer without an end;
                     all the time it tells the driver that all is well
        coordinator  ends a transaction that is open meanwhile when it has lasted for too long, and fences its epoch
        daemon       wakes, and what waited begins

    A driver notices nothing of a daemon that never wakes, but by ``--stall-timeout``.
    """

    name: str = "pause-python-daemon"
    text: str = (
        "SIGKILL to a Python worker that writes to Kafka, and SIGSTOP to its daemon beyond the transaction's timeout"
    )
    needs: tuple[str, ...] = (SPARK,)

    def inject(self, world: World, random: Random) -> None:
        at = _kill_under_a_frozen_daemon(world, random)
        if at is None:
            return
        before = world.driver.course.commits
        world.note(f"{at.text}, and its daemon {at.daemon} frozen")
        try:
            timeout_s = world.plan.output.transaction_timeout.ms / 1000
            world.sleep(timeout_s + random.uniform(0, _COORDINATOR_LOOKS_S))
            waited_for = world.driver.course.commits == before
        finally:
            woke = processes.send(at.daemon, signal.SIGCONT)
        end = f"its daemon {at.daemon} {'woke' if woke else 'was ended'}"
        world.met(f"{at.text}, and {end}{'' if waited_for else ', for which nobody had waited'}", at.under_way)


class _Killed(NamedTuple):
    """A worker that is dead, and its daemon, which stands still."""

    daemon: int
    text: str
    under_way: UnderWay


def _kill_under_a_frozen_daemon(world: World, random: Random) -> _Killed | None:
    """SIGKILL to a Python worker in the middle of its write. None: there was none, and the world was told why."""
    worker = frozen_at_work(world, random, in_transaction=True)
    if worker is None:
        return None
    assert world.spark is not None
    try:
        daemon = world.spark.python_daemon(worker)
        if daemon is None or not processes.freeze(daemon):
            world.missed(f"the daemon of Python worker {worker} had ended before")
            return None
        under_way = replace(world.driver.under_way, transaction=Transaction.OPEN)
        world.strikes_now()
        try:
            processes.kill(worker)
        except BaseException:  # nobody else would wake it
            processes.send(daemon, signal.SIGCONT)
            raise
    finally:
        processes.send(worker, signal.SIGCONT)  # of whatever had to be left alive
    return _Killed(daemon, f"Python worker {worker} killed while it wrote to Kafka", under_way)


def _is_given_up(world: World) -> bool:
    """Waits until the coordinator, or the driver, ends the transaction under way. False: nobody did, so none was open, it seems.

    Whoever ends it gives the id another epoch, and the coordinator looks for those that have lasted too long now and then.
    """
    client, name = world.kafka.client, world.transactional_id
    frozen = entry_of(client, name)
    deadline = time.monotonic() + world.plan.output.transaction_timeout.ms / 1000 + _NOTICED_WITHIN_S

    def is_over() -> bool:
        return _identity(entry_of(client, name)) != _identity(frozen)

    world.wait_for(lambda: is_over() or time.monotonic() > deadline, "its transaction is given up", _PATIENCE_S)
    return is_over()


def _identity(entry: Entry | None) -> tuple[int, int] | None:
    return None if entry is None else (entry.producer_id, entry.epoch)


PYTHON_FAULTS = (KillPythonWorker(), PausePythonWorker(), KillPythonDaemon(), PausePythonDaemon())
