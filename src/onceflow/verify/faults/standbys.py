"""Faults of those that wait to take over: killed while they wait, and frozen when they are to take over."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from onceflow.errors import PipelineStuck
from onceflow.verify.faults.driver import await_end

if TYPE_CHECKING:
    from onceflow.verify.running.world import World

STANDBY = "a standby"
_STANDBY_PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class KillStandby:
    """SIGKILL to the warmest that waits to take over, until another one is warm: whoever waits holds nothing of the pipeline.

    It disturbs no work: the driver runs on beside it. So it proves nothing of work that is disturbed, and comes in no row, for
    the one behind it would strike a pipeline that has recovered.
    """

    name: str = "kill-standby"
    text: str = "SIGKILL to a standby; the driver goes on, and another standby is started"
    needs: tuple[str, ...] = (STANDBY,)

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        world.strikes_now()
        was_warm = world.driver.kill_standby()
        if was_warm is None:
            world.missed("no standby waited")
            return
        world.beside("a warm standby killed" if was_warm else "a standby killed that only warmed up")
        world.wait_for(lambda: not world.driver.lacking_standbys, "another standby is warm", _STANDBY_PATIENCE_S)


@dataclass(frozen=True, slots=True)
class PauseStandby:
    """SIGSTOP to the warmest that waits; the driver is killed; another takes over in its place; then SIGCONT.

    It wakes with an order to take over that is old::

        standby   SIGSTOP
        driver    SIGKILL; the standby is told to take over, and does not hear it
        new       takes over: fences, runs the open batch again, and commits; with one standby it starts from cold
        standby   SIGCONT: hears the order, takes over as if no time had passed, and fences the new one in the middle of its batch
        new       finds itself fenced and ends; the next one fences the standby
    """

    name: str = "pause-standby"
    text: str = (
        "SIGSTOP to a standby, and SIGKILL to the driver; the standby wakes when another has taken over in its place"
    )
    needs: tuple[str, ...] = (STANDBY,)

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        world.strikes_now()
        frozen = world.driver.pause_standby()
        if frozen is None:
            world.missed("no warm standby waited")
            return
        try:
            world.driver.kill_for(frozen)
            world.driver.replace(frozen)
            if not world.driver.await_batches(1, _STANDBY_PATIENCE_S):
                raise PipelineStuck(f"the one in its place committed no batch for {_STANDBY_PATIENCE_S:.0f} s")
            if frozen.ended:
                world.lacked("the standby died while it was frozen")
        finally:
            frozen.running.resume()
        await_end(world, frozen, "the standby that woke")


COME_ALONE = frozenset({KillStandby().name})
"""They last until the pipeline has recovered from them, so that none comes in a row with others."""

STANDBY_FAULTS = (KillStandby(), PauseStandby())
