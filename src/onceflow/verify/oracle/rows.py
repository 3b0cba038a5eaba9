"""Rows of the plan's result as expected records: where each goes, and its digests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from typing import Any

import pyarrow as pa

from onceflow.verify.digest import content_digest, key_digest
from onceflow.verify.java_partition import java_partitions
from onceflow.verify.oracle.expected import RECORDS

FREE = -1
TASK = "_task"
_COLUMNS = ("topic", "partition", "key", "value", "headers", TASK)


def expected_rows(batch: int, rows: pa.Table, partitions: Mapping[str, int], shuffled: Container[str] = ()) -> pa.Table:
    """A table of ``expected.RECORDS`` for the rows of one batch, in their order. ``partitions``: how many a topic has."""
    topic, explicit, key, value, headers, task = (_column(rows, name) for name in _COLUMNS)
    keys = [_bytes(each) for each in key]
    target = _partitions(topic, explicit, keys, partitions)
    counted: dict[tuple[Any, int], int] = defaultdict(int)
    ordinal = []
    for at in zip(topic, target, strict=True):
        ordinal.append(counted[at])
        counted[at] += 1
    content = [content_digest(k, _bytes(v), _headers(h)) for k, v, h in zip(keys, value, headers, strict=True)]
    columns = [
        [batch] * len(topic),
        topic,
        target,
        ordinal,
        [key_digest(each) for each in keys],
        content,
        [None if name in shuffled else origin for name, origin in zip(topic, task, strict=True)],
    ]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, RECORDS, strict=True)], schema=RECORDS)


def _column(rows: pa.Table, name: str) -> list[Any]:
    values: list[Any] = rows[name].to_pylist() if name in rows.column_names else [None] * len(rows)
    return values


def _partitions(
    topic: list[str], explicit: list[int | None], keys: list[bytes | None], partitions: Mapping[str, int]
) -> list[int]:
    """The row's own partition, else that of its key as Java's producer has it, else free."""
    found = [FREE if partition is None else partition for partition in explicit]
    for name in dict.fromkeys(topic):
        rows, wanted = [], []
        for row, key in enumerate(keys):
            if topic[row] == name and key is not None and explicit[row] is None:
                rows.append(row)
                wanted.append(key)
        for row, partition in zip(rows, java_partitions(wanted, partitions.get(name, 1)), strict=True):
            found[row] = partition
    return found


def _headers(given: Iterable[Mapping[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    return [(each["key"], _bytes(each["value"])) for each in given or ()]


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
