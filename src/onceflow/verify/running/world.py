"""What a fault finds: the cluster, the driver, the plan and its checkpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from onceflow.config import Plan
from onceflow.errors import VerificationError
from onceflow.pipeline.local_checkpoint import numbers, source_offsets
from onceflow.transaction.questions import transactional_id
from onceflow.transaction.source_ends import Offsets, kafka_offsets
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.result import Lane
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.encounters import Said, UnderWay
from onceflow.verify.running.readers import EffectReaders
from onceflow.verify.running.timeline import Open, Timeline

if TYPE_CHECKING:
    from onceflow.verify.cluster.spark import SparkCluster

_LOOK_AGAIN_S = 0.05


class World(Protocol):
    """What a fault may use, and nothing more."""

    @property
    def kafka(self) -> KafkaCluster: ...
    @property
    def spark(self) -> SparkCluster | None: ...  # None: Spark lives in the driver's process
    @property
    def driver(self) -> DriverProcess: ...
    @property
    def readers(self) -> EffectReaders | None: ...  # None: none ran behind the output
    @property
    def plan(self) -> Plan: ...
    @property
    def checkpoint(self) -> Path: ...
    @property
    def transactional_id(self) -> str: ...
    @property
    def topics_in(self) -> tuple[str, ...]: ...
    @property
    def topics_out(self) -> tuple[str, ...]: ...

    def note(self, text: str) -> None:
        """Something for the timeline."""

    def missed(self, text: str) -> None:
        """The same, and says that the fault's moment did not come: it shows nothing."""

    def lacked(self, text: str) -> None:
        """The same, and says that a part of the fault did not come about; a driver that it struck was struck all the same."""

    def met(self, text: str, at: UnderWay | None = None) -> None:
        """The same, and says what the fault has certainly hit, whatever was under way.

        ``at`` is what was under way at that moment; None: what the drivers did that it struck.
        """

    def beside(self, text: str) -> None:
        """The same, and says that the fault has struck only what does no work, and cannot have disturbed any."""

    def strikes_now(self) -> None:
        """Says that the fault begins only now, for it has waited first: what came meanwhile, it has not met."""

    def wait_for(self, condition: Callable[[], bool], what: str, patience_s: float = 60) -> None:
        """Looks again and again. Raises VerificationError when the patience ends."""

    def sleep(self, seconds: float) -> None:
        """Time that a fault lasts; ends at once when the run is given up."""


@dataclass(frozen=True, slots=True)
class PrivateWorld:
    """The world of one run."""

    kafka: KafkaCluster
    spark: SparkCluster | None
    driver: DriverProcess
    plan: Plan
    checkpoint: Path
    topics_in: tuple[str, ...]
    topics_out: tuple[str, ...]
    timeline: Timeline
    given_up: threading.Event
    said: Said = field(default_factory=Said)  # of the fault that is being injected, by itself
    readers: EffectReaders | None = None
    made: Mapping[str, int] = field(default_factory=dict)  # the topics, and with how many partitions

    @property
    def transactional_id(self) -> str:
        """Of the pipeline; its progress group has the same name."""
        return transactional_id(self.plan.name)

    def note(self, text: str) -> None:
        self.timeline.note(text)

    def missed(self, text: str) -> None:
        self.said.missed = text
        self.note(text)

    def lacked(self, text: str) -> None:
        self.said.lacked = text
        self.note(text)

    def met(self, text: str, at: UnderWay | None = None) -> None:
        self.said.met, self.said.at = text, at
        self.note(text)

    def beside(self, text: str) -> None:
        self.said.beside = text
        self.note(text)

    def strikes_now(self) -> None:
        self.said.begin(self.timeline.seconds(), self.driver.under_way, self.driver.course.steps_told)

    def wait_for(self, condition: Callable[[], bool], what: str, patience_s: float = 60) -> None:
        deadline = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > deadline:
                raise VerificationError(f"{what}: not within {patience_s:.0f} s")
            self.sleep(_LOOK_AGAIN_S)

    def sleep(self, seconds: float) -> None:
        if self.given_up.wait(seconds):
            raise VerificationError("the run was given up")

    @contextmanager
    def bar(self, name: str, text: str) -> Iterator[Open]:
        """A fault on the timeline, from its beginning until it is healed."""
        with self.timeline.during(Lane.FAULT, name, text) as opened:
            yield opened


def committed_end(checkpoint: Path) -> dict[tuple[str, int], int] | None:
    """Up to where the newest batch that Spark calls committed, and all before it, have read; None before the first one.

    From the checkpoint, because every engine has one, and only ours commits offsets to Kafka. Of a partition that is read twice
    (two sources, two branches of a plan) it is where the slower reading is, which is what is committed of it::

        faults are over, the input ends at 104; the last batch ends at 100 in the first reading, and at 104 in the second
        who took the pipeline for through would stop it there, and miss what stands behind 100 as lost
    """
    both = {*numbers(checkpoint / "offsets")} & {*numbers(checkpoint / "commits")}
    return _ends(checkpoint / "offsets" / str(max(both))) if both else None


def _ends(entry: Path) -> dict[tuple[str, int], int] | None:
    try:
        return kafka_offsets(planned_offsets(entry))
    except (OSError, ValueError):
        return None  # a fault may just be at it


def planned_offsets(entry: Path) -> Offsets:
    """Of an entry of the offset log, which another engine may end with an end of line. Raises ValueError where it is cut off."""
    return source_offsets(entry.read_text(encoding="utf-8").removesuffix("\n"))
