"""A plan made to run: one streaming query whose sinks are written in one transaction per micro-batch."""

from onceflow.pipeline.events import (
    BatchCommitted,
    BrokerReady,
    Event,
    Finished,
    Note,
    Started,
    Stopping,
    TopicsCreated,
)
from onceflow.pipeline.inbox import Control
from onceflow.pipeline.runner import Mode, run

__all__ = [
    "BatchCommitted",
    "BrokerReady",
    "Control",
    "Event",
    "Finished",
    "Mode",
    "Note",
    "Started",
    "Stopping",
    "TopicsCreated",
    "run",
]
