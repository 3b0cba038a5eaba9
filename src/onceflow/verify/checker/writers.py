"""Finds the send behind each poll.

A value is written by one send, as a rule. But an aborted batch is run again with the same values, so one value may have
several senders, and which of them was read decides everything::

    attempt 1 sends v (offset 4), aborts        a reader at offset 4 read an aborted record
    attempt 2 sends v (offset 9), commits       a reader at offset 9 read what it should

Among the senders of a value the one acknowledged at the very offset is believed first, then one whose offset is not
known, then any; among equals one that is known to have committed, then one of unknown outcome, then one that failed.

Of each group of equals only the best one is kept, so that a value with very many senders costs no more than its rows.
"""

from __future__ import annotations

import numpy as np

from onceflow.verify.history.coding import Ints, dense
from onceflow.verify.history.columns import Columns


def writers_of(history: Columns, sends: Ints, polls: Ints, record: Ints) -> Ints:
    """For each row that polls the row that sent what it read, -1 for nobody and for all other rows."""
    sends = sends[np.argsort(history.status[sends], kind="stable")]  # the best first
    records = int(record.max(initial=-1)) + 1
    told = history.offset[sends] >= 0
    told_of, untold_of = (_firsts(record[rows], rows, records) for rows in (sends[told], sends[~told]))
    writer = np.full(len(record), -1, np.int64)
    writer[polls] = np.where(untold_of[record[polls]] >= 0, untold_of[record[polls]], told_of[record[polls]])
    several = np.bincount(record[sends], minlength=records) > 1
    doubtful = polls[several[record[polls]]]
    at_place = _senders_at_the_place(history, sends[told & several[record[sends]]], doubtful, record)
    writer[doubtful[at_place >= 0]] = at_place[at_place >= 0]
    return writer


def _senders_at_the_place(history: Columns, sends: Ints, polls: Ints, record: Ints) -> Ints:
    """For each poll the first send of its record at the very offset, -1 for none."""
    rows = np.concatenate([sends, polls])
    offsets, offset = np.unique(history.offset[rows], return_inverse=True)
    spot = dense(record[rows] * len(offsets) + offset)
    return _firsts(spot[: len(sends)], sends, int(spot.max(initial=-1)) + 1)[spot[len(sends) :]]


def _firsts(group: Ints, rows: Ints, groups: int) -> Ints:
    """For each group the first of its rows, -1 for none."""
    first = np.full(groups, -1, np.int64)
    first[group[::-1]] = rows[::-1]
    return first
