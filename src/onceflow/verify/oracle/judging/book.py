"""A history in the making, in columns: parts are added whole, in the order in which the history shall have them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from onceflow.verify.history import SCHEMA, Kind
from onceflow.verify.history.coding import Ints
from onceflow.verify.history.schema import KINDS
from onceflow.verify.recording.tables import NAME

_NO_PARTITION = -2


class Lanes:
    """Numbers for partitions, and their names as a history's ``key`` has them."""

    def __init__(self) -> None:
        self._number: dict[tuple[str, int], int] = {}

    @property
    def names(self) -> pa.Array:
        named = [name if place == _NO_PARTITION else f"{name}-{place}" for name, place in self._number]
        return pa.array(named, pa.string())

    def number(self, topic: str, partition: int) -> int:
        """The number of one partition."""
        return self._number.setdefault((topic, partition), len(self._number))

    def target(self, name: str) -> int:
        """The number of a key that is no partition: where effects are found."""
        return self.number(name, _NO_PARTITION)

    def place(self, lane: int) -> tuple[str, int]:
        """Topic and partition of a number."""
        return list(self._number)[lane]

    def of(self, table: pa.Table) -> Ints:
        """The numbers of a table's columns ``topic`` and ``partition``."""
        if not len(table):
            return np.empty(0, np.int64)
        topic = table["topic"].unify_dictionaries().combine_chunks()
        topic = topic if isinstance(topic, pa.DictionaryArray) else topic.dictionary_encode()
        names = topic.dictionary.to_pylist()
        partition = np.asarray(table["partition"].combine_chunks()).astype(np.int64)
        both = np.asarray(topic.indices).astype(np.int64) << 32 | (partition + 1)
        each, inverse = np.unique(both, return_inverse=True)
        numbers = [self.number(names[one >> 32], (one & 0xFFFFFFFF) - 1) for one in each.tolist()]
        return np.asarray(numbers, np.int64)[inverse]


class Book:
    """The parts of a history. Numbers of operations and transactions are those of each part, from 0 on."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._parts: list[pa.Table] = []
        self._operations = 0
        self._transactions = 0

    def add(
        self,
        *,
        op: Ints,
        process: pa.Array | str,
        kind: Ints,
        status: pa.Array | str = "ok",
        txn: Ints | None = None,
        lane: Ints | None = None,
        offset: Ints | None = None,
        until: Ints | None = None,
        value: pa.Array | None = None,
        group: pa.Array | None = None,
    ) -> None:
        """Adds rows; numbers below 0 are empty cells."""
        rows = len(op)
        if not rows:
            return
        columns = {
            "op": pa.array(op + self._operations),
            "process": _names(process, rows),
            "kind": pa.DictionaryArray.from_arrays(pa.array(kind, pa.int32()), pa.array(KINDS)),
            "status": _names(status, rows),
            "txn": _numbers(None if txn is None else np.where(txn < 0, txn, txn + self._transactions), rows),
            "key": _numbers(lane, rows),  # names take their place at the end, when all of them are known
            "offset": _numbers(offset, rows),
            "until": _numbers(until, rows),
            "value": pa.nulls(rows, pa.string()) if value is None else value.cast(pa.string()),
            "group": pa.nulls(rows, NAME) if group is None else group.cast(NAME),
        }
        self._parts.append(pa.table(columns))
        self._operations += int(op.max()) + 1
        self._transactions += 0 if txn is None else int(txn.max(initial=-1)) + 1

    def table(self) -> pa.Table:
        """The history."""
        if not self._parts:
            return SCHEMA.empty_table()
        whole = pa.concat_tables(part.unify_dictionaries() for part in self._parts).combine_chunks()
        key = whole["key"].combine_chunks().cast(pa.int32())
        named = pa.DictionaryArray.from_arrays(key, self._lanes.names)
        return whole.set_column(5, "key", named).unify_dictionaries().replace_schema_metadata(SCHEMA.metadata)


def kinds(kind: Kind, rows: int) -> Ints:
    """A column of one kind."""
    return np.full(rows, kind, np.int64)


def choice(codes: Ints, words: Sequence[str]) -> pa.Array:
    """A column of words by their number; below 0 is empty."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32(), mask=codes < 0), pa.array(words, pa.string()))


def flat(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The same values in one piece."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _names(given: pa.Array | str, rows: int) -> pa.Array:
    return choice(np.zeros(rows, np.int64), [given]) if isinstance(given, str) else given.cast(NAME)


def _numbers(given: Ints | None, rows: int) -> pa.Array:
    return pa.nulls(rows, pa.int64()) if given is None else pa.array(given, pa.int64(), mask=given < 0)
