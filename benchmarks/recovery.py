"""Seconds from SIGKILL of a driver (Python and JVM) to new committed output, and how long the dead one held readers up.

A real pipeline with two sinks, one of them an aggregation, under steady input. It is killed again and again, in turns at a
random moment and in the middle of an open transaction. New output is what the next driver produced, as a read_committed
reader gets it; what holds readers up is the last stable offset of the output topics. At the end every record is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from rich.console import Console
from rich.table import Table

from onceflow.broker import EmbeddedBroker

RATE = 500
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]
PARTITIONS = 2
PATIENCE_S = 900.0
PLAN = """
name = "recovery"
[kafka]
bootstrap_servers = "{servers}"
[[source]]
name = "events"
topics = ["events"]
schema = "id BIGINT, kind INT"
[[transform]]
name = "counts"
sql = "SELECT kind, count(*) AS events FROM events GROUP BY kind"
[[sink]]
from = "events"
topic = "copies"
key = "cast(id AS string)"
value = "cast(id AS string)"
[[sink]]
from = "counts"
topic = "counts"
key = "cast(kind AS string)"
value = "cast(events AS string)"
[output]
mode = "update"
[spark]
master = "local[2]"
"""


class Cluster:
    """The topics, written to and watched."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._outputs = [
            TopicPartition(topic, number) for topic in ("copies", "counts") for number in range(PARTITIONS)
        ]
        new = [NewTopic(topic, PARTITIONS, 1) for topic in ("events", "copies", "counts")]
        for made in self._admin.create_topics(new).values():
            made.result(30)
        self.sent = 0
        self.copies: Counter[bytes] = Counter()
        self.newest_ms = 0  # when the driver began the newest batch that the reader has seen
        self._stop, self._end_input = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._produce, self._read)]
        for thread in self._threads:
            thread.start()

    def ends(self, isolation: IsolationLevel) -> list[int]:
        """The end of each output partition: of all records, or of those that read_committed readers may see."""
        asked = self._admin.list_offsets(dict.fromkeys(self._outputs, _LATEST), isolation_level=isolation)
        return [asked[place].result(30).offset for place in self._outputs]

    def held(self) -> tuple[list[int], bool]:
        """The ends now, and whether an open transaction lies before one of them."""
        stable = self.ends(IsolationLevel.READ_COMMITTED)
        ends = self.ends(IsolationLevel.READ_UNCOMMITTED)
        return ends, any(s < e for s, e in zip(stable, ends, strict=True))

    def end_input(self) -> None:
        self._end_input.set()
        self._threads[0].join()

    def close(self) -> None:
        self._end_input.set()
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 2, "acks": "all", "log_level": 0})
        started = time.monotonic()
        while not self._end_input.is_set():
            due = int((time.monotonic() - started) * RATE)
            for number in range(self.sent, due):
                producer.produce("events", key=str(number % 100), value=json.dumps({"id": number, "kind": number % 20}))
            self.sent = max(self.sent, due)
            producer.poll(0)
            time.sleep(0.005)
        producer.flush(30)

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers, "group.id": "recovery-reader", "isolation.level": "read_committed",
                "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10, "log_level": 0,
            }
        )  # fmt: skip
        consumer.subscribe(["copies"])
        while not self._stop.is_set():
            messages = [m for m in consumer.consume(1000, 0.02) if m.error() is None]
            self.copies.update(m.value() or b"" for m in messages)
            self.newest_ms = max([self.newest_ms, *(m.timestamp()[1] for m in messages)])
        consumer.close()


class Pipeline:
    """``onceflow run`` in a process of its own, and which of its processes is the driver."""

    def __init__(self, directory: Path, *, standby: bool) -> None:
        self._directory = directory
        self._standby = standby
        self._changed = threading.Condition()
        self.ready: int | None = None  # the driver that waits
        self.start()

    def start(self) -> None:
        """What a service manager without a delay would do."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "onceflow.cli", "run", "--json", *(["--standby"] if self._standby else [])],
            cwd=self._directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            event: dict[str, Any] = json.loads(line)
            with self._changed:
                if event["event"] == "standby_ready":
                    self.ready = event["pid"]
                elif event["event"] == "driver_lost":
                    self.ready = None
                elif event["event"] == "error":
                    print(event, file=sys.stderr)
                self._changed.notify_all()

    def wait_until_warm(self) -> None:
        """Where there is a standby, a kill before it is ready measures a plain start."""
        if self._standby:
            with self._changed:
                assert self._changed.wait_for(lambda: self.ready is not None, PATIENCE_S), "no standby became ready"

    def kill(self) -> tuple[psutil.Process, float]:
        """SIGKILL to the driver that runs and to its JVM; the one that takes over, and its CPU seconds so far."""
        if not self._standby:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self.start()
            return psutil.Process(self._process.pid), 0.0
        assert self.ready is not None
        standby = psutil.Process(self.ready)
        used_s = cpu_s(standby)
        children = psutil.Process(self._process.pid).children()
        running = [child.pid for child in children if child.pid != self.ready]
        os.killpg(running[0], signal.SIGKILL)
        return standby, used_s

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()


def cpu_s(driver: psutil.Process) -> float:
    """CPU seconds of Python and its JVM."""
    times = [process.cpu_times() for process in (driver, *driver.children(recursive=True))]
    return sum(each.user + each.system for each in times)


@dataclass(slots=True)
class Measured:
    """Seconds of each kill."""

    recovered: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    open: int = 0


def wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{PATIENCE_S:.0f} s without {what}"
        time.sleep(0.005)


def kill_once(cluster: Cluster, pipeline: Pipeline, in_transaction: bool, measured: Measured) -> str:
    if in_transaction:
        wait_for(lambda: cluster.held()[1], "an open transaction")
    killed_ms, killed = time.time() * 1000, time.monotonic()
    driver, used_s = pipeline.kill()
    ends, is_open = cluster.held()
    held_s = 0.0
    if is_open:
        wait_for(
            lambda: all(s >= e for s, e in zip(cluster.ends(IsolationLevel.READ_COMMITTED), ends, strict=True)),
            "its end",
        )
        held_s = time.monotonic() - killed
    wait_for(lambda: cluster.newest_ms > killed_ms, "new output")
    recovered_s = time.monotonic() - killed
    measured.recovered.append(recovered_s)
    measured.cpu.append(cpu_s(driver) - used_s)
    measured.held.append(held_s)
    measured.open += is_open
    return f"new output after {recovered_s:.2f} s, {measured.cpu[-1]:.1f} of CPU time" + (
        f", readers held up for {held_s:.2f} s" if is_open else ""
    )


def measure(
    directory: Path, broker: EmbeddedBroker, kills: int, minutes: float, chance: random.Random, *, standby: bool
) -> Measured:
    end = time.monotonic() + minutes * 60
    cluster = Cluster(broker.bootstrap_servers)
    (directory / "pipeline.toml").write_text(PLAN.format(servers=broker.bootstrap_servers))
    pipeline = Pipeline(directory, standby=standby)
    measured = Measured()
    try:
        wait_for(lambda: cluster.newest_ms > 0, "a first batch")
        for number in range(1, kills + 1):
            pipeline.wait_until_warm()
            if time.monotonic() > end:
                break
            time.sleep(chance.uniform(0.5, 3))
            told = kill_once(cluster, pipeline, number % 2 == 0, measured)
            print(f"{'standby' if standby else 'plain'}, kill {number} of {kills}: {told}", flush=True)
        cluster.end_input()
        wait_for(lambda: sum(cluster.copies.values()) >= cluster.sent, "the last records")
        assert len(cluster.copies) == cluster.sent == cluster.copies.total(), "records are lost or repeated"
    finally:
        pipeline.end()
        cluster.close()
    print(f"{cluster.sent:,} records, each exactly once", flush=True)
    return measured


@contextlib.contextmanager
def place() -> Iterator[tuple[Path, EmbeddedBroker]]:
    with (
        tempfile.TemporaryDirectory(prefix="onceflow-recovery-", ignore_cleanup_errors=True) as directory,
        EmbeddedBroker(Path(directory) / "broker", heap_mb=512) as broker,
    ):
        yield Path(directory), broker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=math.inf, help="no more kills after that")
    parser.add_argument("--only", choices=("plain", "standby"))
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    table = Table(
        "onceflow run",
        "kills",
        "new output s: p50",
        "p99",
        "max",
        "CPU s: p50",
        "in a transaction",
        "readers held up s: p50",
        "max",
    )
    for name in ("plain", "standby"):
        if arguments.only not in (None, name):
            continue
        with place() as (directory, broker):
            found = measure(
                directory,
                broker,
                arguments.kills,
                arguments.minutes,
                random.Random(arguments.seed),
                standby=name == "standby",
            )
        recovered, held = np.array(found.recovered), np.array([s for s in found.held if s] or [0.0])
        table.add_row(
            "--standby" if name == "standby" else "", str(len(recovered)),
            *(f"{value:.2f}" for value in (*np.percentile(recovered, [50, 99]), recovered.max())),
            f"{np.median(found.cpu):.1f}", str(found.open), f"{np.median(held):.2f}", f"{held.max():.2f}",
        )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
