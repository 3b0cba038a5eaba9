"""The writer against plain confluent-kafka: the same events with the same headers, in turn, on one broker.

Both wait for every acknowledgement and look at each delivery report; plain is set as safely (``enable.idempotence``) and polls
as confluent-kafka's documentation shows, after each event. The same in transactions: plain looks nothing up when one is in doubt.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import Series
from rich.console import Console
from rich.table import Table

from onceflow.broker import EmbeddedBroker
from onceflow.writer.writer import Writer

PARTITIONS = 4
VALUE = b"x" * 100
SOURCE = "bench"
TRANSACTION = 10_000  # events


def new_topic(servers: str) -> str:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    return name


def plain(servers: str, topic: str, events: int) -> None:
    failed: list[KafkaError] = []
    producer = plain_producer(servers)
    produce_all(producer, topic, range(events), failed)
    assert producer.flush(120) == 0
    assert not failed


def plain_in_transactions(servers: str, topic: str, events: int) -> None:
    failed: list[KafkaError] = []
    producer = plain_producer(servers, {"transactional.id": "plain"})
    producer.init_transactions(60)
    for first in range(0, events, TRANSACTION):
        producer.begin_transaction()
        produce_all(producer, topic, range(first, min(first + TRANSACTION, events)), failed)
        producer.commit_transaction(60)
    assert not failed


def plain_producer(servers: str, options: Mapping[str, str] | None = None) -> Producer:
    settings = {"enable.idempotence": True, "partitioner": "murmur2_random", "log_level": 0}
    return Producer({"bootstrap.servers": servers, **settings, **(options or {})})


def produce_all(producer: Producer, topic: str, numbers: range, failed: list[KafkaError]) -> None:
    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    for number in numbers:
        headers: list[tuple[str, str | bytes | None]] = [
            ("ce_specversion", b"1.0"),
            ("ce_id", str(number)),
            ("ce_source", SOURCE),
        ]
        while True:
            try:
                producer.produce(topic, VALUE, str(number % 1000), headers=headers, on_delivery=report)
            except BufferError:
                producer.poll(0.1)
            else:
                break
        producer.poll(0)


def ours(servers: str, topic: str, events: int) -> None:
    with Writer(bootstrap_servers=servers, source=SOURCE) as writer:
        for number in range(events):
            writer.send(topic, VALUE, key=str(number % 1000), id=str(number))


def in_transactions(servers: str, topic: str, events: int) -> None:
    with Writer(bootstrap_servers=servers, source=SOURCE, transactional_id="bench") as writer:
        for first in range(0, events, TRANSACTION):
            with writer.transaction():
                for number in range(first, min(first + TRANSACTION, events)):
                    writer.send(topic, VALUE, key=str(number % 1000), id=str(number))


VARIANTS: dict[str, Callable[[str, str, int], None]] = {
    "plain confluent-kafka": plain,
    "onceflow.Writer": ours,
    f"plain confluent-kafka, transactions of {TRANSACTION:,}": plain_in_transactions,
    f"onceflow.Writer, transactions of {TRANSACTION:,}": in_transactions,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    results = {name: Series() for name in VARIANTS}
    with (
        tempfile.TemporaryDirectory(prefix="onceflow-bench-") as directory,
        EmbeddedBroker(Path(directory) / "broker", heap_mb=512) as broker,
    ):
        for round_number in range(arguments.rounds + 1):
            variants = list(VARIANTS.items())
            for name, write in variants if round_number % 2 else reversed(variants):
                topic = new_topic(broker.bootstrap_servers)
                began = time.perf_counter()
                write(broker.bootstrap_servers, topic, arguments.events)
                if round_number:  # the first round warms the broker up
                    results[name].add(arguments.events / (time.perf_counter() - began) / 1000)
    base = results["plain confluent-kafka"].median
    table = Table("variant", "thousand events/s", "of plain")
    for name, series in results.items():
        table.add_row(name, series.text(1), f"{series.median / base:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
