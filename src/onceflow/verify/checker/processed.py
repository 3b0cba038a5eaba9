"""Up to where a group processed its input, and when: the position at which it was seen in the end, and its transactions.

A position after which the group went on says nothing of the end::

    the driver that takes over writes down where it begins: the group's position is seen to be 0
    transaction 1 polls 0, commits position 1, sends output        its input is processed

Output is in the log when the transaction is committed that consumed its input. Of one of unknown outcome nobody knows when that
was; but it was before the group's position was seen, or output of what comes behind.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.checker.compared import Compared
from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.positions import lanes, seen_positions
from onceflow.verify.checker.progress import went_on
from onceflow.verify.history.coding import Ints, among
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import Kind, Status


def final_positions(evidence: Evidence, group: str | None) -> Ints:
    """For each key the row that saw the position of the group when it did not go on there any more, -1 for none."""
    history = evidence.history
    rows = seen_positions(history)
    rows = rows[is_of_group(evidence, rows, group)]
    rows = rows[~went_on(evidence, rows)]
    rows = rows[~_may_be_given_more(evidence, rows)]
    final = np.full(len(history.keys), -1, np.int64)
    final[history.key[rows]] = rows
    return final


def _may_be_given_more(evidence: Evidence, seen: Ints) -> Mask:
    """For each position that was seen whether a transaction of unknown outcome gives a further one: its marker may come late."""
    history = evidence.history
    given = history.rows(Kind.POSITION)
    given = given[history.in_txn[given] & (history.status[given] == Status.INFO)]
    lane = lanes(history, np.concatenate([seen, given]))
    furthest = np.full(int(lane.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(furthest, lane[len(seen) :], history.offset[given])
    more: Mask = furthest[lane[: len(seen)]] > history.offset[seen]
    return more


def processed(evidence: Evidence, compared: Compared, group: str | None) -> Mask:
    """For each expected record, whether its input lies before the place up to which it was processed.

    That is where the group stands in the end, or else behind the last input of which output is visible.
    """
    key, source, is_seen = compared.input_key, compared.expected.source, compared.match >= 0
    last_of = np.full(len(evidence.history.keys), -1, np.int64)
    np.maximum.at(last_of, key[is_seen], source[is_seen])
    final = final_positions(evidence, group)[key]
    before = np.where(final >= 0, compared.input_offset < evidence.history.offset[final], source <= last_of[key])
    return np.asarray(before, bool)


def processed_by(evidence: Evidence, compared: Compared, group: str | None) -> Ints:
    """For each expected record of input that was processed, a row by which its output was in the log; else one behind all."""
    history, at = evidence.history, np.flatnonzero(compared.match >= 0)
    last_output = np.full(len(history.keys), -1, np.int64)
    last_output[compared.input_key[at]] = compared.found[at]  # in the order of the input, so the last one stays
    final = final_positions(evidence, group)
    sign = np.where(final >= 0, final, last_output)[compared.input_key]
    seen_by = np.where(sign >= 0, evidence.op_end[history.op[sign]], len(history.op))
    return np.minimum(seen_by, _committed_by(evidence, compared, group))


def consumed(evidence: Evidence, compared: Compared, group: str | None) -> Mask:
    """For each expected record whether the group handled its input for certain: polled, and committed where in a transaction."""
    history, polls = evidence.history, evidence.polls
    polls = polls[evidence.happened[polls]]
    polls = polls[is_of_group(evidence, polls, group)]
    places = place(compared.input_key, compared.input_offset)
    return among(places, place(history.key[polls], history.offset[polls]))


def _committed_by(evidence: Evidence, compared: Compared, group: str | None) -> Ints:
    """For each expected record the last row of the first transaction that consumed its input, if it was answered."""
    history, polls = evidence.history, evidence.polls
    polls = polls[history.in_txn[polls] & (history.status[polls] == Status.OK)]
    polls = polls[is_of_group(evidence, polls, group)]
    places, number = np.unique(place(history.key[polls], history.offset[polls]), return_inverse=True)
    first = np.full(len(places) + 1, len(history.op), np.int64)
    np.minimum.at(first, number, evidence.unit_end[history.unit[polls]])
    wanted = place(compared.input_key, compared.input_offset)
    at = np.searchsorted(places, wanted)
    return np.where(np.append(places, -1)[at] == wanted, first[at], len(history.op))


def is_of_group(evidence: Evidence, rows: Ints, group: str | None) -> Mask:
    """For each row whether it names the group; none does if none is given."""
    groups = evidence.history.table["group"].combine_chunks().take(pa.array(rows))
    return np.asarray(pc.equal(groups, group).fill_null(False), bool)
