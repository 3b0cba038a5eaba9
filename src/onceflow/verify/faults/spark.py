"""Faults of Spark's own processes in a cluster: executors, workers, and the master (F2, F3, F6).

What runs in the driver's process (a local master) has none of them; there a driver is killed as a whole. Standbys have executors
of their own, which have nothing to do: those of the driver that runs are meant.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from onceflow.verify.cluster import processes
from onceflow.verify.report.text import counted

if TYPE_CHECKING:
    from onceflow.verify.cluster.spark import SparkCluster
    from onceflow.verify.running.world import World

SPARK = "spark cluster"
_PATIENCE_S = 300.0
_BEYOND_SILENCE_S = 6.0
_NOTICES_SILENCE_S = 4.0  # a driver looks every 2 s (spark.network.timeoutInterval), and has other work
_WITHOUT_MASTER, _WITHOUT_MASTER_S = 2, 30.0  # batches, and how long they are waited for


@dataclass(frozen=True, slots=True)
class KillExecutor:
    """SIGKILL to an executor, in whatever task it is; a worker starts another one.

    Not if the driver has more than one for each worker, as a master that was started again sometimes gives it
    (``SparkCluster.heal``).
    """

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
        enough = min(len(before), len(_spark(world).workers))
        world.wait_for(lambda: len(_executors(world) - {pid}) >= enough, "another executor", _PATIENCE_S)


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
        master   may count those that were ended as well, and give out nothing for them: ``SparkCluster.heal`` starts it again
    """

    name: str = "kill-spark-master"
    text: str = "SIGKILL to Spark's master, which is started again"
    needs: tuple[str, ...] = (SPARK,)

    def inject(self, world: World, random: Random) -> None:  # noqa: ARG002  the interface
        spark = _spark(world)
        spark.master.kill()
        world.note("the master killed")
        _work_without_master(world)
        if spark.heal():
            world.note("the next one counted executors that do not run, and was started again")


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
    before = world.driver.course.commits
    world.driver.await_batches(_WITHOUT_MASTER, _WITHOUT_MASTER_S)
    came = world.driver.course.commits - before
    if came or world.driver.under_way.step:
        world.note(f"{counted(came, 'batch', 'batches')} committed without a master")
    else:
        world.missed("no batch was run while there was no master")


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
    KillSparkWorker(),
    PauseSparkWorker(),
    KillSparkMaster(),
    PauseSparkMaster(),
)
