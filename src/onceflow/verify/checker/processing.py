"""What became of the input: a record handled twice, an effect applied twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.findings import findings
from onceflow.verify.history.coding import Ints, dense
from onceflow.verify.history.columns import Columns
from onceflow.verify.history.schema import Kind, Status


def consumed_twice(evidence: Evidence) -> pa.Table:
    """A record was consumed for one group by more than one transaction that committed."""
    history = evidence.history
    polls = evidence.polls
    rows = polls[history.in_txn[polls] & (history.group[polls] >= 0) & evidence.happened[polls]]
    first = _first_for_group(history, rows)
    again = history.unit[first] != history.unit[rows]
    return findings(history, "consumed_twice", rows[again], first[again])


def repeated_for_group(history: Columns, polls: Ints) -> Ints:
    """Those of the rows that poll a record which an earlier one of them has polled for the same group."""
    again: Ints = polls[_first_for_group(history, polls) != polls]
    return again


def _first_for_group(history: Columns, polls: Ints) -> Ints:
    """For each row the first one of the same record and group."""
    places = np.unique(place(history.key[polls], history.offset[polls]), return_inverse=True)[1]
    return _first_of(places * (int(history.group.max(initial=0)) + 1) + history.group[polls], polls)


def effect_repeated(evidence: Evidence) -> pa.Table:
    """An effect was found applied more than once for one value."""
    history = evidence.history
    effects = history.rows(Kind.EFFECT)
    rows = effects[history.status[effects] == Status.OK]
    first = _first_of(evidence.record[rows], rows)
    return findings(history, "effect_repeated", rows[first != rows], first[first != rows])


def _first_of(group: Ints, rows: Ints) -> Ints:
    """For each row the first one of its group."""
    numbers = dense(group)
    first = np.empty(int(numbers.max(initial=-1)) + 1, np.int64)
    first[numbers[::-1]] = rows[::-1]
    return first[numbers]
