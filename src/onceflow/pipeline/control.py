"""What a running pipeline waits for: a stop that somebody asked for, Spark's progress, the query's end."""

from __future__ import annotations

import queue
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody wants the pipeline to end after the running batch."""

    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Spark finished a micro-batch and has written its commit log."""

    batch_id: int
    rows_in: int
    duration_ms: int
    malformed: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A query, of Spark's ``run_id``, runs no more."""

    run_id: str


@dataclass(frozen=True, slots=True)
class ClockSetBack:
    """The wall clock was set back by so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Heard:
    """A driver process (``onceflow.pipeline.standby``) said something, at last that it is gone."""

    driver: object
    message: object


@dataclass(frozen=True, slots=True)
class Untold:
    """An event could not be told."""

    error: BaseException


class Control:
    """What a running pipeline waits for. ``stop`` may be called from a signal handler or any thread."""

    def __init__(self) -> None:
        # SimpleQueue.put may interrupt itself, as a signal handler does; an Event or a Queue would deadlock.
        self.inbox: queue.SimpleQueue[StopAsked | Progress | Ended | ClockSetBack | Heard | Untold] = (
            queue.SimpleQueue()
        )

    def stop(self, reason: str) -> None:
        """Asks the pipeline to end after the running batch."""
        self.inbox.put(StopAsked(reason))
