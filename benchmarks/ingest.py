"""How fast an ingest takes files and tables into a topic: ``python benchmarks/ingest.py [--file FILE] [--rounds 3]``.

Without a file, the day of invoices that the project ships, over and over, about 540,000 rows; gzip, zstd, JSON Lines, Parquet
and tables of SQLite and PostgreSQL are made of the same rows; ``--only sqlite,postgresql`` measures some of them.

Beside them, in each round, *plain* is the program that one would write instead: it reads that CSV file with ``csv.DictReader``
and produces each row as JSON (``json.dumps``) with confluent-kafka, idempotent but without transactions, ids or positions: killed
and started again it repeats everything. ``of plain`` divides by it, with a key or without one.

The broker is real and on the same machine. ``a core`` counts the processor time of the ingesting process alone, so that the
broker, a database server and other processes disturb less; ``wall`` is what a user sees. One process.
"""

from __future__ import annotations

import argparse
import csv as plain_csv
import json
import sqlite3
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import KafkaError, Message, Producer
from harness import Series
from pyarrow import csv

sys.path.insert(0, str(Path(__file__).parents[1]))  # the server that the tests start
from tests.postgresql import running_postgresql

from onceflow.broker import EmbeddedBroker
from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.files import FileOptions, FileSource, Format
from onceflow.ingest.json_rows import rows_as_json
from onceflow.ingest.runner import Ingest
from onceflow.ingest.source import Source
from onceflow.ingest.tables import TableOptions, TableSource, connect
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings

DAY = Path(__file__).parents[1] / "src/onceflow/demo/data/online-retail-2010-12-01.csv"
TIMES = 174
PARTITIONS = 4
KEY = "InvoiceNo"


def prepared(directory: Path, given: Path | None, times: int) -> dict[str, tuple[Path, Format]]:
    """The same rows in every format."""
    plain = directory / "rows.csv"
    header, _, rows = DAY.read_bytes().partition(b"\n")
    with (
        pa.input_stream(given, compression="detect")
        if given
        else pa.BufferReader(header + b"\n" + rows * times) as data
    ):
        plain.write_bytes(data.read())
    made = {"csv": (plain, Format.CSV)}
    for compression in ("gzip", "zstd"):
        path = directory / f"rows.csv.{compression}"
        with pa.output_stream(path, compression=compression) as out:
            out.write(plain.read_bytes())
        made[f"csv {compression}"] = (path, Format.CSV)
    table = csv.read_csv(plain, convert_options=csv.ConvertOptions(column_types={KEY: pa.string()}))
    lines = directory / "rows.jsonl"
    with lines.open("wb") as file:
        for batch in table.to_batches():
            file.writelines(line.encode() + b"\n" for line in rows_as_json(batch).to_pylist())
    pq.write_table(table, directory / "rows.parquet")
    return {**made, "jsonl": (lines, Format.JSONL), "parquet": (directory / "rows.parquet", Format.PARQUET)}


MakeSource = Callable[[str | None], Source]
"""The source, with the key."""


def of_file(path: Path, form: Format) -> MakeSource:
    return lambda key: FileSource(FileOptions([str(path)], form, key, finished=True))


def of_table(url: str) -> MakeSource:
    def make(key: str | None) -> Source:
        options = TableOptions("lines", "id", key)
        return TableSource(connect(url, options), options)

    return make


def fill_sqlite(path: Path, rows: pa.Table) -> str:
    """The rows as a table, with an id."""
    names = ", ".join(f'"{name}"' for name in rows.schema.names)
    marks = ", ".join("?" * rows.num_columns)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"create table lines (id integer primary key autoincrement, {names})")
        for batch in rows.to_batches(10_000):
            values = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            connection.executemany(f"insert into lines ({names}) values ({marks})", values)
        connection.commit()
    return f"sqlite:///{path}"


def fill_postgresql(url: str, rows: pa.Table) -> str:
    """The rows as a table, with an id; all columns are text, as in the file."""
    names = ", ".join(f'"{name}"' for name in rows.schema.names)
    columns = ", ".join(f'"{name}" text' for name in rows.schema.names)
    with psycopg.connect(url) as connection:
        connection.execute(f"create table lines (id bigint generated always as identity primary key, {columns})")
        with connection.cursor().copy(f"copy lines ({names}) from stdin") as copy:
            for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                copy.write_row(row)
    return url


def measure(settings: ClusterSettings, name: str, make: MakeSource, key: str | None) -> tuple[int, float, float]:
    """Rows, seconds of the processor (of this process: a database server's are its own) and of the clock."""
    ClusterAdmin(settings).create_topics([name], partitions=PARTITIONS)
    with closing(make(key)) as source, SourceCommitter(name, settings) as committer:
        started, cpu = time.perf_counter(), time.process_time()
        rows = Ingest(name, name, source).run(committer)
        return rows, time.process_time() - cpu, time.perf_counter() - started


def measure_plain(settings: ClusterSettings, name: str, path: Path, key: str | None) -> tuple[int, float, float]:
    """The same of the plain program."""
    ClusterAdmin(settings).create_topics([name], partitions=PARTITIONS)
    started, cpu = time.perf_counter(), time.process_time()
    rows = produce_plainly(settings.bootstrap_servers, name, path, key)
    return rows, time.process_time() - cpu, time.perf_counter() - started


def produce_plainly(servers: str, topic: str, path: Path, key: str | None) -> int:
    """As one would write it: each row, each delivery report looked at, waiting where the buffer is full."""
    failed: list[KafkaError] = []

    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    options = {"enable.idempotence": True, "partitioner": "murmur2_random", "compression.type": "lz4", "log_level": 0}
    producer = Producer({"bootstrap.servers": servers, **options})
    rows = 0
    with path.open(encoding="utf-8", newline="") as file:
        for row in plain_csv.DictReader(file):
            value, named = json.dumps(row), row[key] if key else None
            while True:
                try:
                    producer.produce(topic, value, named, on_delivery=report)
                except BufferError:
                    producer.poll(0.1)
                else:
                    break
            producer.poll(0)
            rows += 1
    assert producer.flush(120) == 0
    assert not failed
    return rows


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=TIMES, help="how often the day is repeated")
    parser.add_argument("--only", default="", help="some of the kinds, with commas between")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onceflow-bench-") as name, running_postgresql() as url:
        directory = Path(name)
        forms = prepared(directory, arguments.file, arguments.times)
        makers = {label: of_file(*form) for label, form in forms.items()}
        text = csv.ConvertOptions(column_types=dict.fromkeys(csv.read_csv(forms["csv"][0]).schema.names, pa.string()))
        rows = csv.read_csv(forms["csv"][0], convert_options=text)
        makers["sqlite"] = of_table(fill_sqlite(directory / "rows.db", rows))
        makers["postgresql"] = of_table(fill_postgresql(url, rows))
        with EmbeddedBroker(directory / "broker", heap_mb=1024) as broker:
            settings = ClusterSettings.of(broker.bootstrap_servers)
            measure(settings, "warm-up", makers["csv"], KEY)  # the first array imports pandas, once a process
            chosen = arguments.only.split(",") if arguments.only else list(makers)
            lines = {
                (label, key): Line(partial(measure, make=makers[label], key=key))
                for label in chosen
                for key in (KEY, None)
            }
            plain = {key: Line(partial(measure_plain, path=forms["csv"][0], key=key)) for key in (KEY, None)}
            for number in range(arguments.rounds):
                for each in (*plain.values(), *lines.values()):
                    each.run(settings, number)
            show(lines, plain)


@dataclass(slots=True)
class Line:
    """One line of the table: what is run in each round, and what was measured."""

    measure: Callable[..., tuple[int, float, float]]
    core: Series = field(default_factory=Series)
    wall: Series = field(default_factory=Series)
    rows: int = 0

    def run(self, settings: ClusterSettings, number: int) -> None:
        self.rows, cpu_s, wall_s = self.measure(settings, f"bench-{uuid.uuid4().hex[:8]}-{number}")
        self.core.add(self.rows / cpu_s)
        self.wall.add(self.rows / wall_s)

    def text(self, name: str, plain: Line) -> str:
        core, wall = (mine.median / its.median for mine, its in ((self.core, plain.core), (self.wall, plain.wall)))
        return f"{name:<22}{self.rows:>10,}  {self.core.text():<34}{core:<10.2f}{self.wall.text():<34}{wall:.2f}"


def show(lines: dict[tuple[str, str | None], Line], plain: dict[str | None, Line]) -> None:
    """The table."""
    print(f"{'':<22}{'rows':>10}  {'rows/s a core (range)':<34}{'of plain':<10}{'rows/s wall (range)':<34}of plain")
    for (label, key), line in {**{("plain csv", key): line for key, line in plain.items()}, **lines}.items():
        print(line.text(f"{label}{', keyed' if key else ''}", plain[key]), flush=True)


if __name__ == "__main__":
    main()
