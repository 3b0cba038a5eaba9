"""Milliseconds from produce to a read_committed reader, at 1,000 records/s through a running pipeline."""

from __future__ import annotations

import argparse
import threading
import time

import numpy as np
from confluent_kafka import Consumer, Producer
from harness import Bench, bench
from overhead import builtin
from rich.console import Console
from rich.table import Table

from onceflow import KafkaSink

RATE = 1000
WARM_UP_S = 10
PARTITIONS = 4


def produce(servers: str, topic: str, seconds: float) -> None:
    """``RATE`` records a second, each carrying the time it was handed to the producer."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "acks": "all", "log_level": 0})
    started = time.perf_counter()
    sent = 0
    while sent < RATE * seconds:
        due = int((time.perf_counter() - started) * RATE)
        for number in range(sent, due):
            producer.produce(topic, key=str(number % 100), value=f"{time.time():.6f}".ljust(100))
        sent = max(sent, due)
        producer.poll(0)
        time.sleep(0.002)
    producer.flush(30)


def read(servers: str, topic: str, stop: threading.Event, found: list[tuple[float, float]]) -> None:
    """Appends (time produced, milliseconds until read) of every committed record until told to stop."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": topic,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    while not stop.is_set():
        for message in consumer.consume(1000, 0.01):
            if message.error() is None:
                produced = float(message.value())
                found.append((produced, (time.time() - produced) * 1000))
    consumer.close()


def measure(run: Bench, ours: bool, seconds: float) -> np.ndarray:
    source, target = run.topic(PARTITIONS), run.topic(PARTITIONS)
    writer = KafkaSink(target, name=target, bootstrap_servers=run.servers) if ours else builtin(run, target)
    stream = run.source(source).select("key", "value").writeStream.foreachBatch(writer)
    query = stream.option("checkpointLocation", run.checkpoint()).start()
    stop = threading.Event()
    found: list[tuple[float, float]] = []
    reader = threading.Thread(target=read, args=(run.servers, target, stop, found))
    reader.start()
    began = time.time()
    produce(run.servers, source, WARM_UP_S + seconds)
    query.processAllAvailable()
    time.sleep(1)
    stop.set()
    reader.join()
    query.stop()
    return np.array([delay for produced, delay in found if produced > began + WARM_UP_S])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    table = Table("round", "sink", "records", "p50 ms", "p99 ms", "max ms")
    with bench() as run:
        for round_number in range(1, arguments.rounds + 1):
            for ours in (True, False):
                delays = measure(run, ours, arguments.seconds)
                p50, p99 = np.percentile(delays, [50, 99])
                name = "onceflow" if ours else "Spark's sink"
                table.add_row(
                    str(round_number), name, f"{len(delays):,}", f"{p50:.0f}", f"{p99:.0f}", f"{delays.max():.0f}"
                )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
