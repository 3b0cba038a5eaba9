"""What a sink adds to a small micro-batch: the same query with onceflow, Spark's Kafka sink and a sink that drops everything.

The three queries run at the same time on the same topic and are fed in turn; the time is that of Spark's ``triggerExecution``.
A batch of 0 records is made by an aborted transaction: its offsets are read, its records are not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer
from harness import Bench, Series, bench
from pyspark.sql import DataFrame
from rich.console import Console
from rich.table import Table

from onceflow import KafkaSink

SIZES = (0, 10, 1000)
PARTITIONS = 4
SINKS = ("no-op", "onceflow", "Spark's sink")


def drop(frame: DataFrame, batch_id: int) -> None:
    frame.write.format("noop").mode("overwrite").save()


def builtin(run: Bench, target: str) -> Callable[[DataFrame, int], None]:
    def write(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", run.servers)
        writer.option("topic", target).option("kafka.compression.type", "lz4").save()

    return write


def start(run: Bench, source: str, sink: str) -> Any:
    target = run.topic(PARTITIONS)
    writers = {"no-op": drop, "onceflow": KafkaSink(target, name=target, bootstrap_servers=run.servers)}
    writer = writers.get(sink) or builtin(run, target)
    stream = run.source(source).select("key", "value").writeStream.foreachBatch(writer)
    return stream.option("checkpointLocation", run.checkpoint()).start()


def feed(producer: Producer, source: str, records: int) -> None:
    """One committed transaction of ``records``, or one aborted for 0."""
    producer.begin_transaction()
    for number in range(max(records, 10)):
        producer.produce(source, key=str(number), value=b"x" * 100)
    producer.flush(30)  # an aborted record must have been sent to take offsets
    producer.commit_transaction(30) if records else producer.abort_transaction(30)


def batches(query: Any) -> int:
    return len(query.recentProgress)


def last_ms(query: Any) -> float:
    return float(query.lastProgress["durationMs"]["triggerExecution"])


def measure(run: Bench, size: int, rounds: int) -> dict[str, Series]:
    """Each sink has a source topic of its own; they take turns."""
    sources = {sink: run.topic(PARTITIONS) for sink in SINKS}
    producer = Producer({"bootstrap.servers": run.servers, "transactional.id": f"feed-{size}", "log_level": 0})
    producer.init_transactions(30)
    results = {sink: Series() for sink in SINKS}
    queries = {}
    for sink in SINKS:
        feed(producer, sources[sink], 10)
        queries[sink] = start(run, sources[sink], sink)
        queries[sink].processAllAvailable()
    for round_number in range(rounds + 5):
        for sink, query in queries.items():
            feed(producer, sources[sink], size)
            query.processAllAvailable()
            done = [p for p in query.recentProgress[-3:] if "addBatch" in p["durationMs"]]
            if round_number >= 5:
                results[sink].add(float(done[-1]["durationMs"]["triggerExecution"]))
    for query in queries.values():
        query.stop()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    table = Table("records", *(f"{sink} ms" for sink in SINKS), "onceflow adds ms", "Spark's sink adds ms")
    with bench() as run:
        for size in SIZES:
            results = measure(run, size, arguments.rounds)
            base = results["no-op"].median
            added = [f"{results[sink].median - base:.0f}" for sink in SINKS[1:]]
            table.add_row(str(size), *(results[sink].text() for sink in SINKS), *added)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
