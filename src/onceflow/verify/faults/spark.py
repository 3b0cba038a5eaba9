"""Faults of Spark's own processes in a cluster: executors, their Python workers, and workers (F2, F3, F6).

What runs in the driver's process (a local master) has none of them; there a driver is killed as a whole. Standbys have executors
of their own, which have nothing to do: those of the driver that runs are meant.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from onceflow.verify.cluster import processes

if TYPE_CHECKING:
    from onceflow.verify.cluster.spark import SparkCluster
    from onceflow.verify.running.world import World

SPARK = "spark cluster"
_PATIENCE_S = 300.0
_BEYOND_SILENCE_S = 6.0


@dataclass(frozen=True, slots=True)
class KillExecutor:
    """SIGKILL to an executor, in whatever task it is; its worker starts another one."""

    name: str = "kill-executor"
    text: str = "SIGKILL to an executor"
    needs: tuple[str, ...] = (SPARK,)

    def inject(self, world: World, random: Random) -> None:
        pid, before = _executor(world, random)
        world.strikes_now()
        if not processes.send(pid, signal.SIGKILL):
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
        world.sleep(_spark(world).silence_s + random.uniform(0, _BEYOND_SILENCE_S))
        woke = processes.send(pid, signal.SIGCONT)
        world.note(f"executor {pid} {'goes on' if woke else 'was ended by its worker'}")


@dataclass(frozen=True, slots=True)
class KillPythonWorker:
    """SIGKILL to a Python process of the driver's executors: its task, if it has one, fails, and Spark runs that again."""

    name: str = "kill-python-worker"
    text: str = "SIGKILL to a Python worker"
    needs: tuple[str, ...] = (SPARK,)

    def inject(self, world: World, random: Random) -> None:
        """Where batches are small, no Python worker is needed for them, and there may be none."""
        pids = _spark(world).python_workers(world.driver.pid)
        if not pids:
            world.missed("there was no Python worker")
            return
        if processes.send(random.choice(pids), signal.SIGKILL):
            world.note("a Python worker was killed")
        else:
            world.missed("the Python worker had just ended")


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


SPARK_FAULTS = (KillExecutor(), PauseExecutor(), KillPythonWorker(), KillSparkWorker(), PauseSparkWorker())
