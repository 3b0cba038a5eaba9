"""Records that a group polled more than once, where nothing tells whether it handled them more than once.

Two transactions that were committed tell it (``consumed_twice``). These do not::

    transaction 1 polls 0 and commits
    the same process polls 0 again, in no transaction       what it made of it only effects tell

nor a transaction that polls the record twice, which it may do to look at it only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onceflow.verify.checker.evidence import Evidence
from onceflow.verify.checker.processing import Taken
from onceflow.verify.history.coding import Ints, among, dense


def repetitions(evidence: Evidence) -> Iterator[tuple[Ints, str]]:
    """The polls of each kind, and why they are not judged."""
    polls, record = _polled_more_than_once(evidence)
    if not len(polls):
        return
    history = evidence.history
    in_txn, unknown = history.in_txn[polls], history.in_txn[polls] & ~evidence.happened[polls]
    in_none, in_any = (np.bincount(record, each)[record] > 0 for each in (~in_txn, in_txn))
    by_unit = dense(record * len(evidence.unit_end) + history.unit[polls])
    kinds = (
        (in_none & ~in_any, "that was in no transaction, so only effects tell"),
        (in_none & in_any, "not only in transactions, so only effects tell"),
        (in_txn & (np.bincount(by_unit)[by_unit] > 1), "that was in one transaction, so only effects tell"),
        (np.bincount(record, unknown)[record] > 0, "nothing tells what became of a transaction that did"),
    )
    for mask, reason in kinds:
        if np.any(mask):
            yield polls[mask], reason


def _polled_more_than_once(evidence: Evidence) -> tuple[Ints, Ints]:
    """The polls of such records, and the numbers of these.

    Without those of transactions of unknown outcome that also sent: what they sent tells whether they were committed, or it is
    said of that that nobody looked.
    """
    history, taken = evidence.history, evidence.once(Taken)
    unknown = history.in_txn[taken.rows] & ~evidence.happened[taken.rows]
    counts = ~(unknown & among(history.unit[taken.rows], history.unit[evidence.sends]))
    rows, record = taken.rows[counts], taken.record[counts]
    several = np.bincount(record, minlength=1)[record] > 1
    return rows[several], dense(record[several])
