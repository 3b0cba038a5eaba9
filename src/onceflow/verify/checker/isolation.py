"""Reads that a transaction should have hidden: of what was aborted, of a part, of one's own, and in a circle."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.cycles import cycles_in
from onceflow.verify.checker.evidence import NOBODY, Evidence
from onceflow.verify.checker.findings import findings, joined, one_finding
from onceflow.verify.checker.read_edges import ReadEdges
from onceflow.verify.checker.views import Views
from onceflow.verify.history.coding import Ints, among
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import Status


def aborted_read(evidence: Evidence) -> pa.Table:
    """G1a: an operation that committed read a record whose writer failed for certain, or found its effect."""
    history, rows = evidence.history, np.concatenate([evidence.polls, evidence.effects])
    writer = evidence.writer[rows]
    mask = (writer != NOBODY) & (history.status[writer] == Status.FAIL) & evidence.happened[rows]
    return findings(history, "aborted_read", rows[mask], writer[mask])


def precommitted_read(evidence: Evidence) -> pa.Table:
    """A record was read before it was committed: by its own transaction, or by who read it before its sender came to that."""
    history, writer = evidence.history, evidence.writer[evidence.polls]
    early = (writer != NOBODY) & (_is_own(evidence) | _is_early(evidence))
    return findings(history, "precommitted_read", evidence.polls[early], writer[early])


def _is_own(evidence: Evidence) -> Mask:
    """For each poll whether its own transaction sent what it read, at that place or alone."""
    history, polls, writer = evidence.history, evidence.polls, evidence.writer[evidence.polls]
    own: Mask = (writer != NOBODY) & history.in_txn[writer] & (history.unit[writer] == history.unit[polls])
    rows = np.flatnonzero(own)
    same_place = history.offset[polls[rows]] == history.offset[writer[rows]]
    own[rows] = same_place | ~_may_be_of_another(evidence, polls[rows])
    return own


def _may_be_of_another(evidence: Evidence, polls: Ints) -> Mask:
    """For each of these polls whether another unit than its own sent such a record, and has not failed."""
    history, record, sends = evidence.history, evidence.record, evidence.sends
    if not len(polls):
        return np.zeros(0, bool)
    attempts = sends[(history.status[sends] != Status.FAIL) & among(record[sends], record[polls])]
    first, last = np.full(int(record.max()) + 1, len(evidence.unit_end)), np.full(int(record.max()) + 1, -1)
    np.minimum.at(first, record[attempts], history.unit[attempts])
    np.maximum.at(last, record[attempts], history.unit[attempts])
    first, last, own = first[record[polls]], last[record[polls]], history.unit[polls]
    another: Mask = (last >= 0) & ((first != own) | (last != own))
    return another


def _is_early(evidence: Evidence) -> Mask:
    """For each poll whether it was answered before the last operation of any unit that sent such a record had begun.

    ::

        process A    reads x of partition 0, and is answered
        process A    sends x to partition 0: it does one thing after the other, so nobody can have read it before
    """
    history, sends, polls = evidence.history, evidence.sends, evidence.polls
    begun = evidence.begun_after[history.op[evidence.unit_end[history.unit[sends]]]]
    earliest = np.full(int(evidence.record.max(initial=-1)) + 1, len(history.op))
    np.minimum.at(earliest, evidence.record[sends], begun)
    early: Mask = evidence.happened[polls] & (earliest[evidence.record[polls]] >= evidence.op_end[history.op[polls]])
    return early


def intermediate_read(evidence: Evidence) -> pa.Table:
    """G1b: an operation read a part of a transaction, and not another part inside the window that it read.

    The window of an operation on a partition is all that its ``window`` rows say, or, if there is none, from the first to
    the last record read. What lies outside, the operation did not look at, and what nobody ever read is missing, not hidden.
    """
    hidden = Views(evidence).hidden()
    return findings(evidence.history, "intermediate_read", hidden.sends, hidden.read, hidden.polls)


def wr_cycle(evidence: Evidence) -> pa.Table:
    """G1c: transactions that each read what the next one in the circle wrote, so none can have been first.

    In the place of a transaction may stand several attempts of unknown outcome, of which one must have been committed, if each
    of them closes the circle.
    """
    history, edges = evidence.history, ReadEdges.of(evidence)
    found = [
        one_finding(
            history,
            "wr_cycle",
            [row for edge in circle for row in (int(edges.polls[edge]), int(edges.sends[edge]))],
            detail=_ANY_ATTEMPT if edges.of_any_attempt(circle) else "",
        )
        for circle in cycles_in(edges.source, edges.target, edges.order)
    ]
    return joined(history, found)


_ANY_ATTEMPT = "whichever of the attempts of unknown outcome was committed"
