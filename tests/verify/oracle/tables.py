"""A run that never ran, as tables that can be spoilt: two input partitions, two output partitions, three batches.

Each input record gives one record of output with the same number; batch b reads four offsets of each input partition, of which
the last holds a marker. The same on the output: a marker ends each batch on each partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import ANCHOR_TOPIC, Committed
from onceflow.verify.oracle.expected import RANGES, RECORDS, Expected
from onceflow.verify.recording import Observed, Recorded
from onceflow.verify.recording.tables import ENDS, PROGRESS, READ, SENT

BATCHES, PER_BATCH = 3, 3
QUERY = "query"
END = BATCHES * (PER_BATCH + 1)


@dataclass(frozen=True)
class Out:
    """A record of output: where it stands and what it is. ``content`` is unique unless a test says otherwise."""

    partition: int
    offset: int
    content: int
    key: int | None = 0
    batch: int = 0
    origin: int | None = 7


def table(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


@dataclass(frozen=True)
class Range:
    """What a batch read of a partition of the input."""

    batch: int
    partition: int
    start: int
    until: int
    reading: int = 0


def ranges(begin: int = 0, partitions: Iterable[int] = range(2), reading: int = 0) -> list[Range]:
    """All batches of a reading that begins at this offset, and goes on from batch to batch."""
    size = PER_BATCH + 1
    return [
        Range(batch, partition, max(batch * size, begin), max((batch + 1) * size, begin), reading)
        for batch in range(BATCHES)
        for partition in partitions
    ]


def outputs() -> list[Out]:
    """The output of a good run, in the order of partitions and offsets."""
    return [
        Out(partition, batch * (PER_BATCH + 1) + n, 1000 * partition + 10 * batch + n, key=n % 2, batch=batch)
        for partition in range(2)
        for batch in range(BATCHES)
        for n in range(PER_BATCH)
    ]


@dataclass(frozen=True)
class Look:
    """What was seen while the run went on: the next batch, and after which batch each of the input's partitions stood."""

    next_batch: int
    ended: tuple[int, ...]
    query: str = QUERY
    at_s: float = 1.0

    def rows(self, number: int) -> list[tuple[Any, ...]]:
        offsets = [((batch + 1) * (PER_BATCH + 1), "in", p) for p, batch in enumerate(self.ended)]
        seen = [(self.next_batch, ANCHOR_TOPIC, 0), *offsets]
        return [(self.at_s, number, self.query, topic, p, offset) for offset, topic, p in seen]


@dataclass
class Tables:
    """What was expected and what was seen; tests change what they like before they ask for a verdict."""

    wanted: list[Out] = field(default_factory=outputs)
    visible: list[Out] = field(default_factory=outputs)
    read: list[Range] = field(default_factory=ranges)
    concurrent: list[Out] | None = None
    sent_status: dict[int, str] = field(default_factory=dict)  # by number of the input's transaction: one a batch
    input_visible: set[int] = field(default_factory=lambda: set(range(BATCHES)))
    next_batch: int | None = BATCHES
    planned_ends: tuple[str, ...] = ()  # digests, of the checkpoint's batches
    committed_ends: tuple[str, ...] = ()  # of those that the progress has
    finished: tuple[int, ...] = (0, 1, 2)
    position: int = END
    stable: int = END
    starts: Mapping[tuple[str, int], int] = field(default_factory=dict)  # of logs that do not begin at 0
    unordered: tuple[str, ...] = ()
    whole: bool = False
    refused: str = ""
    grown: frozenset[str] = frozenset()
    group_stable: int = 50
    looks: Sequence[Look] = ()
    asked_s: float | None = 2.0  # readers got what they got at 0 and 1

    def expected(self) -> Expected:
        count: dict[tuple[int, int], int] = {}
        rows = []
        for each in sorted(self.wanted, key=lambda one: (one.batch, one.partition, one.offset)):
            at = (each.batch, each.partition)
            count[at] = count.get(at, -1) + 1
            rows.append((each.batch, "out", each.partition, count[at], each.key, each.content, each.origin))
        read = [(each.batch, each.reading, "in", each.partition, each.start, each.until) for each in self.read]
        return Expected(
            table(RECORDS, rows), table(RANGES, read), QUERY, self.finished, self.planned_ends,
            unordered=self.unordered, whole=self.whole, refused=self.refused,
        )  # fmt: skip

    def recorded(self) -> Recorded:
        seen = self.visible if self.concurrent is None else self.concurrent
        ends = [("in", p, self.starts.get(("in", p), 0), END, END) for p in range(2)]
        ends += [
            ("out", p, self.starts.get(("out", p), 0), max(self.stable, last), max(END, last))
            for p, last in enumerate(self._lasts())
        ]
        ends += [(ANCHOR_TOPIC, 0, 0, 0, 0)]
        progress = None if self.next_batch is None else Progress(self.next_batch, QUERY, "driver", self.committed_ends)
        positions = {("in", p): self.position for p in range(2)} if progress else {}
        return Recorded(
            "pipeline", ("in",), ("out",), table(READ, [*self._input_reads(), *map(_read, self.visible)]),
            Observed(table(ENDS, ends), Committed(progress, positions), self._group(), self.asked_s),
            sent=table(SENT, self._sent()),
            seen=table(READ, [*self._input_reads(), *map(_read, sorted(seen, key=lambda one: one.offset))]),
            grown=self.grown,
            progress=table(PROGRESS, [row for number, each in enumerate(self.looks) for row in each.rows(number)]),
        )  # fmt: skip

    def _group(self) -> pa.Table:
        return table(ENDS, [("__consumer_offsets", 7, 0, self.group_stable, 50)])

    def _lasts(self) -> list[int]:
        """Where the last visible record of each output partition ends, which may stand behind a good run's end."""
        return [max((each.offset + 1 for each in self.visible if each.partition == p), default=0) for p in range(2)]

    def _inputs(self) -> list[tuple[int, int, int]]:
        """Batch, partition and offset of each input record."""
        size = PER_BATCH + 1
        return [(b, p, b * size + n) for p in range(2) for b in range(BATCHES) for n in range(PER_BATCH)]

    def _sent(self) -> list[tuple[Any, ...]]:
        return [
            ("writer", b, self.sent_status.get(b, "ok"), "in", p, o, f"source {p}:{o}", 0.0, 1.0)
            for b, p, o in sorted(self._inputs())
        ]

    def _input_reads(self) -> list[tuple[Any, ...]]:
        visible = [(p, o) for b, p, o in self._inputs() if b in self.input_visible]
        return [(0.0, p, "in", p, o, f"source {p}:{o}", 0, o) for p, o in visible]


def _read(record: Out) -> tuple[Any, ...]:
    return (1.0, 10, "out", record.partition, record.offset, None, record.key, record.content)


def swapped(records: list[Out], one: int, other: int) -> list[Out]:
    """The records with two of them in each other's place."""
    changed = list(records)
    changed[one] = replace(records[other], partition=records[one].partition, offset=records[one].offset)
    changed[other] = replace(records[one], partition=records[other].partition, offset=records[other].offset)
    return changed
