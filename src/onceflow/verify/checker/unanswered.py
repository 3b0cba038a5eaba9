"""Sends that got no answer, in no transaction, and were read all the same: do they stand in the order in which they were sent?

Such a send may take effect at any time after it began, so it may stand behind what its process sent later::

    writer sends 1, and gets no answer                      the request is held up on its way
    writer sends 2, acknowledged at 0
    the request of 1 arrives: it stands at 1                nobody did anything wrong; it is only said that it was not judged

But it took no effect before it began, so it must not stand before what its process had sent by then::

    writer sends 1, acknowledged at 1
    writer sends 2, and gets no answer; it stands at 0      in reverse order, whatever became of the answer

A transaction of unknown outcome is another matter: what it sent was in the log before its commit was asked for.
"""

from __future__ import annotations

import numpy as np

from onceflow.verify.checker.evidence import NOBODY, Evidence
from onceflow.verify.history.coding import Ints, among
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import Status


class Unanswered:
    """Those of them that stand before what their process had sent before, and those that stand behind what it sent later.

    ``before`` are accused, each with what had been sent in ``witnesses``; of ``undecided`` nobody knows whether all is right.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._history = history = evidence.history
        is_unanswered = _unanswered(evidence)
        rows = evidence.sends[evidence.sent_offset[evidence.sends] >= 0]
        rows = rows[is_unanswered[rows] | evidence.happened[rows]]
        lane = history.process[rows] * (len(history.keys) + 1) + history.key[rows]
        concerned = among(lane, lane[is_unanswered[rows]])
        rows, lane = rows[concerned], lane[concerned]
        order = np.argsort(lane, kind="stable")
        self._rows, self._lane, self._open = rows[order], lane[order], is_unanswered[rows[order]]
        nth = np.arange(len(self._rows))
        answered = np.maximum.accumulate(np.where(self._open, -1, nth))
        accused = self._open & _known_to_be_there(evidence, self._rows) & self._is_back(answered, nth)
        accused &= history.unit[self._rows[answered]] != history.unit[self._rows]
        back = self._is_back(nth - 1, nth) & (self._open | np.roll(self._open, 1)) & ~accused
        self.before, self.witnesses = self._rows[accused], self._rows[answered[accused]]
        self.undecided: Ints = self._rows[back]

    def _is_back(self, earlier: Ints, later: Ints) -> Mask:
        """For each two sends, by index (-1 for none), whether they are of one process and key and stand in reverse order."""
        offset = self._evidence.sent_offset[self._rows]
        back: Mask = (earlier >= 0) & (self._lane[earlier] == self._lane[later]) & (offset[later] < offset[earlier])
        return back


def _unanswered(evidence: Evidence) -> Mask:
    """For each row whether it is such a send, of which somebody read what may be its record."""
    history, writer = evidence.history, evidence.writer[evidence.polls]
    mask = np.zeros(len(history.op), bool)
    mask[writer[writer != NOBODY]] = True
    mask &= (history.status == Status.INFO) & ~history.in_txn
    return mask


def _known_to_be_there(evidence: Evidence, rows: Ints) -> Mask:
    """For each send that was read whether it was this one, for nobody else sent the same: it may have been another attempt."""
    history, record = evidence.history, evidence.record
    attempts = np.bincount(record[evidence.sends[history.status[evidence.sends] != Status.FAIL]], minlength=1)
    alone: Mask = attempts[record[rows]] == 1
    return alone
