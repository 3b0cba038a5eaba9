"""A real run in small batches, recorded, to be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from onceflow.broker import EmbeddedBroker
from onceflow.config import PlanFile, load
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline import Control, Mode, run
from onceflow.transaction.committed import read_committed
from onceflow.transaction.questions import ANCHOR_TOPIC
from onceflow.verify.oracle import Expected
from onceflow.verify.oracle.answer import replayed
from onceflow.verify.oracle.judging import Judgement, judge
from onceflow.verify.recording import Recorded, observe, read_all, read_log
from onceflow.verify.recording.tables import READ, SENT, of_topics
from onceflow.verify.workload import InputWriter, inputs_for


@dataclass
class Run:
    """A plan on ``broker``; ``text`` is everything but its name, its cluster and its trigger."""

    broker: EmbeddedBroker
    directory: Path
    name: str
    text: str
    outputs: tuple[str, ...]
    seed: int = 1
    aborted: float = 0.25
    sent: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        head = f"""
name = "{self.name}"
checkpoint = "state"
trigger = {{available_now = true}}
kafka = {{bootstrap_servers = "{self.broker.bootstrap_servers}"}}
"""
        self.path = self.directory / "pipeline.toml"
        self.path.write_text(head + self.text)
        self.file: PlanFile = load(self.path, {})
        topics = {source.name: source.topics for source in self.file.plan.source}
        self.inputs = tuple(dict.fromkeys(topic for names in topics.values() for topic in names))
        self._made = inputs_for(self.file.plan, topics, self.seed)

    @property
    def checkpoint(self) -> Path:
        return Path(self.file.checkpoint)

    def write(self, records: int) -> None:
        """Writes input with a writer of its own, transactions and aborts included."""
        writer = InputWriter(
            self.broker.bootstrap_servers,
            self._made,
            seed=self.seed + len(self.sent),
            rate=100_000,
            aborted=self.aborted,
            most_records=10,
            limit=records,
            name=f"{self.name}-writer-{len(self.sent)}",
        )
        self.sent.append(writer.start().wait())

    def batch(self, records: int) -> None:
        """Writes input and processes it, in one batch or more."""
        self.write(records)
        self.process()

    def process(self, mode: Mode = Mode.REFUSE) -> None:
        run(self.file, tell=lambda event: None, control=Control(), mode=mode)

    def expected(
        self, committed: Mapping[tuple[str, int], int] | None = None, checkpoint: Path | None = None
    ) -> Expected:
        """The replay, in this process; ``committed`` are the positions of the pipeline's group, asked for where not given.

        ``checkpoint``: another one than the run's own.
        """
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession()
        assert spark is not None
        settings = ClusterSettings.of(self.broker.bootstrap_servers)
        positions = read_committed(self.name, settings).offsets if committed is None else committed
        with TemporaryDirectory(dir=self.directory) as scratch:
            return replayed(
                self.file, spark, settings, checkpoint or self.checkpoint, Path(scratch) / "replay", positions
            )

    def recorded(self) -> Recorded:
        topics = [*self.inputs, *self.outputs, ANCHOR_TOPIC]
        observed = observe(self.broker.bootstrap_servers, topics, self.name, patience_s=20)
        final = read_all(self.broker.bootstrap_servers, observed.ends)
        sent = pa.concat_tables([SENT.empty_table(), *self.sent])
        written = of_topics(observed.ends, self.outputs)
        log = read_log(self.broker.bootstrap_servers, written, observed.group, self.name)
        return Recorded(self.name, self.inputs, self.outputs, final, observed, sent, READ.empty_table(), log=log)

    def judged(self) -> Judgement:
        return judge(self.recorded(), self.expected())


def repeat(broker: EmbeddedBroker, topic: str) -> None:
    """A foreign producer writes the first record of a topic's partition 0 once more."""
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "thief"})
    reader.assign([TopicPartition(topic, 0, 0)])
    message = reader.poll(60)
    reader.close()
    assert message is not None
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, message.value(), message.key(), 0, headers=message.headers() or [])
    assert producer.flush(60) == 0
