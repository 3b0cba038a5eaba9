"""Faults of Spark's own processes in a cluster: executors, their Python workers, workers, and the master (F2, F3, F6).

What runs in the driver's process (a local master) has none of them; there a driver is killed as a whole. Standbys have executors
of their own, which have nothing to do: those of the driver that runs are meant.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from onceflow.verify.cluster import processes
from onceflow.verify.cluster.transaction_log import entry_of
from onceflow.verify.engines.transaction import Transaction
from onceflow.verify.faults.at_work import frozen_at_work
from onceflow.verify.report.text import counted

if TYPE_CHECKING:
    from onceflow.verify.cluster.spark import SparkCluster
    from onceflow.verify.cluster.transaction_log import Entry
    from onceflow.verify.running.world import World

SPARK = "spark cluster"
_PATIENCE_S = 300.0
_BEYOND_SILENCE_S = 6.0
_NOTICES_SILENCE_S = 4.0  # a driver looks every 2 s (spark.network.timeoutInterval), and has other work
_BEYOND_TIMEOUT_S = 3.0
_NOTICED_WITHIN_S = 60.0  # a coordinator looks every 10 s, and has other work
_WITHOUT_MASTER, _WITHOUT_MASTER_S = 2, 30.0  # batches, and how long they are waited for


@dataclass(frozen=True, slots=True)
class KillExecutor:
    """SIGKILL to an executor, in whatever task it is; its worker starts another one."""

    name: str = "kill-executor"
    text: str = "SIGKILL to an executor"
    needs: tuple[str, ...] = (SPARK,)

    def inject(self, world: World, random: Random) -> None:
        pid, before = _executor(world, random)
        world.strikes_now()
        if not processes.kill(pid):
            world.missed(f"executor {pid} had just ended")
            return
        world.note(f"executor {pid} killed")
        world.wait_for(lambda: bool(_executors(world) - before), "another executor", _PATIENCE_S)


@dataclass(frozen=True, slots=True)
class PauseExecutor:
    """SIGSTOP to an executor until the driver has given it up and runs its tasks elsewhere; then SIGCONT.

    ::

        executor   frozen in a task that writes
        driver     hears nothing of it, gives it up and runs the stage again elsewhere
        executor   wakes, if its worker has not ended it by then: a zombie task goes on, under the epoch of an aborted attempt
    """

    name: str = "pause-executor"
    text: str = "SIGSTOP to an executor beyond the driver's patience, then SIGCONT"
    needs: tuple[str, ...] = (SPARK,)

    def inject(self, world: World, random: Random) -> None:
        pid, _ = _executor(world, random)
        world.strikes_now()
        if not processes.send(pid, signal.SIGSTOP):
            world.missed(f"executor {pid} had just ended")
            return
        world.note(f"executor {pid} frozen")
        try:
            world.sleep(_spark(world).silence_s + _NOTICES_SILENCE_S + random.uniform(0, _BEYOND_SILENCE_S))
        finally:
            woke = processes.send(pid, signal.SIGCONT)
        world.note(f"executor {pid} {'goes on' if woke else 'was ended by its worker'}")


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
class KillSparkWorker:
    """SIGKILL to a worker: its executors see their connection break and end; another incarnation registers."""

    name: str = "kill-spark-worker"
    text: str = "SIGKILL to a Spark worker, which is started again"
    needs: tuple[str, ...] = (SPARK,)

    def inject(self, world: World, random: Random) -> None:
        spark = _spark(world)
        worker = random.choice(spark.workers)
        worker.kill()
        world.note(f"{worker.name} killed")
        world.wait_for(lambda: worker.port not in spark.alive_workers(), "the master notices", _PATIENCE_S)
        spark.heal()


@dataclass(frozen=True, slots=True)
class PauseSparkWorker:
    """SIGSTOP to a worker until the master takes it for dead; its executors work on, unwatched. Then it registers again."""

    name: str = "pause-spark-worker"
    text: str = "SIGSTOP to a Spark worker until the master takes it for dead, then SIGCONT"
    needs: tuple[str, ...] = (SPARK,)

    def inject(self, world: World, random: Random) -> None:
        spark = _spark(world)
        worker = random.choice(spark.workers)
        worker.pause()
        world.note(f"{worker.name} frozen")
        world.wait_for(lambda: worker.port not in spark.alive_workers(), "the master notices", _PATIENCE_S)
        spark.heal()


@dataclass(frozen=True, slots=True)
class KillSparkMaster:
    """SIGKILL to the master; another one is started on its port when batches have been committed without it.

    ::

        master   dies: what runs goes on, but what ends now is not replaced, and nobody new is registered
        master   another one, which finds written down whom its predecessor knew, and tells them of itself
        workers  tell it which executors they run; of one that registers before it was told they are unknown, and are ended
    """

    name: str = "kill-spark-master"
    text: str = "SIGKILL to Spark's master, which is started again"
    needs: tuple[str, ...] = (SPARK,)

    def inject(self, world: World, random: Random) -> None:  # noqa: ARG002  the interface
        spark = _spark(world)
        spark.master.kill()
        world.note("the master killed")
        _work_without_master(world)
        spark.heal()


@dataclass(frozen=True, slots=True)
class PauseSparkMaster:
    """SIGSTOP to the master for longer than it waits for a worker's word, and until batches have been committed without it.

    ::

        master    wakes, and has not heard of any worker for too long: it tells the driver that all its executors are lost
        driver    gives up what runs on them, and it runs on: zombies, until their worker hears that it has to end them
        workers   register again; other executors are started
    """

    name: str = "pause-spark-master"
    text: str = "SIGSTOP to Spark's master for longer than it waits for a worker, then SIGCONT"
    needs: tuple[str, ...] = (SPARK,)

    def inject(self, world: World, random: Random) -> None:
        spark = _spark(world)
        spark.master.pause()
        world.note("the master frozen")
        world.sleep(spark.silence_s + random.uniform(0, _BEYOND_SILENCE_S))
        _work_without_master(world)
        spark.heal()


def _work_without_master(world: World) -> None:
    """Waits for batches without a master, the last of which began without it; says so if none came, and none is under way."""
    before = world.driver.commits
    world.driver.await_batches(_WITHOUT_MASTER, _WITHOUT_MASTER_S)
    came = world.driver.commits - before
    if came or world.driver.under_way.step:
        world.note(f"{counted(came, 'batch', 'batches')} committed without a master")
    else:
        world.missed("no batch was run while there was no master")


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


def _spark(world: World) -> SparkCluster:
    assert world.spark is not None
    return world.spark


def _executors(world: World) -> set[int]:
    return set(_spark(world).executors(world.driver.pid))


def _executor(world: World, random: Random) -> tuple[int, set[int]]:
    """One of the driver's executors and all of them, once there are any: a driver that is starting has none yet."""
    world.wait_for(lambda: bool(_executors(world)), "an executor", _PATIENCE_S)
    found = _executors(world)
    return random.choice(sorted(found)), found


SPARK_FAULTS = (
    KillExecutor(),
    PauseExecutor(),
    KillPythonWorker(),
    PausePythonWorker(),
    KillSparkWorker(),
    PauseSparkWorker(),
    KillSparkMaster(),
    PauseSparkMaster(),
)
