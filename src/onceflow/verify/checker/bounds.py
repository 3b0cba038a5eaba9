"""Where a record can stand whose offset nobody told: behind all that was known of its key before it was sent.

::

    a reader gets the record at offset 0            the log has reached 1
    the log drops 0                                 gone from 0 until 1
    a writer sends v, and is not told the offset    v stands at 1 or behind it: it is not what was dropped

When a send began, no history says: after the operation before it of the same process, for a process does one thing after the
other. What others were told meanwhile may have come to stand behind the record.
"""

from __future__ import annotations

import numpy as np

from onceflow.verify.checker.evidence import Evidence, offset_of, place
from onceflow.verify.history.coding import Ints, among
from onceflow.verify.history.schema import MAX_OFFSET, OFFSET_BITS, Status


def lowest_offsets(evidence: Evidence, rows: Ints) -> Ints:
    """For each of these rows, which send, the lowest offset at which its record can stand: its own one where that is known."""
    lowest = evidence.history.offset[rows]
    unknown = np.flatnonzero(lowest < 0)
    if len(unknown):
        lowest[unknown] = _lowest_of_any_attempt(evidence, rows[unknown])
    return lowest


def _lowest_of_any_attempt(evidence: Evidence, rows: Ints) -> Ints:
    """Which of several attempts wrote a record may not be known: then it can stand where the first of them began."""
    history, sends, record = evidence.history, evidence.sends, evidence.record
    records, number = np.unique(record[rows], return_inverse=True)
    attempts = sends[(history.status[sends] != Status.FAIL) & among(record[sends], records)]
    lowest = np.full(len(records), np.iinfo(np.int64).max)
    reached = _reached(evidence, history.key[attempts], evidence.begun_after[history.op[attempts]])
    np.minimum.at(lowest, np.searchsorted(records, record[attempts]), reached)
    return lowest[number]


def _reached(evidence: Evidence, key: Ints, known: Ints) -> Ints:
    """For each key how far its log had reached when the operations up to this row had ended, as far as anybody was told."""
    history = evidence.history
    told = np.concatenate([evidence.committed, evidence.visible])
    told = told[(history.offset[told] >= 0) & among(history.key[told], key)]
    when, count = evidence.op_end[history.op[told]], len(history.op) + 1
    order = np.lexsort((when, history.key[told]))
    told, when = told[order], when[order]
    furthest = np.append(np.maximum.accumulate(place(history.key[told], history.offset[told])), -1)
    at = np.searchsorted(history.key[told] * count + when, key * count + known, side="right") - 1
    is_told = furthest[at] >> OFFSET_BITS == key
    return np.where(is_told, np.minimum(offset_of(furthest[at]) + 1, MAX_OFFSET), 0)
