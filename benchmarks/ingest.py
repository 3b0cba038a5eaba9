"""How fast an ingest takes a CSV file into a topic: ``python benchmarks/ingest.py [--file FILE] [--rounds 3]``.

Without a file, the day of invoices that the project ships, over and over, about 540,000 rows; gzip, zstd, JSON Lines and
Parquet are made of the same rows. The broker is real and on the same machine. ``a core`` counts the processor time of the
ingesting process alone, so that the broker and other processes disturb less; ``wall`` is what a user sees. One process.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from harness import Series
from pyarrow import csv

from onceflow.broker import EmbeddedBroker
from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.files import FileOptions, FileSource, Format
from onceflow.ingest.json_rows import rows_as_json
from onceflow.ingest.runner import Ingest
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings

DAY = Path(__file__).parents[1] / "src/onceflow/demo/data/online-retail-2010-12-01.csv"
TIMES = 174
PARTITIONS = 4
KEY = "InvoiceNo"


def prepared(directory: Path, given: Path | None) -> dict[str, tuple[Path, Format]]:
    """The same rows in every format."""
    plain = directory / "rows.csv"
    header, _, rows = DAY.read_bytes().partition(b"\n")
    with (
        pa.input_stream(given, compression="detect")
        if given
        else pa.BufferReader(header + b"\n" + rows * TIMES) as data
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


def measure(
    settings: ClusterSettings, name: str, path: Path, form: Format, key: str | None
) -> tuple[int, float, float]:
    """Rows, seconds of the processor and of the clock."""
    ClusterAdmin(settings).create_topics([name], partitions=PARTITIONS)
    source = FileSource(FileOptions([str(path)], form, key, finished=True))
    with SourceCommitter(name, settings) as committer:
        started, cpu = time.perf_counter(), time.process_time()
        rows = Ingest(name, name, source).run(committer)
        return rows, time.process_time() - cpu, time.perf_counter() - started


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onceflow-bench-") as directory:
        forms = prepared(Path(directory), arguments.file)
        with EmbeddedBroker(Path(directory) / "broker", heap_mb=1024) as broker:
            settings = ClusterSettings.of(broker.bootstrap_servers)
            measure(settings, "warm-up", *forms["csv"], KEY)  # the first array imports pandas, once a process
            print(f"{'':<22}{'rows':>10}  {'rows/s a core (range)':<34}rows/s wall (range)")
            for label, (path, form) in forms.items():
                for key in (KEY, None):
                    report(settings, f"{label}{', keyed' if key else ''}", path, form, key, arguments.rounds)


def report(settings: ClusterSettings, label: str, path: Path, form: Format, key: str | None, rounds: int) -> None:
    """One line of the table."""
    core, wall, rows = Series(), Series(), 0
    for number in range(rounds):
        name = f"{label.replace(', ', '-').replace(' ', '-')}-{number}"
        rows, cpu_s, wall_s = measure(settings, name, path, form, key)
        core.add(rows / cpu_s)
        wall.add(rows / wall_s)
    print(f"{label:<22}{rows:>10,}  {core.text():<34}{wall.text()}", flush=True)


if __name__ == "__main__":
    main()
