"""A fault alone, as a run injects it."""

from __future__ import annotations

from onceflow.verify.faults.catalog import Fault
from onceflow.verify.result import Encounter
from onceflow.verify.running.outcome import Raw
from onceflow.verify.running.run import _encounter
from onceflow.verify.running.schedule import Turn
from onceflow.verify.running.world import PrivateWorld


def injected(world: PrivateWorld, fault: Fault) -> Encounter:
    return _encounter(world, Raw(world.driver.engine, world), Turn(1.0, fault, "seed"))
