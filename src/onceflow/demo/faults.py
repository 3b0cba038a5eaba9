"""The plan: what is killed, and at which step of the commit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from onceflow.demo.assignment import Hold, Moment, Pipeline


class Target(StrEnum):
    """What is killed."""

    DRIVER = "driver"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Fault:
    """SIGKILL to ``target`` while the worker waits at ``hold``. ``half_written``: not before the broker has some records."""

    text: str
    target: Target
    hold: Hold
    half_written: bool = False


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that has happened. ``exit_code`` is the worker's, ``uncommitted`` what of the batch no reader could see."""

    pipeline: Pipeline
    fault: Fault
    pid: int
    exit_code: int | None
    uncommitted: int


BEFORE_THE_WRITE = "before the write"
IN_THE_WRITE = "in the middle of the write"
IN_RECOVERY = "in the recovery from that"
BEFORE_THE_COMMIT = "written, before the commit"
AFTER_THE_COMMIT = "committed, not yet in Spark's commit log"
BROKER_IN_THE_WRITE = "in the middle of the write"

PLANS: dict[Pipeline, tuple[Fault, ...]] = {
    Pipeline.ONCEFLOW: (
        Fault(BEFORE_THE_WRITE, Target.DRIVER, Hold(Moment.WRITE, 2)),
        Fault(IN_THE_WRITE, Target.DRIVER, Hold(Moment.PRODUCE, 4, nth=2), half_written=True),
        Fault(IN_RECOVERY, Target.DRIVER, Hold(Moment.CLAIM_COMMIT, -1)),
        Fault(BEFORE_THE_COMMIT, Target.DRIVER, Hold(Moment.COMMIT, 7)),
        Fault(AFTER_THE_COMMIT, Target.DRIVER, Hold(Moment.COMMITTED, 10)),
        Fault(BROKER_IN_THE_WRITE, Target.BROKER, Hold(Moment.PRODUCE, 13, nth=2), half_written=True),
    ),
    # The same places. This sink has neither claim nor commit: it is hit when it is about to write the batch again, and
    # when everything is written but the batch has not ended.
    Pipeline.BUILT_IN: (
        Fault(BEFORE_THE_WRITE, Target.DRIVER, Hold(Moment.WRITE, 2)),
        Fault(IN_THE_WRITE, Target.DRIVER, Hold(Moment.PRODUCE, 4)),
        Fault(IN_RECOVERY, Target.DRIVER, Hold(Moment.WRITE, 4)),
        Fault(BEFORE_THE_COMMIT, Target.DRIVER, Hold(Moment.WRITTEN, 7)),
        Fault(AFTER_THE_COMMIT, Target.DRIVER, Hold(Moment.COMMITTED, 10)),
        Fault(BROKER_IN_THE_WRITE, Target.BROKER, Hold(Moment.PRODUCE, 13)),
    ),
}
