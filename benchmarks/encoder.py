"""How fast one core turns Arrow rows into Kafka record batches: ``python benchmarks/encoder.py [--rounds 15]``.

Rows are JSON text with keys of 6 to 10 bytes, in Arrow batches of 10,000 rows as Spark hands them over. Phases are
timed apart: partition (murmur2 of the key), encode (order, cut, encode), compress, seal (header, checksum, join). The
total is one pass through all of them, as a task runs it. Seconds are those of the processor, so that other processes
disturb less: all of it runs in one thread. Medians; the range of the total in brackets; MB are 10^6 bytes of values.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from onceflow.transaction.chunk import Chunk, seal
from onceflow.transaction.compression import Codec, compress
from onceflow.transaction.partitioner import Partitions, assign_partitions
from onceflow.transaction.record_batch import BodyEncoder

LIMIT_BYTES = 1_048_588  # the broker's default for max.message.bytes
ROWS_PER_BATCH = 10_000
TOTAL_BYTES = 20_000_000
NOW_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    value_bytes: int
    partitions: int
    codec: Codec
    batches: list[pa.RecordBatch]

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def assign(self) -> Iterator[Partitions]:
        for batch in self.batches:
            yield assign_partitions(batch["key"], None, self.partitions, rows=batch.num_rows, seed=0, first_row=0)

    def encode(self, partitions: Iterable[Partitions], codec: Codec) -> Iterator[Chunk]:
        encoder = BodyEncoder(LIMIT_BYTES, codec, NOW_MS)
        for batch, targets in zip(self.batches, partitions, strict=True):
            yield from encoder.add(batch, targets)
        yield from encoder.flush()


def drop(results: Iterable[object]) -> None:
    """Takes each result and lets it go, as if it had been sent."""
    deque(results, maxlen=0)


def seal_all(chunks: Iterable[Chunk]) -> Iterator[bytes]:
    """The bytes to produce."""
    return (seal(chunk, 4001, 0, 0) for chunk in chunks)


def events(rng: random.Random, value_bytes: int) -> pa.RecordBatch:
    """Orders as JSON; a note of random words fills them to about ``value_bytes``."""
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(500)]
    values, keys = [], []
    for _ in range(ROWS_PER_BATCH):
        user, cents = rng.randrange(100_000), rng.randrange(100_000)
        note = " ".join(rng.choices(words, k=value_bytes // 7 + 2))[: rng.randint(-10, 10) + value_bytes - 55]
        values.append(json.dumps({"user": user, "amount": cents / 100, "country": "DE", "note": note}).encode())
        keys.append(b"user-%d" % user)
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def batches(value_bytes: int) -> list[pa.RecordBatch]:
    """About ``TOTAL_BYTES`` of values, so that nothing but a block stays in the cache."""
    rng = random.Random(value_bytes)
    return [events(rng, value_bytes) for _ in range(TOTAL_BYTES // value_bytes // ROWS_PER_BATCH)]


def seconds(work: Callable[[], Iterable[object]], rounds: int) -> list[float]:
    """The processor time of each round, the first one left out."""
    drop(work())
    times = []
    for _ in range(rounds):
        started = time.process_time()
        drop(work())
        times.append(time.process_time() - started)
    return times


def measure(case: Case, rounds: int) -> str:
    """One line of the table."""
    partitions = list(case.assign())
    raw = list(case.encode(partitions, Codec.NONE))
    packed = list(case.encode(partitions, case.codec))
    phases = [
        seconds(case.assign, rounds),
        seconds(lambda: case.encode(partitions, Codec.NONE), rounds),
        seconds(lambda: (compress(case.codec, bytes(chunk.body)) for chunk in raw), rounds),
        seconds(lambda: seal_all(packed), rounds),
    ]
    total = seconds(lambda: seal_all(case.encode(case.assign(), case.codec)), rounds)
    rates = sorted(case.rows / took / 1e6 for took in total)
    value_bytes = sum(batch["value"].nbytes - 4 * batch.num_rows for batch in case.batches)
    nanoseconds = "".join(f"{statistics.median(took) / case.rows * 1e9:>11.0f}" for took in phases)
    return (
        f"{case.value_bytes:>7}{case.partitions:>6}  {case.codec.name.lower():<6}{statistics.median(rates):>6.2f}"
        f"  ({rates[0]:.2f}-{rates[-1]:.2f})".ljust(43)
        + f"{value_bytes / statistics.median(total) / 1e6:>7.0f}{nanoseconds}"
        + f"{sum(len(chunk.body) for chunk in packed) / sum(len(chunk.body) for chunk in raw):>8.2f}"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print("  value  part  codec  M records/s (range)      MB/s  partition     encode   compress       seal   ratio")
    print("  bytes                                              ns/record  ns/record  ns/record  ns/record")
    for value_bytes in (100, 1000):
        rows = batches(value_bytes)
        for partitions in (4, 32):
            for codec in (Codec.NONE, Codec.LZ4):
                print(measure(Case(value_bytes, partitions, codec, rows), rounds), flush=True)


if __name__ == "__main__":
    main()
