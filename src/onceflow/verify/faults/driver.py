"""Faults of the driver: killed, killed at a step, killed again while it recovers, frozen, stalled, and two at once.

A driver is two processes, Python and its JVM, which are struck together, and each by itself.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from onceflow.errors import VerificationError
from onceflow.verify.cluster import processes
from onceflow.verify.cluster.transaction_log import entry_of
from onceflow.verify.engines.transaction import UNKNOWN, Transaction

if TYPE_CHECKING:
    from onceflow.verify.running.life import Life
    from onceflow.verify.running.world import World

SET_TO_WORK = "a driver that is set to work, or not, as the fault has it"
_BEYOND_TIMEOUT_S = 3.0
_ABORTED_S = 60.0  # the coordinator looks every 10 s; behind a transaction of 10 s
_ZOMBIE_PATIENCE_S = 120.0
_NO_JVM = "the driver had no JVM yet, or had ended by itself"
_ENDED = "the driver had ended by itself"


@dataclass(frozen=True, slots=True)
class KillDriver:
    """SIGKILL to driver and JVM at a random moment."""

    name: str = "kill-driver"
    text: str = "SIGKILL to the driver at any moment"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        if not world.driver.kill():
            world.missed(_ENDED)


@dataclass(frozen=True, slots=True)
class KillDriverAtStep:
    """SIGKILL while the driver waits right before a step of its commit (F1).

    The last of these is the narrow one: committed in Kafka, not yet in Spark's commit log. A driver that does not look at the
    committed progress writes that batch again.
    """

    name: str = "kill-driver-at-step"
    text: str = "SIGKILL to the driver right before a step of its commit"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        kill_at(world, random.choice(world.driver.steps or ("",)))


def kill_at(world: World, step: str) -> None:
    """Kills the driver right before a step, and says what came of it."""
    came = world.driver.kill_at(step)
    if came is None:
        world.missed(f"{_ENDED} before {step or 'it was killed'}")
    elif came:
        world.note(f"killed at {step}")
    else:
        world.lacked(f"{step} did not come, killed elsewhere")


@dataclass(frozen=True, slots=True)
class KillDriverTwice:
    """SIGKILL, and SIGKILL again to the one that takes over, at a step of its recovery."""

    name: str = "kill-driver-twice"
    text: str = "SIGKILL to the driver, and to its successor in its recovery"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        step, kills = random.choice(world.driver.recovery_steps or ("",)), len(world.driver.course.strikes)
        came = world.driver.kill_in_recovery(step)
        killed = len(world.driver.course.strikes) - kills
        if not killed:
            world.missed(f"{_ENDED}, and so had its successor")
        elif killed == 1:
            world.lacked("killed once, for the other one ended by itself")
        elif came:
            world.note(f"killed, and in recovery at {step}")
        else:
            world.lacked(f"killed twice, {step} did not come")


@dataclass(frozen=True, slots=True)
class PauseDriver:
    """SIGSTOP in the middle of a batch, for longer than the transaction timeout; another takes over; then SIGCONT (F3).

    ::

        old   SIGSTOP, its transaction is open
        new   takes over: fences, the open transaction is aborted; runs the batch again
        old   SIGCONT: goes on with its write or its commit as if no time had passed
    """

    name: str = "pause-driver"
    text: str = (
        "SIGSTOP to the driver beyond its transaction's timeout; it wakes as a zombie when another has taken over"
    )
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        old = world.driver.pause()
        if old is None:
            world.missed(_ENDED)
        else:
            _outlive(world, old, old.running.resume)


@dataclass(frozen=True, slots=True)
class StallDriver:
    """SIGSTOP where a transaction is open, until the coordinator has aborted that; SIGCONT, and nobody has taken over (F15).

    ::

        driver       SIGSTOP right before COMMIT: all is written, and nothing ends its transaction
        coordinator  the transaction has lasted too long: aborts it under the next epoch, and the driver's is refused from now on
        driver       SIGCONT: commits as if no time had passed, and has to find out that no other driver did that
    """

    name: str = "stall-driver"
    text: str = "SIGSTOP to the driver until its transaction has timed out; it wakes, and nobody has taken over"
    needs: tuple[str, ...] = (SET_TO_WORK,)

    def inject(self, world: World, random: Random) -> None:
        step = random.choice(steps_before_which(world, Transaction.OPEN) or ("",))
        held = world.driver.hold(step) if step else None
        if held is None:
            world.missed(
                f"the driver did not come to {step or 'a step at which it has told that a transaction is open'}"
            )
            return
        at = world.driver.under_way
        world.strikes_now()
        if world.driver.stall() is None:
            world.missed(_ENDED)
            return
        try:
            world.wait_for(
                lambda: _is_aborted(world), f"the transaction of {world.transactional_id} times out", _ABORTED_S
            )
        finally:
            held.running.resume()
            world.driver.go(held)
        world.met(f"it woke right before {step}, when its transaction had timed out", at)


def steps_before_which(world: World, transaction: Transaction) -> list[str]:
    """The steps of a batch at which it is certain that one is open, or none, as far as the engine says."""
    transactions = world.driver.engine.transactions
    return [step for step in world.driver.steps if transactions.get(step, UNKNOWN).before is transaction]


def _is_aborted(world: World) -> bool:
    entry = entry_of(world.kafka.client, world.transactional_id)
    return entry is None or entry.is_settled


@dataclass(frozen=True, slots=True)
class SecondDriver:
    """A second driver on the same name and checkpoint, while the first one works (F4). One of them must end by itself."""

    name: str = "second-driver"
    text: str = "a second driver with the same name on the same checkpoint"
    needs: tuple[str, ...] = (SET_TO_WORK,)

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        world.strikes_now()
        await_end(world, world.driver.replace(), "the first driver")


@dataclass(frozen=True, slots=True)
class KillJvm:
    """SIGKILL to the driver's JVM alone, as for lack of memory: the larger of the two processes is taken first.

    ::

        JVM      dies, in the middle of a batch
        Python   may still commit what it has sent; then it misses the JVM, says so, and ends, which lets another take over
        waits    for a JVM that never answers: the name stays taken, and nothing new comes
    """

    name: str = "kill-jvm"
    text: str = "SIGKILL to the driver's JVM alone; its Python process has to notice, and to end"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        life = world.driver.kill_jvm()
        if life is None:
            world.missed(_NO_JVM)
        else:
            await_end(world, life, "the driver without a JVM")


@dataclass(frozen=True, slots=True)
class KillDriverPython:
    """SIGKILL to the driver's Python process alone; another takes over while its JVM is there, which has to end by itself.

    ::

        Python   has committed batch 7, and is killed; who started the pipeline starts it again at once
        JVM      writes commits/7 and plans batch 8 in the checkpoint, or writes the state of a batch, beside the new driver
                 that reads both; only then it reads the end of its input, and ends
    """

    name: str = "kill-driver-python"
    text: str = "SIGKILL to the driver's Python process alone; another takes over while its JVM is still there"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        old = world.driver.kill_python()
        if old is None:
            world.missed(_NO_JVM)
        else:
            await_end(world, world.driver.replace(old), "the JVM without its driver")


@dataclass(frozen=True, slots=True)
class PauseJvm:
    """SIGSTOP to the driver's JVM alone, for longer than the transaction timeout; another takes over; then SIGCONT.

    Unlike a driver that is paused as a whole (``pause-driver``), its Python process is awake all the time::

        JVM      SIGSTOP, while it gives the rows of a batch
        Python   keeps its connections, may commit what it has, and waits for the JVM
        new      takes over: fences, runs the batch again
        JVM      SIGCONT: gives the rest of the rows, and Python writes them as if no time had passed
    """

    name: str = "pause-jvm"
    text: str = (
        "SIGSTOP to the driver's JVM alone beyond the transaction's timeout; it wakes when another has taken over"
    )
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        paused = world.driver.pause_jvm()
        if paused is None:
            world.missed(_NO_JVM)
        else:
            old, jvm = paused
            _outlive(world, old, lambda: processes.send(jvm, signal.SIGCONT))


@dataclass(frozen=True, slots=True)
class PauseDriverPython:
    """SIGSTOP to the driver's Python process alone, for longer than the transaction timeout; another takes over; then SIGCONT.

    Unlike a driver that is paused as a whole (``pause-driver``), its JVM is awake all the time::

        Python   SIGSTOP, while it writes a batch or waits for the tasks that do
        JVM      goes on: its executors' tasks write to the end, or find their transaction ended
        new      takes over: fences, runs the batch again
        Python   SIGCONT: hears that all tasks have written, and commits as if no time had passed
    """

    name: str = "pause-driver-python"
    text: str = (
        "SIGSTOP to the driver's Python process alone beyond its transaction's timeout; it wakes behind its successor"
    )
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        old = world.driver.pause_python()
        if old is None:
            world.missed(_NO_JVM)
        else:
            _outlive(world, old, old.running.resume)


def _outlive(world: World, old: Life, wake: Callable[[], object]) -> None:
    """Another takes over from one of which something is frozen, and the transaction of that times out, before it wakes."""
    try:
        world.driver.replace(old)
        _sleep_beyond_timeout(world)
    finally:
        wake()
    await_end(world, old, "the zombie")


def _sleep_beyond_timeout(world: World) -> None:
    world.sleep(world.plan.output.transaction_timeout.ms / 1000 + _BEYOND_TIMEOUT_S)


def await_end(world: World, life: Life, what: str) -> None:
    """Of one that has to find out by itself that it is no driver any more. Raises VerificationError where ours does not."""
    if world.driver.await_end(life, _ZOMBIE_PATIENCE_S):
        return
    text = f"{what} did not end by itself within {_ZOMBIE_PATIENCE_S:.0f} s and was killed"
    world.note(text)
    if world.driver.engine.is_ours:
        raise VerificationError(text)


DRIVER_FAULTS = (
    KillDriver(),
    KillDriverAtStep(),
    KillDriverTwice(),
    KillJvm(),
    KillDriverPython(),
    PauseDriver(),
    PauseJvm(),
    PauseDriverPython(),
    StallDriver(),
    SecondDriver(),
)
