"""Reads that a transaction should have hidden: of what was aborted, of a part, of one's own, and in a circle."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.cycles import cycles_in
from onceflow.verify.checker.evidence import NOBODY, Evidence, place
from onceflow.verify.checker.findings import findings, joined, one_finding
from onceflow.verify.checker.ranges import Ranges
from onceflow.verify.checker.read_edges import ReadEdges
from onceflow.verify.history.coding import Ints
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import Kind, Status


def aborted_read(evidence: Evidence) -> pa.Table:
    """G1a: an operation that committed read a record whose writer failed for certain, or found its effect."""
    history, rows = evidence.history, np.concatenate([evidence.polls, evidence.effects])
    writer = evidence.writer[rows]
    mask = (writer != NOBODY) & (history.status[writer] == Status.FAIL) & evidence.happened[rows]
    return findings(history, "aborted_read", rows[mask], writer[mask])


def precommitted_read(evidence: Evidence) -> pa.Table:
    """A record was read before it was committed: by its own transaction, or by who read it before its sender came to that."""
    history, writer = evidence.history, evidence.writer[evidence.polls]
    own = history.in_txn[writer] & (history.unit[writer] == history.unit[evidence.polls])
    early = (writer != NOBODY) & (own | _is_early(evidence))
    return findings(history, "precommitted_read", evidence.polls[early], writer[early])


def _is_early(evidence: Evidence) -> Mask:
    """For each poll whether it was answered before the last operation of any unit that sent such a record had begun.

    ::

        process A    reads x of partition 0, and is answered
        process A    sends x to partition 0: it does one thing after the other, so nobody can have read it before
    """
    history, sends, polls = evidence.history, evidence.sends, evidence.polls
    begun = evidence.begun_after[history.op[evidence.unit_end[history.unit[sends]]]]
    earliest = np.full(int(evidence.record.max(initial=-1)) + 1, len(history.op))
    np.minimum.at(earliest, evidence.record[sends], begun)
    early: Mask = evidence.happened[polls] & (earliest[evidence.record[polls]] >= evidence.op_end[history.op[polls]])
    return early


def intermediate_read(evidence: Evidence) -> pa.Table:
    """G1b: an operation read a part of a transaction, and not another part inside the window that it read.

    The window of an operation on a partition is all that its ``window`` rows say, or, if there is none, from the first to
    the last record read. What lies outside, the operation did not look at, and what nobody ever read is missing, not hidden.
    """
    views = _Views(evidence)
    found = [one_finding(evidence.history, "intermediate_read", rows) for rows in views.partial()]
    return joined(evidence.history, found)


def wr_cycle(evidence: Evidence) -> pa.Table:
    """G1c: transactions that each read what the next one in the circle wrote, so none can have been first.

    In the place of a transaction may stand several attempts of unknown outcome, of which one must have been committed, if each
    of them closes the circle.
    """
    history, edges = evidence.history, ReadEdges.of(evidence)
    found = [
        one_finding(
            history,
            "wr_cycle",
            [row for edge in circle for row in (int(edges.polls[edge]), int(edges.sends[edge]))],
            detail=_ANY_ATTEMPT if edges.of_any_attempt(circle) else "",
        )
        for circle in cycles_in(edges.source, edges.target, edges.order)
    ]
    return joined(history, found)


_ANY_ATTEMPT = "whichever of the attempts of unknown outcome was committed"


class _Views:
    """What each operation read of each partition, a *view*, and what it should have found there.

    What a view asked for is kept as ranges of known records, by their number in ``Evidence.known``, behind the view's number.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._history = history = evidence.history
        rows = np.concatenate([evidence.polls, history.rows(Kind.WINDOW)])
        rows = rows[evidence.happened[rows]]
        self._rows = rows[np.argsort(history.op[rows] * len(history.keys) + history.key[rows], kind="stable")]
        op, key = history.op[self._rows], history.key[self._rows]
        begins = np.concatenate([[True], (op[1:] != op[:-1]) | (key[1:] != key[:-1])])[: len(self._rows)]
        self._starts = np.flatnonzero(begins)
        self._op = op[self._starts]
        self._view = np.cumsum(begins) - 1
        self._is_read = history.kind[self._rows] == Kind.POLL
        self._asked = self._ranges()

    def partial(self) -> Iterator[list[int]]:
        """For each accused (operation, transaction): the send not read, the send read, and the poll that read it."""
        expected = np.zeros(len(self._starts), np.int64)
        np.add.at(expected, self._asked.low >> _NUMBER_BITS, self._asked.high - self._asked.low)
        suspects = np.unique(self._op[expected != self._read_of_what_was_asked()])
        for op in suspects.tolist():
            yield from self._partial_views_of(op)

    def _ranges(self) -> Ranges:
        history, rows, view = self._history, self._rows, self._view
        explicit = np.zeros(len(self._starts), bool)
        explicit[view[~self._is_read]] = True
        places = place(history.key[rows], history.offset[rows])
        whole = np.flatnonzero(~explicit)  # these views have polls only
        low, high = (self._reduce(of, places)[whole] for of in (np.minimum, np.maximum))
        windows = rows[~self._is_read]
        until = place(history.key[windows], history.until[windows])
        return Ranges.of(
            np.concatenate([self._numbered(whole, low), self._numbered(view[~self._is_read], places[~self._is_read])]),
            np.concatenate([self._numbered(whole, high + 1), self._numbered(view[~self._is_read], until)]),
        )

    def _numbered(self, view: Ints, places: Ints) -> Ints:
        """For each place the number of the first known record from there on, behind the number of the view."""
        return (view << _NUMBER_BITS) | np.searchsorted(self._evidence.known, places)

    def _reduce(self, combine: np.ufunc, numbers: Ints) -> Ints:
        return combine.reduceat(numbers, self._starts) if len(self._starts) else numbers

    def _read_of_what_was_asked(self) -> Ints:
        """For each view how many of the known records that it asked for it read, each counted once."""
        history, rows = self._history, self._rows[self._is_read]
        places = place(history.key[rows], history.offset[rows])
        numbers = self._numbered(self._view[self._is_read], places)
        # Also one that is not known has a number: that of the next one.
        known = np.append(self._evidence.known, -1)[numbers & ((1 << _NUMBER_BITS) - 1)] == places
        read = np.sort(numbers[known], kind="stable")  # nearly sorted already
        read = read[np.diff(read, prepend=-1) != 0]
        return np.bincount(read[self._asked.contain(read)] >> _NUMBER_BITS, minlength=len(self._starts))

    def _partial_views_of(self, op: int) -> Iterator[list[int]]:
        history = self._history
        first, last = np.searchsorted(self._op, [op, op + 1])
        rows = self._rows[self._starts[first] : self._starts[last] if last < len(self._starts) else None]
        polls = rows[history.kind[rows] == Kind.POLL]
        read_by_txn = self._transactions_read(polls)
        seen = set(place(history.key[polls], history.offset[polls]).tolist())
        for where, send in self._sends_asked_for(int(first), int(last)):
            txn = int(history.unit[send])
            if txn in read_by_txn and where not in seen:
                yield [send, *read_by_txn.pop(txn)]

    def _transactions_read(self, polls: Ints) -> dict[int, list[int]]:
        """For each transaction of which something was read, the row that sent that and the row that read it."""
        history, writers = self._history, self._evidence.writer[polls]
        pairs = zip(writers.tolist(), polls.tolist(), strict=True)
        return {
            int(history.unit[send]): [send, poll] for send, poll in pairs if send != NOBODY and history.in_txn[send]
        }

    def _sends_asked_for(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The places of the known records that these views asked for, with the rows that sent them."""
        evidence, asked, number = self._evidence, self._asked, (1 << _NUMBER_BITS) - 1
        begin, end = np.searchsorted(asked.low >> _NUMBER_BITS, [first, last])
        for low, high in zip(asked.low[begin:end] & number, asked.high[begin:end] & number, strict=True):
            sends = evidence.writer[evidence.known_poll[low:high]]
            for where, send in zip(evidence.known[low:high].tolist(), sends.tolist(), strict=True):
                if send != NOBODY:
                    yield where, send


_NUMBER_BITS = 32  # of a known record's number; a view's number stands above them
