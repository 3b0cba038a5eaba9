"""Finds the send behind each poll.

A value is written by one send, as a rule. But an aborted batch is run again with the same values, so one value may have
several senders, and which of them was read decides everything::

    attempt 1 sends v (offset 4), aborts        a reader at offset 4 read an aborted record
    attempt 2 sends v (offset 9), commits       a reader at offset 9 read what it should

Among the senders of a value the one acknowledged at the very offset is believed first, then one whose offset is not
known, then any; among equals one that is known to have committed, then one of unknown outcome, then one that failed.
"""

from __future__ import annotations

import numpy as np

from onceflow.verify.history.coding import Ints
from onceflow.verify.history.columns import Columns

_UNKNOWN_OFFSET, _OTHER_OFFSET, _NONE = 3, 6, 99  # above the three statuses, so that the offset counts more


def writers_of(history: Columns, sends: Ints, polls: Ints, record: Ints) -> Ints:
    """For each row that polls the row that sent what it read, -1 for nobody and for all other rows."""
    order = sends[np.argsort(record[sends], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(np.bincount(record[sends], minlength=int(record.max(initial=-1)) + 1))])
    writer = np.full(len(record), -1, np.int64)
    best = np.full(len(polls), _NONE, np.int64)
    left = np.arange(len(polls))
    for nth in range(len(sends)):
        at = starts[record[polls[left]]] + nth
        left = left[at < starts[record[polls[left]] + 1]]
        if not len(left):
            break
        senders = order[starts[record[polls[left]]] + nth]
        score = _score(history, senders, history.offset[polls[left]])
        better = score < best[left]
        best[left[better]] = score[better]
        writer[polls[left[better]]] = senders[better]
    return writer


def _score(history: Columns, senders: Ints, offsets: Ints) -> Ints:
    known = history.offset[senders]
    score = np.where(known < 0, _UNKNOWN_OFFSET, _OTHER_OFFSET)
    score[known == offsets] = 0
    return score + history.status[senders].astype(np.int64)
