"""How long all checks take on a history of 10 million operations: ``python benchmarks/checker.py [--operations 10000000]``.

The history is good, and gives every check something to do. Producers send to input partitions. A copier reads them for its group
in transactions that also write to output partitions, apply an effect and commit the group's position; a tenth of them aborts and
is run again with the same values. Readers read the output; in the end somebody asks for the effects, for the ends of all
partitions and for the group's positions. An operation sends or reads one record, or as many as ``--records`` says.

The time counts from the file (Parquet, as ``onceflow verify`` writes it) to the findings, one thread, by the clock and (what a
busy machine says less wrong) by the processor; above it the share of each step, in their order: the first checks pay for what
all of them share. The last one holds the output against a function of the input, the identity.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from onceflow.verify.checker import CHECKS, Evidence, Function, expand
from onceflow.verify.checker.memory import keep_freed_memory
from onceflow.verify.checker.not_judged import not_judged
from onceflow.verify.history import SCHEMA, Columns, read_history, write_history
from onceflow.verify.history.schema import KINDS, STATUSES, Kind, Status

PARTITIONS = 16
RETRIED = 0.1
STEPS = PRODUCED, REFUSED, REFUSED_OUTPUT, TAKEN, WRITTEN, READ = range(6)
OPERATIONS_PER_BLOCK = len(STEPS) - 2 + 2 * RETRIED
PRODUCER, COPIER, READER = range(3)  # one of each a partition, and two processes more
PROBE, LEDGER = 3 * PARTITIONS, 3 * PARTITIONS + 1
INPUT, OUTPUT, EFFECTS = 0, PARTITIONS, 2 * PARTITIONS  # the first key of each
GROUP, GROUP_NAME = 0, "copy"
BEGINNING = 3 * PARTITIONS  # operations before the first block

Ints = np.ndarray
Rows = dict[str, Ints]
COLUMNS = ("op", "process", "kind", "status", "txn", "key", "offset", "until", "value", "group")


def rows(count: int, **given: Any) -> Rows:
    """So many rows with the given columns, a number for all or an array; empty (-1) otherwise, and of status ok."""
    return {name: np.broadcast_to(given.get(name, 0 if name == "status" else -1), count) for name in COLUMNS}


@dataclass(frozen=True)
class Flow:
    """Blocks of records on their way through the partitions, of which each takes the next block in turn."""

    records: int  # of one block
    lane: Ints  # of each block: the partition
    source: Ints  # where its input begins
    target: Ints  # where the attempt that commits begins
    retried: Ints  # whether another attempt was aborted before

    @classmethod
    def of(cls, blocks: int, records: int) -> Flow:
        block = np.arange(blocks)
        lane, nth = block % PARTITIONS, block // PARTITIONS
        retried = np.random.default_rng(1).random(blocks) < RETRIED
        attempts = np.empty(blocks, np.int64)
        for each in range(PARTITIONS):
            mine = lane == each
            attempts[mine] = np.cumsum(1 + retried[mine])  # of this block and all before it on the same partition
        return cls(records, lane, nth * records, (attempts - 1) * (records + 1), retried)  # each ends with a marker

    def __iter__(self) -> Iterator[Rows]:
        yield from self._beginning()
        blocks, again = np.arange(len(self.lane)), np.flatnonzero(self.retried)
        yield self._records(blocks, PRODUCED, PRODUCER, Kind.SEND, INPUT, self.source)
        yield from self._attempt(again, REFUSED, Status.FAIL, self.target - self.records - 1)
        yield from self._attempt(blocks, TAKEN, Status.OK, self.target)
        yield self._records(blocks, READ, READER, Kind.POLL, OUTPUT, self.target)
        begin = self.target - self.retried * (self.records + 1)
        until = self.target + self.records + 1
        yield self._one(blocks, READ, READER, Kind.WINDOW, key=OUTPUT + self.lane, offset=begin, until=until)
        yield from self._end()

    def _beginning(self) -> Iterator[Rows]:
        """All stand at 0, and somebody has seen that the group does."""
        lane = np.arange(PARTITIONS)
        at_zero = {"count": PARTITIONS, "offset": 0}
        copier, reader = lane * 3 + COPIER, lane * 3 + READER
        yield rows(**at_zero, op=lane, process=copier, kind=Kind.ASSIGN, key=INPUT + lane)
        yield rows(**at_zero, op=PARTITIONS + lane, process=reader, kind=Kind.ASSIGN, key=OUTPUT + lane)
        seen = {"op": 2 * PARTITIONS + lane, "process": PROBE, "kind": Kind.POSITION}
        yield rows(**at_zero, **seen, key=INPUT + lane, group=GROUP)

    def _attempt(self, blocks: Ints, step: int, status: Status, target: Ints) -> Iterator[Rows]:
        """A transaction: polls and the position in one operation, what is sent in the next one."""
        fate = {"status": status, "txn": np.arange(len(self.lane)) * 2 + (status == Status.OK)}
        yield self._records(blocks, step, COPIER, Kind.POLL, INPUT, self.source, group=GROUP, **fate)
        behind = self.source + self.records
        yield self._one(blocks, step, COPIER, Kind.POSITION, key=INPUT + self.lane, offset=behind, group=GROUP, **fate)
        yield self._records(blocks, step + 1, COPIER, Kind.SEND, OUTPUT, target, **fate)
        effect = np.arange(len(self.lane))
        yield self._one(blocks, step + 1, COPIER, Kind.SEND, key=EFFECTS, value=effect, **fate)

    def _end(self) -> Iterator[Rows]:
        blocks, lane = len(self.lane), np.arange(PARTITIONS)
        last = BEGINNING + blocks * len(STEPS)
        ledger = {"op": last, "process": LEDGER, "key": EFFECTS}
        yield rows(1, **ledger, kind=Kind.WINDOW, offset=0, until=blocks)
        yield rows(blocks, **ledger, kind=Kind.EFFECT, value=np.arange(blocks))
        ends = np.zeros(2 * PARTITIONS, np.int64)
        np.maximum.at(ends, INPUT + self.lane, self.source + self.records)
        np.maximum.at(ends, OUTPUT + self.lane, self.target + self.records + 1)
        probe = {"op": last + 1, "process": PROBE}
        for kind in (Kind.LOG_END, Kind.STABLE_END):
            yield rows(len(ends), **probe, kind=kind, key=np.arange(len(ends)), offset=ends)
        taken = ends[INPUT : INPUT + PARTITIONS]
        yield rows(PARTITIONS, **probe, kind=Kind.POSITION, key=INPUT + lane, offset=taken, group=GROUP)

    def _records(
        self, blocks: Ints, step: int, role: int, kind: Kind, keys: int, first: Ints, **given: Ints | int
    ) -> Rows:
        """The records of these blocks, which begin at ``first`` and lie on the partitions from ``keys`` on."""
        each, nth = np.repeat(blocks, self.records), np.tile(np.arange(self.records), len(blocks))
        place = {"key": keys + self.lane[each], "offset": first[each] + nth, "value": each * self.records + nth}
        return self._of(each, step, role, kind, **place, **_at(each, given))

    def _one(self, blocks: Ints, step: int, role: int, kind: Kind, **given: Ints | int) -> Rows:
        """A row for each of these blocks."""
        return self._of(blocks, step, role, kind, **_at(blocks, given))

    def _of(self, each: Ints, step: int, role: int, kind: Kind, **given: Ints | int) -> Rows:
        op, process = BEGINNING + each * len(STEPS) + step, self.lane[each] * 3 + role
        return rows(len(each), op=op, process=process, kind=kind, **given)


def _at(blocks: Ints, given: dict[str, Any]) -> dict[str, Any]:
    """Of what is given for all blocks that of these; what is one number stays it."""
    return {name: column[blocks] if isinstance(column, np.ndarray) else column for name, column in given.items()}


def history(operations: int, records: int) -> pa.Table:
    """A good history of about so many operations."""
    parts = list(Flow.of(int(operations / OPERATIONS_PER_BLOCK), records))
    order = np.argsort(np.concatenate([part["op"] for part in parts]), kind="stable")
    columns = {}
    for name in COLUMNS:
        columns[name] = np.concatenate([part.pop(name) for part in parts])[order]
    return _table(columns)


def _keys(topic: str) -> list[str]:
    return [f"{topic}-{number}" for number in range(PARTITIONS)]


def _table(columns: Rows) -> pa.Table:
    def names(name: str, words: list[str]) -> pa.Array:
        codes = columns[name].astype(np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(words))

    def numbers(name: str) -> pa.Array:
        return pa.array(columns[name], mask=columns[name] < 0)

    return pa.table(
        {
            "op": columns["op"],
            "process": names("process", [f"p{number}" for number in range(LEDGER + 1)]),
            "kind": names("kind", list(KINDS)),
            "status": names("status", list(STATUSES)),
            "key": names("key", [*_keys("in"), *_keys("out"), "accounts"]),
            "group": names("group", [GROUP_NAME]),
            **{name: numbers(name) for name in ("txn", "offset", "until", "value")},
        }
    ).replace_schema_metadata(SCHEMA.metadata)


class Watch:
    """Says how long each step took, by clock and processor."""

    def __init__(self) -> None:
        self._began = self._last = (time.perf_counter(), time.process_time())

    def lap(self, name: str) -> None:
        now = (time.perf_counter(), time.process_time())
        print(f"{name:<24}{_text(self._last, now)}")
        self._last = now

    def total(self) -> str:
        return _text(self._began, self._last)


def _text(before: tuple[float, float], now: tuple[float, float]) -> str:
    return f"{now[0] - before[0]:6.1f} s, {now[1] - before[1]:5.1f} s of a processor"


def main() -> int:
    """Prints the times; exit status 1 when the good history was accused, or a part of it was not judged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=10_000_000)
    parser.add_argument("--records", type=int, default=1)
    options = parser.parse_args()
    keep_freed_memory()  # as the command does
    copied = Function(expand(dict(zip(_keys("in"), _keys("out"), strict=True))), _keys("in"), _keys("out"), GROUP_NAME)
    with TemporaryDirectory() as directory:
        file = Path(directory) / "history.parquet"
        write_history(history(options.operations, options.records), file)
        watch = Watch()
        table = read_history(file)
        watch.lap("read and validated")
    evidence = Evidence(Columns.of_valid(table))
    watch.lap("columns")
    copied.require(evidence)
    watch.lap("what the output must be")
    found = 0
    for name, check in {**CHECKS, "diverged_output": copied.check()}.items():
        found += len(check.find(evidence))
        watch.lap(name)
    open_parts = [*not_judged(evidence), *copied.not_judged(evidence)]
    watch.lap("what is not judged")
    for part in open_parts:
        print(f"not judged: {part}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    operations = len(np.unique(evidence.history.op))
    print(
        f"{operations:,} operations in {len(table):,} rows in {watch.total()}, {found} findings, {peak:.1f} GiB at most"
    )
    return 1 if found or open_parts else 0


if __name__ == "__main__":
    sys.exit(main())
