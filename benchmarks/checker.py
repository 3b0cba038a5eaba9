"""How long all checks take on a history of 10 million rows: ``python benchmarks/checker.py [--rows 10000000]``.

The history is good: producers send to input partitions, transactions of a copier read them and write to output partitions
(a tenth of them aborts and is run again with the same values), and readers read those to the end. The time counts from the
table in memory to the verdict, one thread; below it the share of each check, in the order in which they run: the first ones
pay for what all of them share.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import numpy as np
import pyarrow as pa

from onceflow.verify.checker import CHECKS, Evidence
from onceflow.verify.history import SCHEMA, Columns, validate

PARTITIONS = 16
RECORDS = 4  # of one operation
RETRIED = 0.1
SEND, POLL, WINDOW = range(3)
OK, FAIL = 0, 2
ROWS_PER_BLOCK = RECORDS * 4 + 1 + RETRIED * RECORDS * 2


def history(rows: int) -> pa.Table:
    """A good history of about so many rows: a block is four records on their way through one pair of partitions."""
    blocks = int(rows / ROWS_PER_BLOCK)
    block = np.arange(blocks)
    lane, nth = block % PARTITIONS, block // PARTITIONS
    retried = np.random.default_rng(1).random(blocks) < RETRIED
    attempts = np.empty(blocks, np.int64)
    for each in range(PARTITIONS):
        mine = lane == each
        attempts[mine] = np.cumsum(1 + retried[mine])  # of this block and all before it on the same partition
    output = (attempts - 1) * (RECORDS + 1)  # where the attempt that commits begins; each ends with a marker
    every = np.ones(blocks, bool)
    source, target = nth * RECORDS, output
    parts = [
        _part(every, 0, SEND, lane, lane, source, OK, None),
        _part(retried, 1, POLL, lane, lane, source, FAIL, 0),
        _part(retried, 1, SEND, lane, lane + PARTITIONS, target - RECORDS - 1, FAIL, 0),
        _part(every, 2, POLL, lane, lane, source, OK, 1),
        _part(every, 2, SEND, lane, lane + PARTITIONS, target, OK, 1),
        _part(every, 3, POLL, lane, lane + PARTITIONS, target, OK, None),
        _windows(lane, target, retried),
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns["op"], kind="stable")
    return _table({name: column[order] for name, column in columns.items()})


Part = dict[str, np.ndarray]


def _part(
    mask: np.ndarray,
    step: int,
    kind: int,
    lane: np.ndarray,
    key: np.ndarray,
    first: np.ndarray,
    status: int,
    txn: int | None,
) -> Part:
    blocks = np.flatnonzero(mask)
    count = len(blocks) * RECORDS
    each = np.repeat(blocks, RECORDS)
    nth = np.tile(np.arange(RECORDS), len(blocks))
    return {
        "op": each * 4 + step,
        "process": lane[each] * 3 + min(step, 2) + (step == 3) * PARTITIONS * 3,
        "kind": np.full(count, kind),
        "status": np.full(count, status),
        "txn": each * 2 + txn if txn is not None else np.full(count, -1),
        "key": key[each],
        "offset": first[each] + nth,
        "until": np.full(count, -1),
        "value": each * RECORDS + nth,
    }


def _windows(lane: np.ndarray, target: np.ndarray, retried: np.ndarray) -> Part:
    one = _part(np.ones(len(lane), bool), 3, WINDOW, lane, lane + PARTITIONS, target, OK, None)
    first = {name: column[::RECORDS] for name, column in one.items()}
    begin = target - retried * (RECORDS + 1)
    return {**first, "offset": begin, "until": target + RECORDS + 1, "value": np.full(len(lane), -1)}


def _table(columns: Part) -> pa.Table:
    def names(codes: np.ndarray, words: list[str]) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(words))

    def numbers(name: str) -> pa.Array:
        return pa.array(columns[name], mask=columns[name] < 0)

    keys = [f"{topic}-{number}" for topic in ("in", "out") for number in range(PARTITIONS)]
    return pa.table(
        {
            "op": columns["op"],
            "process": names(columns["process"], [f"p{number}" for number in range(PARTITIONS * 6)]),
            "kind": names(columns["kind"], ["send", "poll", "window"]),
            "status": names(columns["status"], ["ok", "info", "fail"]),
            "key": names(columns["key"], keys),
            **{name: numbers(name) for name in ("txn", "offset", "until", "value")},
        }
    ).replace_schema_metadata(SCHEMA.metadata)


def main() -> int:
    """Prints the times; exit status 1 when the good history was accused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    table = history(parser.parse_args().rows)
    started = time.perf_counter()
    validate(table)
    print(f"{'validation':<24}{time.perf_counter() - started:6.1f} s")
    started = time.perf_counter()
    evidence = Evidence(Columns.of(table))
    last = time.perf_counter()
    print(f"{'columns (validated too)':<24}{last - started:6.1f} s")
    found = 0
    for name, check in CHECKS.items():
        found += len(check.find(evidence))
        now = time.perf_counter()
        print(f"{name:<24}{now - last:6.1f} s")
        last = now
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{len(table):,} rows in {last - started:.1f} s, {found} findings, {peak:.1f} GiB at most")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
