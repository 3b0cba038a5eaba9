"""A plan made to run: one streaming query whose sinks are written in one transaction per micro-batch.

What needs Spark is loaded when it is first used: a process that only watches over drivers loads none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceflow.pipeline.control import Control
from onceflow.pipeline.events import (
    BatchCommitted,
    BrokerReady,
    DriverLost,
    Event,
    Finished,
    Note,
    StandbyReady,
    Started,
    Stopping,
    TookOver,
    TopicsCreated,
)
from onceflow.transaction.progress import OnMismatch as Mode

if TYPE_CHECKING:
    from onceflow.pipeline.runner import run

__all__ = [
    "BatchCommitted",
    "BrokerReady",
    "Control",
    "DriverLost",
    "Event",
    "Finished",
    "Mode",
    "Note",
    "StandbyReady",
    "Started",
    "Stopping",
    "TookOver",
    "TopicsCreated",
    "run",
]


def __getattr__(name: str) -> Any:
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from onceflow.pipeline.runner import run

    return run
