"""One value at two places, two values at one place, values that nobody wrote."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.evidence import NOBODY, Evidence, place
from onceflow.verify.checker.findings import findings, joined
from onceflow.verify.history.coding import Ints, among


def duplicated(evidence: Evidence) -> pa.Table:
    """One value stands at more than one offset of a partition, or two committed transactions sent it there."""
    rows = _placed(evidence)
    other = _conflicts(evidence.record[rows], evidence.history.offset[rows])
    placed = _pairs(evidence, "duplicated", rows, other)
    again, before = _committed_again(evidence)
    more = ~among(evidence.record[again], evidence.record[rows[other >= 0]])
    return joined(evidence.history, [placed, findings(evidence.history, "duplicated", again[more], before[more])])


def inconsistent_offsets(evidence: Evidence) -> pa.Table:
    """One offset of a partition was seen with more than one value."""
    rows = np.concatenate([_acknowledged_in_vain(evidence), _placed(evidence)])
    places = np.unique(place(evidence.history.key[rows], evidence.history.offset[rows]), return_inverse=True)[1]
    other = _conflicts(places, evidence.history.value[rows])
    return _pairs(evidence, "inconsistent_offsets", rows, other)


def phantom(evidence: Evidence) -> pa.Table:
    """A value was read that nobody wrote, on a partition whose writers are in the history; or such an effect was found."""
    history = evidence.history
    has_writers = np.zeros(len(history.keys), bool)
    has_writers[history.key[evidence.sends]] = True
    rows = np.concatenate([evidence.polls, evidence.effects])
    rows = rows[evidence.writer[rows] == NOBODY]
    return findings(history, "phantom", rows[has_writers[history.key[rows]]])


def _placed(evidence: Evidence) -> Ints:
    """The rows that say where a visible record stands: polls, and acknowledged sends with their offset."""
    committed = evidence.committed
    acknowledged = committed[evidence.history.offset[committed] >= 0]
    return np.concatenate([acknowledged, evidence.visible])


def _acknowledged_in_vain(evidence: Evidence) -> Ints:
    """Sends with their offset whose transaction was aborted, or may have been: hidden, the record stands there all the same."""
    history, sends = evidence.history, evidence.sends
    rows: Ints = sends[(history.offset[sends] >= 0) & history.in_txn[sends] & ~evidence.happened[sends]]
    return rows


def _committed_again(evidence: Evidence) -> tuple[Ints, Ints]:
    """The sends of values that another transaction had sent already, and those of that one; both were committed.

    Two copies stand in the log then, whether anybody read both or not. An effect may be applied again and be one.
    """
    history, sends = evidence.history, evidence.sends
    rows = sends[history.in_txn[sends] & evidence.happened[sends] & ~evidence.is_target[history.key[sends]]]
    before = np.append(rows, -1)[_conflicts(evidence.record[rows], history.unit[rows])]
    is_again = before >= 0
    return rows[is_again], before[is_again]


def _conflicts(group: Ints, member: Ints) -> Ints:
    """For each element the index of one in its group that differs from it, -1 where all of its group are equal."""
    one = np.empty(int(group.max(initial=-1)) + 1, np.int64)
    one[group[::-1]] = np.arange(len(group))[::-1]  # the first of each group
    return np.where(member[one[group]] != member, one[group], -1)


def _pairs(evidence: Evidence, anomaly: str, rows: Ints, other: Ints) -> pa.Table:
    """One finding for each different (place, value), however often it was seen."""
    at = np.flatnonzero(other >= 0)
    history = evidence.history
    seen = np.stack([history.key[rows[at]], history.offset[rows[at]], history.value[rows[at]]], axis=1)
    _, first = np.unique(seen, axis=0, return_index=True)
    at = at[np.sort(first)]
    return findings(history, anomaly, rows[at], rows[other[at]])
