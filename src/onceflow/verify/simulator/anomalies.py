"""What no run may show: every anomaly by its name, so that a test can ask of each whether anything brings it about."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Anomaly(Enum):
    """The value is how it is told, with what is known of it."""

    REPEATED = "partition {}: repeated {}"
    LOST = "partition {}: lost {}"
    OUT_OF_ORDER = "partition {}: out of order {}"
    SOURCE_OFFSET = "committed source offset {} of {}"
    TORN_SOURCES = "committed source offsets {} at which no batch has ended"
    NO_PROGRESS = "no progress is committed"
    OTHER_PROGRESS = "the committed progress is not that of the last batch: {}"
    HANGING = "partition {}: a hanging transaction holds the last stable offset"
    HELD = "partition {}: a transaction held the last stable offset at {} for {} ticks"
    WENT_BACK = "partition {}: the last stable offset went back from {} to {}"
    MISREAD = "partition {}: a reader of committed records got {}, and what is committed is {}"
    UNSTABLE = "the group's offsets stay unstable"
    NO_END = "no end after {} events"
    STUCK = "stuck: the faults are long over"
    TOO_MANY_DRIVERS = "{} drivers did not finish"
    NEWEST_STOPPED = "the newest driver stopped for good"
    SHARED = "two drivers were given {}"
    CONFLICT = "a conflict, although checkpoint and progress agree"
    RESUMED_UNCOMMITTED = "resumed from offsets that the newest batch has not committed"
    RESUMED_DIFFERENT = "resumed from an offset that cannot tell where both readings have ended"
    WENT_ON = "a stopped driver goes on: {}"
    MACHINE_FAILED = "the machine failed in {} on {}: {!r}"
    ABORTED_COMMIT = "an abort of {} after its commit was sent"

    def shown(self, *known: object) -> Shown:
        """It came about."""
        return Shown(self, self.value.format(*known))


@dataclass(frozen=True, slots=True)
class Shown:
    """An anomaly that a run has shown, in words."""

    anomaly: Anomaly
    text: str

    def __str__(self) -> str:
        return self.text
