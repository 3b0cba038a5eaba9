"""When each place of a log was last looked at, by whom.

A look is a ``window`` row, whose operation asked for all records of the range; or the last ``log_end`` row of a key, for at
that end and behind it nothing stands. What a look should have given and did not give is missing, whoever saw it before::

    a send is acknowledged at offset 2; a reader reads 0 to 2
    the leader is lost, with what its followers had not
    the final reader reads 0 and 1, which is all: log_end is 2          the record at 2 is lost, though it was read

A look that was not answered (its operation failed, or its outcome is not known) looked at nothing.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from onceflow.verify.checker.evidence import Evidence, offset_of, place
from onceflow.verify.history.coding import Ints, distinct
from onceflow.verify.history.schema import MAX_OFFSET, OFFSET_BITS, Kind


class Looks:
    """The looks of a history. Where a method gives a look it gives its row, -1 for none."""

    def __init__(self, evidence: Evidence) -> None:
        self._history = history = evidence.history
        self._is_target = evidence.is_target
        self._op_end, self._begun_after = evidence.op_end, evidence.begun_after
        windows = history.rows(Kind.WINDOW)
        self.log_end = evidence.last_said(Kind.LOG_END)
        rows = np.concatenate([windows[evidence.happened[windows]], self.log_end[self.log_end >= 0]])
        self._rows = rows[np.argsort(self.ended(rows), kind="stable")]
        self._is_end = history.kind[self._rows] == Kind.LOG_END

    def ended(self, rows: Ints) -> Ints:
        """For each look the last row of its operation, -1 for none: what ended before, it should have given."""
        ended = np.full(len(rows), -1, np.int64)
        looked = rows >= 0  # a history may have no row at all
        ended[looked] = self._op_end[self._history.op[rows[looked]]]
        return ended

    def begun(self, rows: Ints) -> Ints:
        """For each look the first row that may have stood there only after the look had begun, -1 for none."""
        begun = np.full(len(rows), -1, np.int64)
        looked = rows >= 0
        begun[looked] = self._begun_after[self._history.op[rows[looked]]] + 1
        return begun

    def last_at(self, places: Ints) -> Ints:
        """For each place the last look at it."""
        stretch = np.searchsorted(self._cuts, places, side="right") - 1
        return self._row(np.append(self._painted, -1)[stretch])

    def last_from_here_to_end(self, places: Ints) -> Ints:
        """For each place a look since which, itself included, all from there up to the end of its key was looked at.

        The end is where the log was last said to end, and that is one of the looks::

            log_end is seen to be 2
            a send is acknowledged, nobody knows where
            a reader reads 0 to 2                               it may stand at 2

        Without that nobody knows how far a record without a place may be. Of effects (at a target) a window from 0 on is all,
        however far it says that it reached: a later one reaches less far where effects are gone.
        """
        key, stretch = places >> OFFSET_BITS, np.searchsorted(self._cuts, places, side="right") - 1
        to_end = np.append(self._oldest_to_end, -1)[stretch]
        from_zero = self._is_target[key] & (offset_of(places) == 0)
        to_end = np.where(from_zero, np.maximum(self._last_from_zero[key], to_end), to_end)
        return self._row(np.where(self._is_target[key] | (self.log_end[key] >= 0), to_end, -1))

    @cached_property
    def _oldest_to_end(self) -> Ints:
        """For each stretch the oldest of the last looks at it and at those behind it, up to the end; behind that its own one.

        Where the log was said to end, that look has all behind it, and is one of them however far the windows reach::

            log_end is seen to be 0
            a send is acknowledged, nobody knows where
            a reader reads 0 to 1                               it may stand at 1
        """
        key, looks = self._cuts >> OFFSET_BITS, len(self._rows)
        inside = (self._cuts < place(key, np.append(self._ends, 0)[key])) | (np.append(self.log_end, -1)[key] >= 0)
        # The numbers of a key lie above those of the keys before it, so that the minimum starts anew with each key.
        band = key * (looks + 2)
        oldest = np.minimum.accumulate((band + np.where(inside, self._painted, looks))[::-1])[::-1] - band
        return np.where(inside, oldest, self._painted)

    @cached_property
    def _ends(self) -> Ints:
        history, windows = self._history, self._rows[~self._is_end]
        reach = np.zeros(len(history.keys), np.int64)
        np.maximum.at(reach, history.key[windows], history.until[windows])
        told = self.log_end >= 0
        reach[told] = history.offset[self.log_end[told]]
        return reach

    @cached_property
    def _last_from_zero(self) -> Ints:
        number = np.flatnonzero(self._history.offset[self._rows] == 0)
        last = np.full(len(self._history.keys), -1, np.int64)
        last[self._history.key[self._rows[number]]] = number
        return last

    @cached_property
    def _low(self) -> Ints:
        return place(self._history.key[self._rows], self._history.offset[self._rows])

    @cached_property
    def _high(self) -> Ints:
        until = np.where(self._is_end, MAX_OFFSET, self._history.until[self._rows])
        places: Ints = place(self._history.key[self._rows], until) + self._is_end
        return places

    @cached_property
    def _cuts(self) -> Ints:
        """The places, in order, between which the last look is one and the same."""
        key = np.arange(len(self._history.keys))
        return distinct(np.concatenate([self._low, self._high, place(key, 0), place(key, self._ends)]))

    @cached_property
    def _painted(self) -> Ints:
        """For each stretch from one cut to the next the number of the last look at it."""
        return last_over(
            np.searchsorted(self._cuts, self._low), np.searchsorted(self._cuts, self._high), len(self._cuts)
        )

    def _row(self, number: Ints) -> Ints:
        return np.append(self._rows, -1)[number]


def last_over(begin: Ints, end: Ints, length: int) -> Ints:
    """For each index below ``length`` the last of the ranges that holds it, -1 for none.

    Each range is two overlapping ones whose length is a power of two (a sparse table, filled from the longest down), so that
    millions of ranges over one another cost no more than ranges side by side.
    """
    number = np.flatnonzero(begin < end)
    begin, end = begin[number], end[number]
    level = np.frexp(end - begin)[1] - 1  # the binary logarithm, rounded down
    last = np.full(length, -1, np.int64)  # of the ranges that begin here, of the length of this level or longer
    for each in range(int(level.max(initial=-1)), -1, -1):
        mine, size = level == each, 1 << each
        np.maximum.at(last, begin[mine], number[mine])
        np.maximum.at(last, end[mine] - size, number[mine])
        if half := size // 2:
            last[half:] = np.maximum(last[half:], last[:-half])
    return last
