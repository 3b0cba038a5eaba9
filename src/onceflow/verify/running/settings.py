"""What is to be verified and how, checked before anything is started."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onceflow.config import Plan
from onceflow.verify.engines import Engine
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.faults.isolated import BETWEEN
from onceflow.verify.faults.network import WIRE
from onceflow.verify.running.revision import revision
from onceflow.verify.running.schedule import Schedule
from onceflow.verify.workload import Record
from onceflow.verify.workload.writer import MOST_RECORDS

PARTITIONS = 4
QUIET_TRIGGER_MS = (
    250  # batches small enough that faults hit between many of them, and not so small that all is overhead
)


@dataclass(frozen=True, slots=True)
class Settings:
    """One verification; each engine gets a run of its own. ``plan`` is the user's, as it was read."""

    plan: Plan
    pipeline: str  # how it is called in the report
    engines: tuple[Engine, ...]
    faults: tuple[Fault, ...]
    mix: tuple[str, ...]  # the faults as they were asked for
    seed: int
    schedule: Schedule
    rate: float = 300.0
    messages: int | None = None  # committed before the pipeline starts; None: input comes as long as faults do
    most_records: int = MOST_RECORDS  # of an input transaction
    brokers: int = 1
    spark_workers: int = 0
    standbys: int = 1
    readers: int = 0  # processes that handle the output
    transaction_version: int = 2
    partitions_in: int = PARTITIONS  # of each topic
    partitions_out: int = PARTITIONS
    samples: Mapping[str, Sequence[Record]] | None = None
    output_topics: tuple[str, ...] = ()  # those that only the data name
    trigger_ms: int = QUIET_TRIGGER_MS
    stuck_s: float = 300.0
    held_to_goals: bool = False  # whether a goal of recovery that is missed fails the verification
    directory: Path | None = None  # where the cluster's and the drivers' files are, instead of a temporary directory
    arguments: tuple[str, ...] = ()  # of the command line, without the seed and --keep
    revision: str = field(default_factory=revision)  # when it was asked for

    @property
    def command(self) -> str:
        """What runs the same again."""
        return shlex.join(["onceflow", "verify", *self.arguments, "--seed", str(self.seed)])

    @property
    def wire(self) -> bool:
        """Whether clients reach the brokers through proxies."""
        return any(WIRE in fault.needs for fault in self.faults)

    @property
    def between(self) -> bool:
        """Whether the brokers reach each other through proxies."""
        return any(BETWEEN in fault.needs for fault in self.faults)

    @property
    def topics_out(self) -> tuple[str, ...]:
        named = [sink.topic for sink in self.plan.sink if sink.topic is not None]
        return tuple(dict.fromkeys([*named, *self.output_topics]))

    @property
    def topics_by_source(self) -> dict[str, tuple[str, ...]]:
        """What each source reads; of a pattern, the topics that there are samples for."""
        return {source.name: source.topics or self._matching(source.pattern or "") for source in self.plan.source}

    @property
    def topics_in(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(topic for topics in self.topics_by_source.values() for topic in topics))

    def _matching(self, pattern: str) -> tuple[str, ...]:
        return tuple(topic for topic in self.samples or () if re.fullmatch(pattern, topic))
