"""The bounces: a broker, or the pipeline's driver, ends hard or in order and comes back."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from onceflow.errors import VerificationError
from onceflow.verify.faults.brokers import THREE
from onceflow.verify.faults.driver import kill_at
from onceflow.verify.matrix.cells import How

if TYPE_CHECKING:
    from onceflow.verify.running.world import World

_IN_ORDER_S = 120.0


@dataclass(frozen=True, slots=True)
class BounceBroker:
    """A node of the cluster ends and is started again. Returns when all replicas are in sync.

    Hard, it stays away beyond its session, so that others lead and coordinate in its place::

        node         SIGKILL
        controller   its session ends: it is fenced, its leaderships and coordinators move
        node         starts with the log of a process that could not finish anything, and follows

    In order, it hands its leaderships over before it ends.
    """

    how: How
    number: int  # of the node in the cluster
    needs: tuple[str, ...] = (THREE,)

    @property
    def name(self) -> str:
        return f"bounce-broker-{self.how}"

    @property
    def text(self) -> str:
        if self.how is How.HARD:
            return f"SIGKILL to broker {self.number + 1}, which is started again when its session has ended"
        return f"broker {self.number + 1} is stopped in order and started again"

    def inject(self, world: World, random: Random) -> None:  # noqa: ARG002  as all faults are called
        node = world.kafka.nodes[self.number]
        if self.how is How.HARD:
            node.kill()
            world.wait_for(lambda: world.kafka.is_fenced(node), f"the end of broker {node.id}'s session")
        elif not node.stop(_IN_ORDER_S):
            raise VerificationError(f"broker {node.id} did not end in order within {_IN_ORDER_S:.0f} s")
        node.start()
        world.kafka.wait_until_healthy()


@dataclass(frozen=True, slots=True)
class BounceClient:
    """The driver ends and another one takes over.

    Right before a step of its commit, each time before another one: bounces come by progress, which a commit makes, so all would
    come between two batches. Hard, it is killed, and whatever it has open is left to its successor. In order, it is asked to
    stop, and ends after the running batch.
    """

    how: How
    number: int  # counts the bounces of a run from 0; equal chances give them different steps
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"bounce-client-{self.how}"

    @property
    def text(self) -> str:
        if self.how is How.HARD:
            return "SIGKILL to the driver right before a step of its commit"
        return "the driver is stopped in order, in the middle of a batch, and started again"

    def inject(self, world: World, random: Random) -> None:
        step = step_of(world.driver.steps, self.number, random)
        if self.how is How.CLEAN:
            under_way = world.driver.end_in_order(step=step)
            if under_way.step:
                world.met(f"asked to stop with {under_way.text}", under_way)
            elif step:
                world.missed(f"{step} did not come, asked to stop between two batches")
            return
        kill_at(world, step)


def step_of(steps: tuple[str, ...], number: int, random: Random) -> str:
    """The step for the bounce of this number; no step twice before each was there once. Empty: none is known."""
    return random.sample(steps, len(steps))[number % len(steps)] if steps else ""
