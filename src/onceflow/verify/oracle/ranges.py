"""What each batch read, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from onceflow.verify.oracle.expected import RANGES
from onceflow.verify.oracle.offsets import OffsetLog, Offsets

Row = tuple[int, int, str, int, int, int]


def ranges_of(log: OffsetLog) -> pa.Table:
    """The ranges of all batches (``expected.RANGES``).

    A plan names a source once for every branch that reads it, with the same offsets: that is one reading. Only a topic that
    two sources read, each at a pace of its own, is read twice.
    """
    count = len(log.batches[0].ends) if log.batches else 0
    sources = [list(_of_source(log, number)) for number in range(count)]
    rows: list[Row] = []
    readings: dict[str, list[list[Row]]] = {}
    for source in sources:
        for topic in sorted({row[2] for row in source}):
            of_topic = [row for row in source if row[2] == topic]
            known = readings.setdefault(topic, [])
            if of_topic not in known:
                rows += [(row[0], len(known), *row[2:]) for row in of_topic]
                known.append(of_topic)
    return table_of(sorted(rows))


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Rows as a table of ``expected.RANGES``."""
    columns = list(zip(*rows, strict=True)) or [()] * len(RANGES)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, RANGES, strict=True)], schema=RANGES)


def _of_source(log: OffsetLog, source: int) -> Iterator[Row]:
    before = log.initial.get(source, {})
    for batch in log.batches:
        end = batch.ends[source]
        if end is not None:
            yield from _between(batch.number, before, end)
            before = end


def _between(batch: int, before: Offsets, end: Offsets) -> Iterator[Row]:
    for topic, parts in end.items():
        for partition, until in parts.items():
            start = before.get(topic, {}).get(partition, 0)  # a partition that was added is read from its beginning
            yield batch, 0, topic, int(partition), start, max(start, until)
