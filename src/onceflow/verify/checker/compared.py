"""The output that was seen beside the one that the function makes of the input, record by record."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.checker.doubtful import doubts_of, record_codes
from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.replays import Replay, output_of
from onceflow.verify.history.coding import Ints, numbered, occurrence
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import Kind


@dataclass(frozen=True, slots=True)
class Log:
    """The committed records of some keys, in the order of key and offset; a row of the history for each."""

    rows: Ints
    key: Ints
    offset: Ints

    @classmethod
    def of(cls, evidence: Evidence, names: Iterable[str], *, acknowledged: bool) -> Log:
        history = evidence.history
        wanted = _named(evidence, names)
        rows = np.concatenate([evidence.visible, evidence.committed if acknowledged else evidence.visible[:0]])
        rows = rows[wanted[history.key[rows]]]
        offset = offsets(evidence, rows)
        rows, offset = rows[offset >= 0], offset[offset >= 0]
        _, first = np.unique(place(history.key[rows], offset), return_index=True)
        return cls(rows[first], history.key[rows[first]], offset[first])

    def records(self, evidence: Evidence) -> Ints:
        """A number for key and value of each."""
        return record_codes(evidence, self.key, evidence.history.value[self.rows])

    def table(self, evidence: Evidence) -> pa.Table:
        history = evidence.history
        keys = pa.DictionaryArray.from_arrays(pa.array(self.key), history.keys)
        return pa.table(
            {"key": keys, "offset": self.offset, "value": history.values.take(pa.array(history.value[self.rows]))}
        )


def offsets(evidence: Evidence, rows: Ints) -> Ints:
    """Where the record of each row stands, -1 where that is not known."""
    history = evidence.history
    return np.where(history.kind[rows] == Kind.SEND, evidence.sent_offset[rows], history.offset[rows])


@dataclass(frozen=True, slots=True)
class Expected:
    """What the function says: for each output record the input record behind it, and key and value, -1 if never seen."""

    source: Ints
    key: Ints
    value: Ints
    names: pa.ChunkedArray  # of the keys, also of those that the history does not have

    @classmethod
    def of(cls, evidence: Evidence, output: pa.Table) -> Expected:
        history = evidence.history
        source = np.asarray(output["input"], np.int64)
        key, value = numbered(output["key"], history.keys), numbered(output["value"], history.values)
        return cls(source, key, value, output["key"])

    def records(self, evidence: Evidence) -> Ints:
        """A number for key and value of each, -1 where nobody can have seen it."""
        possible = (self.key >= 0) & (self.value >= 0)
        return np.where(possible, record_codes(evidence, self.key, self.value), -1)


class Compared:
    """Input, expected output and output seen; and which of the two last belong together.

    Output that may be of doubtful input is no answer to what is expected, though it is there: which of the two was seen, nobody
    knows.
    """

    def __init__(self, evidence: Evidence, replay: Replay, inputs: Collection[str], outputs: Collection[str]) -> None:
        self.given = Log.of(evidence, inputs, acknowledged=True)
        self.expected = Expected.of(evidence, output_of(replay, self.given.table(evidence)))
        self.seen = Log.of(evidence, outputs, acknowledged=False)
        self.doubts = doubts = doubts_of(evidence, replay, inputs)
        match, unexpected = _matched(evidence, self.seen, self.expected)
        records = self.seen.records(evidence)
        excused = doubts.excused(self.seen.key, records, unexpected)
        self.is_there = match >= 0
        self.match = np.where(doubts.may_give(self.expected.records(evidence)), -1, match)
        self.extra: Mask = unexpected & ~excused
        self.excused: Mask = excused | (~unexpected & doubts.may_give(records))

    @cached_property
    def source(self) -> Ints:
        """For each expected record the row of the input record behind it."""
        return self.given.rows[self.expected.source]

    @cached_property
    def found(self) -> Ints:
        """For each expected record the row that saw it, -1 for none."""
        return np.append(self.seen.rows, -1)[self.match]

    @cached_property
    def offset(self) -> Ints:
        """For each expected record where it was seen, -1 for nowhere."""
        return np.append(self.seen.offset, -1)[self.match]

    @cached_property
    def input_key(self) -> Ints:
        """For each expected record the key of the input record behind it."""
        return self.given.key[self.expected.source]

    @cached_property
    def input_offset(self) -> Ints:
        """For each expected record the offset of the input record behind it."""
        return self.given.offset[self.expected.source]

    @cached_property
    def lane(self) -> Ints:
        """A number for each pair of input and output key; inside of it the order must be kept."""
        key = self.expected.key
        return self.input_key * (int(key.max(initial=0)) + 2) + key + 1

    def where(self, mask: Mask) -> list[str]:
        """The names of the keys on which these are expected."""
        names: list[str] = pc.unique(self.expected.names.take(pa.array(np.flatnonzero(mask)))).to_pylist()
        return names


def _matched(evidence: Evidence, seen: Log, expected: Expected) -> tuple[Ints, Mask]:
    """For each expected record the number of the seen one, -1 for none; and which seen ones nothing leads to.

    A value that is expected several times on a partition is matched in order, first with first.
    """
    wanted, found = expected.records(evidence), seen.records(evidence)
    possible = np.flatnonzero(wanted >= 0)
    wanted = wanted[possible]
    nth_wanted, nth_found = occurrence(wanted), occurrence(found)
    times = int(max(nth_wanted.max(initial=0), nth_found.max(initial=0))) + 1
    match = np.full(len(expected.source), -1, np.int64)
    match[possible] = numbered(pa.array(wanted * times + nth_wanted), pa.array(found * times + nth_found))
    extra = np.ones(len(seen.rows), bool)
    extra[match[match >= 0]] = False
    return match, extra


def _named(evidence: Evidence, names: Iterable[str]) -> Mask:
    """For each key whether it is one of these; and for no key at all."""
    named = np.zeros(len(evidence.history.keys) + 1, bool)
    named[evidence.history.codes(names)] = True
    return named
