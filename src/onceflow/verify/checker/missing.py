"""Records that were committed and that nobody read.

Each is accused once, of the worst that it shows: ``torn_transaction`` if other records of its transaction are visible,
``lost`` if records behind it are, else ``unseen``. The last two need a reader that got past the place, and ``unseen`` needs
the word of one (a ``window`` row, written after the record) that it read to the end; without it the record may yet come.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.evidence import Evidence, offset_of, place
from onceflow.verify.checker.findings import findings
from onceflow.verify.history.coding import Ints
from onceflow.verify.history.columns import Columns, Mask
from onceflow.verify.history.schema import MAX_OFFSET, Kind

_ROW_BITS = 40


class Missing:
    """The missing records of a history."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.history = evidence.history

    @cached_property
    def unread(self) -> Ints:
        """Committed, read by nobody, and not dropped by retention or compaction, as far as its offset is known."""
        rows = self._evidence.committed
        rows = rows[~self._evidence.read[rows]]
        key, offset = self.history.key[rows], self.history.offset[rows]
        ranges = self._evidence.gone
        somewhere = ranges.overlap(place(key, 0), place(key, MAX_OFFSET))
        return rows[~np.where(offset < 0, somewhere, ranges.contain(place(key, offset)))]

    @cached_property
    def passed(self) -> Mask:
        """For each unread record, whether somebody read behind it."""
        offset = self.history.offset[self.unread]
        return (offset >= 0) & (offset < self._evidence.highest_read[self.history.key[self.unread]])

    @cached_property
    def drained(self) -> Mask:
        """For each unread record, whether somebody says to have read to the end, after it was committed."""
        return _asked_for(self.history, self.unread)

    @cached_property
    def torn(self) -> Mask:
        """For each unread record, whether others of its transaction were read."""
        history, unread = self.history, self.unread
        return (self.passed | self.drained) & history.in_txn[unread] & self._evidence.seen_unit[history.unit[unread]]


def torn_transaction(evidence: Evidence) -> pa.Table:
    """A transaction of which a part is visible and another part is missing."""
    missing = evidence.once(Missing)
    rows = missing.unread[missing.torn]
    return findings(evidence.history, "torn_transaction", rows, _a_read_record_of(evidence, rows))


def lost(evidence: Evidence) -> pa.Table:
    """A committed record that nobody read, though records behind it were read."""
    missing = evidence.once(Missing)
    return findings(evidence.history, "lost", missing.unread[missing.passed & ~missing.torn])


def unseen(evidence: Evidence) -> pa.Table:
    """A committed record that nobody read, though a reader read its partition to the end afterwards."""
    missing = evidence.once(Missing)
    return findings(evidence.history, "unseen", missing.unread[missing.drained & ~missing.passed & ~missing.torn])


def _asked_for(history: Columns, rows: Ints) -> Mask:
    """For each row, whether a window on its key that was recorded later reaches beyond it."""
    windows = history.rows(Kind.WINDOW)
    order = windows[np.argsort(history.key[windows], kind="stable")]
    if not len(order):
        return np.zeros(len(rows), bool)
    stamps = (history.key[order] << _ROW_BITS) | order
    first_later = np.searchsorted(stamps, (history.key[rows] << _ROW_BITS) | rows)
    at = np.minimum(first_later, len(order) - 1)
    later = (first_later < len(order)) & (history.key[order[at]] == history.key[rows])
    reached: Mask = later & (_reach(history, order)[at] > history.offset[rows])
    return reached


def _reach(history: Columns, windows: Ints) -> Ints:
    """For windows sorted by key and row: how far this one and those after it on the same key reach."""
    # Read backwards the keys descend, so their negatives ascend, and no maximum is carried into the next key.
    places = place(-history.key[windows], history.until[windows])
    return offset_of(np.maximum.accumulate(places[::-1])[::-1])


def _a_read_record_of(evidence: Evidence, rows: Ints) -> Ints:
    """For each row a send of the same transaction that was read."""
    history = evidence.history
    read = evidence.sends[evidence.read[evidence.sends]]
    witness = np.full(len(evidence.seen_unit), -1, np.int64)
    witness[history.unit[read]] = read
    return witness[history.unit[rows]]
