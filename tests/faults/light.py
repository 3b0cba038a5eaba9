"""A driver without Spark, to be killed: real requests to a real broker, batches made by hand, a checkpoint of one file.

Run as a program it is the place that such drivers come from (``tests/forkserver.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.forkserver import serve

from onceflow.kafka.client import KafkaClient
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.transaction.catalog import TopicCatalog
from onceflow.transaction.compression import Codec
from onceflow.transaction.coordinator import TransactionCoordinator
from onceflow.transaction.failures import AttemptFailed
from onceflow.transaction.messages import Counts, Identity
from onceflow.transaction.producer import BatchProducer, Target
from onceflow.transaction.progress import Batch, digest_of
from onceflow.transaction.protocol import Protocol, Settings
from onceflow.transaction.requests import Requests
from onceflow.transaction.router import Encoding, TopicInfo, TopicRouter

RECORDS_PER_BATCH = 20
KEYS = 7


@dataclass(frozen=True, slots=True)
class Job:
    """What a light driver does. ``interrupt`` is (step, batch id, signal): it sends itself that signal there, once."""

    bootstrap_servers: str
    name: str
    topic: str
    checkpoint: str
    batches: int = 2
    interrupt: tuple[str, int, int] | None = None
    timeout_ms: int = 60_000
    patience_s: float = 30.0
    max_attempts: int = 5
    options: dict[str, Any] = field(default_factory=dict)
    source: str = ""  # whose offsets are committed; the topic itself where none is named


def records_of(batch_id: int) -> list[tuple[str, str]]:
    """(key, value) of a batch; values count on over all batches."""
    first = batch_id * RECORDS_PER_BATCH
    return [(f"k{number % KEYS}", str(number)) for number in range(first, first + RECORDS_PER_BATCH)]


def batch_of(batch_id: int, topic: str) -> Batch:
    ends = [digest_of(source_offsets_json(number, topic)) for number in (batch_id - 1, batch_id)]
    return Batch(batch_id, "light", ends[0] if batch_id else "", ends[1])


def source_offsets_json(batch_id: int, topic: str) -> dict[str, dict[str, int]]:
    return {topic: {"0": (batch_id + 1) * RECORDS_PER_BATCH}}


def write_whole(path: Path, text: str) -> None:
    """Whole or not at all: the process may be killed here, too."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


class LightDriver:
    """One driver's life; ``run`` does the batches that its checkpoint does not know as done."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._commits = Path(job.checkpoint)
        self.steps: list[tuple[str, int]] = []
        self.before_records: Callable[[BatchProducer], None] = lambda producer: None

    @property
    def topic(self) -> str:
        return self.job.topic

    def run(self) -> None:
        coordinator = self.open()
        try:
            for batch_id in range(self.done(), self.job.batches):
                self.run_batch(coordinator, batch_id)
        finally:
            self.close()

    def open(self) -> TransactionCoordinator:
        job = self.job
        options = {"bootstrap_servers": job.bootstrap_servers.split(","), **job.options}
        client = KafkaClient(options, patience_s=job.patience_s)
        try:
            return self._coordinator(client)
        except BaseException:
            client.close()
            raise

    def _coordinator(self, client: KafkaClient) -> TransactionCoordinator:
        job = self.job
        client.open()
        ensure_anchor_topic(client)
        self._catalog = TopicCatalog(client)
        version = client.transaction_version()
        self.requests = Requests(client, job.name, version, job.timeout_ms)
        settings = Settings(f"{os.getpid()}-{id(self)}", version >= 2, max_attempts=job.max_attempts)
        return TransactionCoordinator(self.requests, Protocol(settings), self.step)

    def close(self) -> None:
        self.requests.client.close()

    def run_batch(self, coordinator: TransactionCoordinator, batch_id: int) -> None:
        offsets = {(self.job.source or self.job.topic, 0): (batch_id + 1) * RECORDS_PER_BATCH}
        coordinator.commit(
            batch_of(batch_id, self.job.topic), offsets, lambda identity, attempt: self._write(identity, batch_id)
        )
        self.step("DONE", batch_id)
        self.note_done(batch_id)

    def note_done(self, batch_id: int) -> None:
        write_whole(self._commits, str(batch_id + 1))

    def done(self) -> int:
        return int(self._commits.read_text()) if self._commits.exists() else 0

    def step(self, step: str, batch_id: int) -> None:
        self.steps.append((step, batch_id))
        wanted = self.job.interrupt
        if wanted and (step, batch_id) == tuple(wanted[:2]):
            self.job = Job(**{**asdict(self.job), "interrupt": None})
            os.kill(os.getpid(), wanted[2])

    def _write(self, identity: Identity, batch_id: int) -> Counts:
        producer = BatchProducer(self.requests.client, Target(identity, self.requests.id, self.requests.version))
        self.before_records(producer)
        records = records_of(batch_id)
        half = len(records) // 2
        for part in (records[:half], records[half:]):
            for topic, chunk in self._encoded(part):
                producer.submit(topic, chunk)
            counts = producer.finish()
            self.step("HALF", batch_id)
        return counts

    def _encoded(self, records: list[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
        router = TopicRouter(Encoding(self.job.topic, Codec.LZ4, 1_600_000_000_000, 0), self._catalog.find)
        keys, values = zip(*records, strict=True)
        yield from router.add(pa.record_batch({"key": pa.array(keys), "value": pa.array(values)}))
        yield from router.flush()


class FailsOnce(LightDriver):
    """The first attempt of its first batch is lost when half of it is written."""

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        if step == "HALF" and self.steps.count((step, batch_id)) == 1 and batch_id == 0:
            raise AttemptFailed("lost on purpose")


def _live(fields: dict[str, Any], told: dict[str, Any]) -> None:
    driver = LightDriver(Job(**fields))
    told["steps"] = driver.steps
    driver.run()


def _warm_up() -> None:
    """The first encoding imports pandas, which takes a second: done here, it is done for all."""
    router = TopicRouter(Encoding("any", Codec.LZ4, 0, 0), lambda topic: TopicInfo(1, 1000))
    list(router.add(pa.record_batch({"key": ["k"], "value": ["v"]})))
    list(router.flush())


if __name__ == "__main__":
    _warm_up()
    serve(_live)
