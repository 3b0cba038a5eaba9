"""What the benchmarks share: a broker and a session, topics full of records, CPU seconds, medians with range."""

from __future__ import annotations

import os
import statistics
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.broker import EmbeddedBroker
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.session import SOURCE_DEFAULTS, spark_session
from onceflow.transaction.catalog import TopicCatalog
from onceflow.transaction.compression import Codec
from onceflow.transaction.producer import BatchProducer, Target
from onceflow.transaction.requests import Requests
from onceflow.transaction.router import Encoding, TopicRouter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILL_ROWS = 50_000


@dataclass(slots=True)
class Bench:
    """A running broker and Spark session, and where checkpoints go."""

    servers: str
    spark: SparkSession
    directory: Path

    def topic(self, partitions: int) -> str:
        """A new, empty topic."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        return name

    def checkpoint(self) -> str:
        """A new checkpoint directory."""
        return str(self.directory / f"checkpoint-{uuid.uuid4().hex[:8]}")

    def source(self, topic: str, **options: object) -> DataFrame:
        """The topic as a stream, from its beginning."""
        reader = self.spark.readStream.format("kafka").options(**SOURCE_DEFAULTS)
        reader = reader.option("kafka.bootstrap.servers", self.servers).option("subscribe", topic)
        return reader.option("startingOffsets", "earliest").options(**options).load()

    def fill(self, topic: str, records: int, value_bytes: int) -> None:
        """Writes ``records`` with 8-byte keys and text values of ``value_bytes``, which compress about as JSON does."""
        with KafkaClient(ClusterSettings.of(self.servers, {}).for_protocol()) as client:
            identity = Requests(client, "bench", 2, 60_000).idempotent_identity()
            producer = BatchProducer(client, Target(identity, None, 2))
            router = TopicRouter(Encoding(topic, Codec.LZ4, 1_700_000_000_000, 0), TopicCatalog(client).find)
            for first in range(0, records, FILL_ROWS):
                rows = min(FILL_ROWS, records - first)
                for name, chunk in router.add(_rows(first, rows, value_bytes)):
                    producer.submit(name, chunk)
            for name, chunk in router.flush():
                producer.submit(name, chunk)
            producer.finish()


def _rows(first: int, rows: int, value_bytes: int) -> pa.RecordBatch:
    random = np.random.default_rng(first)
    numbers = random.integers(0, 10**9, rows)
    words = random.integers(0, 1000, (rows, max(1, value_bytes // 10)))
    stem = [" ".join(map(str, row)) for row in words[:256].tolist()]
    values = [
        (f'{{"id": {first + i}, "n": {numbers[i]}, "text": "{stem[i % len(stem)]}' + " " * value_bytes)[:value_bytes]
        for i in range(rows)
    ]
    keys = [f"{number % 100_000:08d}" for number in numbers.tolist()]
    return pa.RecordBatch.from_pydict({"key": pa.array(keys), "value": pa.array(values)})


@contextmanager
def bench(transaction_version: int = 2) -> Iterator[Bench]:
    """A broker and a session of two cores, gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="onceflow-bench-") as directory,
        EmbeddedBroker(Path(directory) / "broker", transaction_version=transaction_version, heap_mb=1024) as broker,
    ):
        spark = spark_session("bench", master="local[2]", config={"spark.driver.memory": "2g"})
        try:
            yield Bench(broker.bootstrap_servers, spark, Path(directory))
        finally:
            spark.stop()


def cpu_seconds() -> float:
    """CPU time so far of this process and all its children: Spark's JVM, its Python workers, the broker."""
    total = 0.0
    for process in (psutil.Process(os.getpid()), *psutil.Process(os.getpid()).children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


@dataclass(slots=True)
class Series:
    """Measurements of one thing."""

    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.values.append(value)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def text(self, digits: int = 0) -> str:
        """``median (lowest-highest)``."""
        low, high = min(self.values), max(self.values)
        return f"{self.median:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"
