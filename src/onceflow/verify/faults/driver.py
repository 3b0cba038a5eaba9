"""Faults of the driver: killed, killed at a step, killed again while it recovers, frozen, and two at once."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.verify.running.world import World

_BEYOND_TIMEOUT_S = 3.0
_ZOMBIE_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class KillDriver:
    """SIGKILL to driver and JVM at a random moment."""

    name: str = "kill-driver"
    text: str = "SIGKILL to the driver at any moment"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        world.driver.kill()


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
        step = random.choice(world.driver.steps or ("",))
        came = world.driver.kill_at(step)
        if came:
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
        step = random.choice(world.driver.recovery_steps or ("",))
        came = world.driver.kill_in_recovery(step)
        if came:
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
        driver = world.driver
        world.sleep(random.uniform(0, 1))
        driver.pause()
        old = driver.replace()
        timeout_s = world.plan.output.transaction_timeout.ms / 1000
        world.sleep(timeout_s + _BEYOND_TIMEOUT_S)
        old.running.resume()
        if not driver.await_end(old, _ZOMBIE_PATIENCE_S):
            world.note(f"the zombie did not end by itself within {_ZOMBIE_PATIENCE_S:.0f} s and was killed")


@dataclass(frozen=True, slots=True)
class SecondDriver:
    """A second driver on the same name and checkpoint, while the first one works (F4). One of them must end by itself."""

    name: str = "second-driver"
    text: str = "a second driver with the same name on the same checkpoint"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        old = world.driver.replace()
        if not world.driver.await_end(old, _ZOMBIE_PATIENCE_S):
            world.note(f"the first driver did not end by itself within {_ZOMBIE_PATIENCE_S:.0f} s and was killed")


DRIVER_FAULTS = (KillDriver(), KillDriverAtStep(), KillDriverTwice(), PauseDriver(), SecondDriver())
