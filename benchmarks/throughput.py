"""Records per second of one large micro-batch, Kafka to Kafka: onceflow exactly-once beside Spark's own at-least-once sink.

Both read the same topic in the same session and write with lz4; runs alternate. The time is that of the micro-batch alone. The
first rounds do not count: until then, the JVM's compiler takes up to half of the processor time of either sink.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

from harness import Bench, Series, bench, cpu_seconds
from rich.console import Console
from rich.table import Table

from onceflow import KafkaSink

CASES = [(100, 4), (100, 32), (1000, 4), (1000, 32)]
RECORDS = {100: 1_000_000, 1000: 300_000}
WARM_UP_ROUNDS = 4


@dataclass(slots=True)
class Side:
    """What was measured of one sink."""

    rate: Series = field(default_factory=Series)
    cpu: Series = field(default_factory=Series)


def onceflow_query(run: Bench, source: str, target: str, driver_bytes: int | None) -> object:
    options = {} if driver_bytes is None else {"driver_bytes": driver_bytes}
    sink = KafkaSink(target, name=target, bootstrap_servers=run.servers, **options)
    frame = run.source(source).select("key", "value")
    return frame.writeStream.foreachBatch(sink), sink.close


def spark_query(run: Bench, source: str, target: str) -> object:
    frame = run.source(source).select("key", "value")
    writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", run.servers)
    return writer.option("topic", target).option("kafka.compression.type", "lz4"), lambda: None


def measure(run: Bench, query: object, close: object, side: Side, records: int) -> None:
    cpu = cpu_seconds()
    running = query.option("checkpointLocation", run.checkpoint()).trigger(availableNow=True).start()
    running.awaitTermination()
    batches = [p for p in running.recentProgress if p["numInputRows"] > 0]
    seconds = sum(p["durationMs"]["addBatch"] for p in batches) / 1000
    assert sum(p["numInputRows"] for p in batches) == records
    side.rate.add(records / seconds)
    side.cpu.add((cpu_seconds() - cpu) / records * 1e6)
    close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--driver-bytes", type=int)
    parser.add_argument("--cases", default="")
    arguments = parser.parse_args()
    table = Table(
        "value", "partitions", "onceflow records/s", "Spark's sink records/s", "ratio", "CPU s/M: onceflow", "Spark's"
    )
    cases = [tuple(map(int, case.split("x"))) for case in arguments.cases.split(",") if case] or CASES
    with bench() as run:
        for value_bytes, partitions in cases:
            ours, theirs = Side(), Side()
            records = RECORDS[value_bytes]
            source = run.topic(partitions)
            run.fill(source, records, value_bytes)
            for round_number in range(WARM_UP_ROUNDS + arguments.rounds):
                sides = (Side(), Side()) if round_number < WARM_UP_ROUNDS else (ours, theirs)
                measure(
                    run, *onceflow_query(run, source, run.topic(partitions), arguments.driver_bytes), sides[0], records
                )
                measure(run, *spark_query(run, source, run.topic(partitions)), sides[1], records)
            ratio = Series([a / b for a, b in zip(ours.rate.values, theirs.rate.values, strict=True)])
            table.add_row(
                f"{value_bytes} B",
                str(partitions),
                ours.rate.text(),
                theirs.rate.text(),
                ratio.text(2),
                ours.cpu.text(1),
                theirs.cpu.text(1),
            )
            Console(width=160).print(table)


if __name__ == "__main__":
    main()
