"""The whole demo, from the broker's start to the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from onceflow import jars
from onceflow.broker import EmbeddedBroker
from onceflow.demo.assignment import Pipeline
from onceflow.demo.drive import Drive, Run, workers_needed
from onceflow.demo.events import DATA, load
from onceflow.demo.expected import expected_sales
from onceflow.demo.faults import PLANS
from onceflow.demo.look_around import Kept, leave_running
from onceflow.demo.observed import read_committed
from onceflow.demo.pipeline import EVENTS_PER_BATCH
from onceflow.demo.place import Place, place
from onceflow.demo.progress import Progress
from onceflow.demo.proof import Findings, prove
from onceflow.demo.standby import Standby
from onceflow.demo.topics import OUTPUTS, create_topics, uncommitted
from onceflow.java import find_java


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo found. ``kept`` is None unless the broker was left running."""

    events: int
    runs: dict[Pipeline, Run]
    findings: dict[Pipeline, Findings]
    seconds: float
    kept: Kept | None

    @property
    def proved(self) -> bool:
        """Whether exactly-once holds for our sink. Spark's own sink does not promise it, and is not judged."""
        return self.findings[Pipeline.ONCEFLOW].holds


def tell(progress: Progress, directory: Path | None = None, *, keep: bool = False) -> Outcome:
    """Run the demo and clean up, whatever happens.

    ``directory`` must be new or empty; without one a temporary directory is used. It is removed at the end unless ``keep``,
    which also leaves the broker running. Raises DemoError and other OnceflowErrors if the story cannot be told to its end.
    """
    _check_machine(progress)
    workers = sum(map(workers_needed, PLANS.values()))
    with place(directory, keep=keep) as at, Standby(workers, at.scratch, at.logs) as standby:
        progress.step("An embedded Kafka broker starts, and the first Spark driver beside it")
        with EmbeddedBroker(at.broker) as broker:
            story = _Story(progress, broker, standby, at)
            events = story.load()
            runs = {pipeline: story.run(pipeline) for pipeline in Pipeline}
            findings = story.prove()
        return Outcome(events, runs, findings, progress.seconds, leave_running(at) if keep else None)


def _check_machine(progress: Progress) -> None:
    """What is missing is said, or fetched, before anything is started that would each look for it."""
    find_java()
    for jar_set in ("broker", "spark"):
        fetched = jars.install(jar_set)
        if fetched:
            progress.step(f"{fetched} jars were fetched ({jar_set})")


class _Story:
    """The steps between the broker's start and its end."""

    def __init__(self, progress: Progress, broker: EmbeddedBroker, standby: Standby, at: Place) -> None:
        self._progress = progress
        self._broker = broker
        self._standby = standby
        self._place = at
        self._events = 0

    def load(self) -> int:
        """The input."""
        create_topics(self._broker.bootstrap_servers)
        self._events = load(self._broker.bootstrap_servers)
        self._progress.step(f"{self._events:,} real events are in Kafka")
        return self._events

    def run(self, pipeline: Pipeline) -> Run:
        """One pipeline, killed as planned."""
        self._progress.step(_BEGINS[pipeline])
        self._progress.begin(TITLES[pipeline], math.ceil(self._events / EVENTS_PER_BATCH))
        drive = Drive(
            pipeline,
            broker=self._broker,
            standby=self._standby,
            checkpoint=self._place.checkpoint(pipeline),
            progress=self._progress,
        )
        run = drive.through(PLANS[pipeline])
        self._progress.end(len(run.batches))
        return run

    def prove(self) -> dict[Pipeline, Findings]:
        """What came out of each pipeline, against the file."""
        self._progress.step("An independent count from the CSV file, against what a read_committed consumer gets")
        expected = expected_sales(DATA)
        servers = self._broker.bootstrap_servers
        findings = {}
        for pipeline, output in OUTPUTS.items():
            records = read_committed(servers, output.topics)
            hidden = uncommitted(servers, output.topics)
            findings[pipeline] = prove(expected, records[output.sales], records[output.revenue], hidden)
        return findings


TITLES = {Pipeline.ONCEFLOW: "onceflow", Pipeline.BUILT_IN: "Spark's own sink"}
_BEGINS = {
    Pipeline.ONCEFLOW: "The pipeline runs with onceflow's sink",
    Pipeline.BUILT_IN: "The same pipeline runs with Spark's own Kafka sink, and is killed at the same places",
}
