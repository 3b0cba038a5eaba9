"""What became of the input: a record handled twice, an effect applied twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.findings import findings
from onceflow.verify.history.coding import Ints, among, dense
from onceflow.verify.history.schema import Kind, Status


def consumed_twice(evidence: Evidence) -> pa.Table:
    """A record was consumed for one group by more than one transaction that committed."""
    history, taken = evidence.history, evidence.once(Taken)
    judged = history.in_txn[taken.rows] & evidence.happened[taken.rows]
    rows = taken.rows[judged]
    first = _first_of(taken.record[judged], rows)
    again = history.unit[first] != history.unit[rows]
    return findings(history, "consumed_twice", rows[again], first[again])


class Taken:
    """The polls for groups that may have led to anything, and for each a number of the record and its group."""

    def __init__(self, evidence: Evidence) -> None:
        history, polls = evidence.history, evidence.polls
        self.rows = polls[(history.group[polls] >= 0) & (history.status[polls] != Status.FAIL)]
        places = np.unique(place(history.key[self.rows], history.offset[self.rows]), return_inverse=True)[1]
        self.record = dense(places * (int(history.group.max(initial=0)) + 1) + history.group[self.rows])


def effect_repeated(evidence: Evidence) -> pa.Table:
    """An effect was found applied more than once for one value.

    Who asked for all effects of a target tells of each as often as it is there, so two who did are not held together::

        the ledger is asked for all effects (a window from 0), and has 1
        the ledger is asked again, and has 1                                it is the same one
    """
    history = evidence.history
    effects = history.rows(Kind.EFFECT)
    rows = effects[history.status[effects] == Status.OK]
    first = _first_of(evidence.record[rows] * (len(evidence.op_end) + 1) + _full_looks(evidence, rows), rows)
    return findings(history, "effect_repeated", rows[first != rows], first[first != rows])


def _full_looks(evidence: Evidence, effects: Ints) -> Ints:
    """For each effect the number of the operation that asked for all at its target and found it, from 1 on, 0 for none."""
    history = evidence.history
    windows = history.rows(Kind.WINDOW)
    windows = windows[(history.offset[windows] == 0) & evidence.has_effects_only[history.key[windows]]]
    asked, found = (history.op[rows] * len(history.keys) + history.key[rows] for rows in (windows, effects))
    return np.where(among(found, asked), history.op[effects] + 1, 0)


def _first_of(group: Ints, rows: Ints) -> Ints:
    """For each row the first one of its group."""
    numbers = dense(group)
    first = np.empty(int(numbers.max(initial=-1)) + 1, np.int64)
    first[numbers[::-1]] = rows[::-1]
    return first[numbers]
