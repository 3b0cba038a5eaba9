"""What the demo and its worker processes say to each other: JSON, one message a line.

The worker's standard input brings one assignment and later, if it waits at a step, ``go``. Its standard output gives
``Told`` messages. Both sides import this file, and nothing heavy.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

GO = "go"


class Pipeline(StrEnum):
    """Which sink writes."""

    ONCEFLOW = "onceflow"
    BUILT_IN = "built-in"


class Moment(StrEnum):
    """Steps at which something can be planned; those that the protocol knows have the names of its states."""

    CLAIM_COMMIT = "CLAIM_COMMIT"
    WRITE = "WRITE"
    PRODUCE = "PRODUCE"
    COMMIT = "COMMIT"
    WRITTEN = "WRITTEN"  # the built-in sink has no commit: everything is written, the batch has not ended
    COMMITTED = "COMMITTED"  # the sink has returned, Spark's commit log does not have the batch yet


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait at the ``nth`` time that ``moment`` comes in ``batch`` (-1: while the sink opens)."""

    moment: Moment
    batch: int
    nth: int = 1


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker does."""

    pipeline: Pipeline
    bootstrap_servers: str
    checkpoint: str
    hold: Hold | None

    def as_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_line(cls, line: str) -> Assignment:
        fields = json.loads(line)
        hold = fields["hold"]
        held = Hold(Moment(hold["moment"]), hold["batch"], hold["nth"]) if hold else None
        return cls(Pipeline(fields["pipeline"]), fields["bootstrap_servers"], fields["checkpoint"], held)


class Told(StrEnum):
    """What a worker tells: Spark is up; a step is next; it waits at a step; all is processed; it cannot go on."""

    READY = "ready"
    STEP = "step"
    HELD = "held"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a worker."""

    told: Told
    step: str = ""
    batch: int = -1
    error: str = ""

    def as_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_line(cls, line: str) -> Message | None:
        """None for what is not a message: Java and Spark write to the same output."""
        try:
            fields = json.loads(line)
            return cls(**{**fields, "told": Told(fields["told"])})
        except (ValueError, TypeError, KeyError):
            return None
