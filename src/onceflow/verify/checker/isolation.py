"""Reads that a transaction should have hidden: of what was aborted, of a part, of one's own, and in a circle."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.cycles import cycles_in
from onceflow.verify.checker.evidence import NOBODY, Evidence, place
from onceflow.verify.checker.findings import findings, joined, one_finding
from onceflow.verify.history.coding import Ints
from onceflow.verify.history.schema import Kind, Status


def aborted_read(evidence: Evidence) -> pa.Table:
    """G1a: an operation that committed read a record whose writer failed for certain."""
    history, writer = evidence.history, evidence.writer[evidence.polls]
    mask = (writer != NOBODY) & (history.status[writer] == Status.FAIL) & (history.status[evidence.polls] == Status.OK)
    return findings(history, "aborted_read", evidence.polls[mask], writer[mask])


def precommitted_read(evidence: Evidence) -> pa.Table:
    """A transaction read a record that it wrote itself, so before it was committed."""
    history, writer = evidence.history, evidence.writer[evidence.polls]
    own = (writer != NOBODY) & history.in_txn[writer] & (history.unit[writer] == history.unit[evidence.polls])
    return findings(history, "precommitted_read", evidence.polls[own], writer[own])


def intermediate_read(evidence: Evidence) -> pa.Table:
    """G1b: an operation read a part of a transaction, and not another part inside the window that it read.

    The window of an operation on a partition reaches from the first to the last record read, or as far as a ``window``
    row says. What lies outside, the operation did not look at, and what nobody ever read is missing, not hidden.
    """
    windows = _Windows(evidence)
    found = [one_finding(evidence.history, "intermediate_read", rows) for rows in windows.partial_views()]
    return joined(evidence.history, found)


def wr_cycle(evidence: Evidence) -> pa.Table:
    """G1c: transactions that each read what the next one in the circle wrote, so none can have been first."""
    history, writer = evidence.history, evidence.writer[evidence.polls]
    done = (writer != NOBODY) & (history.status[evidence.polls] == Status.OK) & (history.status[writer] != Status.FAIL)
    polls, sends = evidence.polls[done], writer[done]
    across = history.in_txn[polls] & history.in_txn[sends] & (history.unit[polls] != history.unit[sends])
    polls, sends = polls[across], sends[across]
    found = [
        one_finding(history, "wr_cycle", [row for edge in circle for row in (int(polls[edge]), int(sends[edge]))])
        for circle in cycles_in(history.unit[sends], history.unit[polls], _completed(evidence))
    ]
    return joined(history, found)


def _completed(evidence: Evidence) -> Ints:
    """For each unit the number of its last row: histories are written in the order in which operations complete."""
    unit = evidence.history.unit
    last = np.zeros(int(unit.max(initial=-1)) + 1, np.int64)
    last[unit] = np.arange(len(unit))
    return last


class _Windows:
    """What each operation read of each partition, and what it should have found there."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        history = evidence.history
        rows = np.concatenate([evidence.polls, history.rows(Kind.WINDOW)])
        rows = rows[history.status[rows] == Status.OK]
        self.rows = rows[np.argsort(history.op[rows] * len(history.keys) + history.key[rows], kind="stable")]
        op, key = history.op[self.rows], history.key[self.rows]
        begins = np.concatenate([[True], (op[1:] != op[:-1]) | (key[1:] != key[:-1])])
        self.starts = np.flatnonzero(begins) if len(self.rows) else np.empty(0, np.int64)
        explicit = history.kind[self.rows] == Kind.WINDOW
        ends = np.where(explicit, history.until[self.rows], history.offset[self.rows] + 1)
        self.low = self._reduce(np.minimum, place(key, history.offset[self.rows]))
        self.high = self._reduce(np.maximum, place(key, ends))
        self.op = op[self.starts]
        self.is_read = ~explicit

    def partial_views(self) -> Iterator[list[int]]:
        """For each accused (operation, transaction): the send not read, the send read, and the poll that read it."""
        expected = self.evidence.records_between(self.low, self.high)
        got = self._distinct_reads()
        suspects = np.unique(self.op[expected != got])
        for op in suspects.tolist():
            yield from self._partial_views_of(op)

    def _reduce(self, combine: np.ufunc, numbers: Ints) -> Ints:
        return combine.reduceat(numbers, self.starts) if len(self.starts) else numbers

    def _distinct_reads(self) -> Ints:
        """For each window how many known records it read."""
        history = self.evidence.history
        places = place(history.key[self.rows], history.offset[self.rows])
        counted = self.is_read & (self.evidence.records_between(places, places + 1) > 0)
        return self._reduce(np.add, counted.astype(np.int64))

    def _partial_views_of(self, op: int) -> Iterator[list[int]]:
        history = self.evidence.history
        first, last = np.searchsorted(self.op, [op, op + 1])
        rows = self.rows[self.starts[first] : self.starts[last] if last < len(self.starts) else None]
        polls = rows[history.kind[rows] == Kind.POLL]
        read_by_txn = self._transactions_read(polls)
        seen = set(place(history.key[polls], history.offset[polls]).tolist())
        for where, send in self._known_sends(int(first), int(last)):
            txn = int(history.unit[send])
            if txn in read_by_txn and where not in seen:
                yield [send, *read_by_txn.pop(txn)]

    def _transactions_read(self, polls: Ints) -> dict[int, list[int]]:
        """For each transaction of which something was read, the row that sent that and the row that read it."""
        history, writers = self.evidence.history, self.evidence.writer[polls]
        pairs = zip(writers.tolist(), polls.tolist(), strict=True)
        return {
            int(history.unit[send]): [send, poll] for send, poll in pairs if send != NOBODY and history.in_txn[send]
        }

    def _known_sends(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The places of the known records in these windows, with the rows that sent them."""
        evidence = self.evidence
        for low, high in zip(self.low[first:last], self.high[first:last], strict=True):
            begin, end = np.searchsorted(evidence.known, [low, high])
            sends = evidence.writer[evidence.known_poll[begin:end]]
            for where, send in zip(evidence.known[begin:end].tolist(), sends.tolist(), strict=True):
                if send != NOBODY:
                    yield where, send
