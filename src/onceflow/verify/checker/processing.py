"""What became of the input: handled twice, an effect twice, a transaction that never ends, records that nobody takes.

A position in a transaction is what that commits for its group; any other one is what was seen committed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.findings import findings, joined
from onceflow.verify.checker.positions import first_polled, lanes
from onceflow.verify.history.coding import Ints, dense
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import Kind, Status


def consumed_twice(evidence: Evidence) -> pa.Table:
    """A record was consumed for one group by more than one transaction that committed."""
    history = evidence.history
    polls = evidence.polls
    rows = polls[history.in_txn[polls] & (history.group[polls] >= 0) & evidence.happened[polls]]
    places = np.unique(place(history.key[rows], history.offset[rows]), return_inverse=True)[1]
    first = _first_of(places * (int(history.group.max(initial=0)) + 1) + history.group[rows], rows)
    again = history.unit[first] != history.unit[rows]
    return findings(history, "consumed_twice", rows[again], first[again])


def effect_repeated(evidence: Evidence) -> pa.Table:
    """An effect was found applied more than once for one value."""
    history = evidence.history
    effects = history.rows(Kind.EFFECT)
    rows = effects[history.status[effects] == Status.OK]
    first = _first_of(evidence.record[rows], rows)
    return findings(history, "effect_repeated", rows[first != rows], first[first != rows])


def hung_transaction(evidence: Evidence) -> pa.Table:
    """At the end of the history a transaction is open: the last stable offset stands below the end of the log."""
    history = evidence.history
    ends, stable = evidence.last_said(Kind.LOG_END), evidence.last_said(Kind.STABLE_END)
    both = (ends >= 0) & (stable >= 0)
    ends, stable = ends[both], stable[both]
    hung = history.offset[stable] < history.offset[ends]
    return findings(history, "hung_transaction", stable[hung], ends[hung])


def stuck_progress(evidence: Evidence) -> pa.Table:
    """At the end of the history a group's position stands below a committed record that it could have taken."""
    history = evidence.history
    positions = history.rows(Kind.POSITION)
    positions = positions[~history.in_txn[positions]]
    rows = _last_rows(lanes(history, positions), positions)
    stable = evidence.last_said(Kind.STABLE_END)[history.key[rows]]
    rows, stable = rows[stable >= 0], stable[stable >= 0]
    waiting = _first_waiting(evidence, rows, stable)
    return findings(history, "stuck_progress", rows[waiting >= 0], stable[waiting >= 0], waiting[waiting >= 0])


def torn_progress(evidence: Evidence) -> pa.Table:
    """At the end a group's position is not what its last committed transaction gave it, or is behind the end of the log.

    Where none was committed, the position is judged if a transaction that failed gave it and took records for it::

        transaction 1 polls 0 to 5, commits position 6, aborts
        the group's position is seen to be 6                        its input is never handled

    Any other position may be from before the history. Behind the end of a log that the group read of nobody can have read::

        transaction 1 polls 0, commits position 50, for what its client counts is not the log's
        the log is seen to end at 1                                 1 to 49 will never be handled
    """
    history = evidence.history
    positions = history.rows(Kind.POSITION)
    lane = lanes(history, positions)
    said, status = history.in_txn[positions], history.status[positions]
    seen = _last_of_lane(lane, positions, ~said)
    last = _last_of_lane(lane, positions, said & evidence.happened[positions])
    open_ended = said & (status == Status.INFO)
    settled = np.maximum(last, _last_of_lane(lane, positions, open_ended)) < seen
    # What a transaction of unknown outcome gave it may be there as well: its marker may come late.
    may_be = place(lane[open_ended], history.offset[positions[open_ended]])
    settled &= ~np.isin(place(np.arange(len(seen)), history.offset[seen]), may_be)
    other = settled & (last >= 0) & (history.offset[seen] != history.offset[last])
    unsaid = settled & (last < 0)
    mine = unsaid[lane]
    failed = np.where(unsaid, _applied_though_failed(evidence, lane[mine], positions[mine], seen), -1)
    shown = np.where(other, last, failed)
    ends = np.where(shown < 0, _ends_before(evidence, seen), -1)
    return joined(
        history,
        [
            findings(history, "torn_progress", seen[shown >= 0], shown[shown >= 0]),
            findings(history, "torn_progress", seen[ends >= 0], ends[ends >= 0], detail=_BEHIND_THE_END),
        ],
    )


_BEHIND_THE_END = "it is behind the end of the log"


def _ends_before(evidence: Evidence, seen: Ints) -> Ints:
    """For each position that was seen the row that says, not before that, that the log ends before it, -1 for none.

    Only of a group that read there: else its position may be a number of its own kind. And only where no record was known at
    that end or behind it: else the log was cut off, and they are ``lost``.
    """
    history, polls = evidence.history, evidence.polls
    number = np.flatnonzero(seen >= 0)
    rows = seen[number]
    ends = evidence.last_said(Kind.LOG_END)[history.key[rows]]
    before = (ends >= 0) & evidence.happened[rows] & (history.offset[ends] < history.offset[rows])
    before &= evidence.op_end[history.op[ends]] >= evidence.op_end[history.op[rows]]
    records = np.concatenate([evidence.committed, evidence.visible])
    furthest = np.full(len(history.keys), -1, np.int64)
    np.maximum.at(furthest, history.key[records], history.offset[records])
    before &= furthest[history.key[rows]] < history.offset[ends]
    number, rows, ends = number[before], rows[before], ends[before]
    lane = lanes(history, np.concatenate([rows, polls])) if len(rows) else rows
    reads = np.isin(lane[: len(rows)], lane[len(rows) :])
    found = np.full(len(seen), -1, np.int64)
    found[number[reads]] = ends[reads]
    return found


def _applied_though_failed(evidence: Evidence, lane: Ints, positions: Ints, seen: Ints) -> Ints:
    """For each lane the position of a failed transaction that was seen afterwards, -1 for none.

    Only of one that polled records below it for the group: else the group may have stood there before.
    """
    history = evidence.history
    mine = history.in_txn[positions] & (history.status[positions] == Status.FAIL)
    mine &= (positions < seen[lane]) & (history.offset[positions] == history.offset[seen[lane]])
    mine[mine] = history.offset[positions[mine]] > first_polled(history, evidence.polls, positions[mine])
    failed = np.full(len(seen), -1, np.int64)
    failed[lane[mine]] = positions[mine]
    return failed


def _last_of_lane(lane: Ints, rows: Ints, mask: Mask) -> Ints:
    """For each lane the last of the rows that the mask names, -1 for none."""
    last = np.full(int(lane.max(initial=-1)) + 1, -1, np.int64)
    last[lane[mask]] = rows[mask]
    return last


def _first_waiting(evidence: Evidence, positions: Ints, stable: Ints) -> Ints:
    """For each position a row that tells of a record between it and the stable end, -1 for none: markers do not wait."""
    history = evidence.history
    if not len(positions):
        return positions
    rows = np.concatenate([evidence.committed, evidence.visible])
    rows = rows[history.offset[rows] >= 0]
    places = place(history.key[rows], history.offset[rows])
    rows = rows[~evidence.gone.contain(places)]
    rows = rows[np.argsort(place(history.key[rows], history.offset[rows]), kind="stable")]
    places = place(history.key[rows], history.offset[rows])
    key = history.key[positions]
    at = np.searchsorted(places, place(key, history.offset[positions]))
    waits = at < np.searchsorted(places, place(key, history.offset[stable]))
    return np.where(waits, np.append(rows, -1)[at], -1)


def _first_of(group: Ints, rows: Ints) -> Ints:
    """For each row the first one of its group."""
    numbers = dense(group)
    first = np.empty(int(numbers.max(initial=-1)) + 1, np.int64)
    first[numbers[::-1]] = rows[::-1]
    return first[numbers]


def _last_rows(lane: Ints, rows: Ints) -> Ints:
    last = np.empty(int(lane.max(initial=-1)) + 1, np.int64)
    last[lane] = rows
    return last
