"""Records that somebody read, and that are not there any more.

::

    a reader beside the run reads a record           it was committed
    the log loses it
    the final reader asks for all of its partition, and does not get it

Only the last look at a place counts: a reader that goes past a record which others still get was served badly, but
the record is there (``int_poll_skip`` and ``intermediate_read`` tell of that).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from onceflow.verify.checker.evidence import NOBODY, Evidence, place
from onceflow.verify.checker.looks import Looks
from onceflow.verify.history.coding import Ints
from onceflow.verify.history.columns import Mask


class Vanished:
    """The records of a history that vanished. ``polls`` has for each the row of the last poll that gave it."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._history = history = evidence.history
        looks, visible = evidence.once(Looks), evidence.visible
        places = place(history.key[visible], history.offset[visible])
        look = looks.last_at(places)
        missed = looks.ended(look) > evidence.op_end[history.op[visible]]
        missed[missed] = ~evidence.gone.contain(places[missed])
        missed[missed] = ~np.isin(places[missed], places[~missed])
        chosen = _last_of_each(places[missed], evidence.op_end[history.op[visible[missed]]])
        self.polls, self.looks = visible[missed][chosen], look[missed][chosen]
        self._still_there = visible[~missed]

    @cached_property
    def writers(self) -> Ints:
        """For each the row that sent it, or NOBODY."""
        return self._evidence.writer[self.polls]

    @cached_property
    def rest(self) -> Ints:
        """For each a record of the same transaction that was read and did not vanish, -1 for none: the row that sent it."""
        history, writers = self._history, self.writers
        others = self._evidence.writer[self._still_there]
        others = others[others != NOBODY]
        of_unit = np.full(int(history.unit.max(initial=-1)) + 1, -1, np.int64)
        of_unit[history.unit[others]] = others
        return np.where((writers != NOBODY) & history.in_txn[writers], of_unit[history.unit[writers]], -1)

    @property
    def torn(self) -> Mask:
        """For each, whether the rest of its transaction is still there."""
        there: Mask = self.rest >= 0
        return there


def _last_of_each(group: Ints, order: Ints) -> Ints:
    """The index of the element of each group that comes last in this order."""
    by_order = np.argsort(-order, kind="stable")
    return by_order[np.unique(group[by_order], return_index=True)[1]]
