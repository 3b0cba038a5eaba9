"""Records that somebody read, and that are not there any more.

::

    a reader beside the run reads a record           it was committed
    the log loses it
    the final reader asks for all of its partition, and does not get it

Only the last look at a place counts: a reader that goes past a record which others still get was served badly, but
the record is there (``int_poll_skip`` and ``intermediate_read`` tell of that).

So do effects, of which a look at all of their target tells::

    the ledger is asked for all effects, and has 1
    its database is restored from yesterday's copy
    the ledger is asked for all effects, and has none

Of two looks at a target at the same time the one that ends last may have looked first, so only what had been found when a look
began can be gone (of a log the range of its ``window`` tells how far it looked)::

    one asks the ledger, and is told of none
    an effect is applied
    two asks the ledger, has the effect, and is done
    one is done                                                 nothing is gone

Those that nobody was to have, or of what failed, are no loss.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from onceflow.verify.checker.evidence import NOBODY, Evidence, place
from onceflow.verify.checker.looks import Looks
from onceflow.verify.history.coding import Ints, among
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import MAX_OFFSET, Status


class Vanished:
    """The records and effects of a history that vanished. ``rows`` has for each the row of the last poll or look that gave it."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._history = history = evidence.history
        looks, visible, effects = evidence.once(Looks), evidence.visible, _meant(evidence)
        places, all_of_it = place(history.key[visible], history.offset[visible]), place(history.key[effects], 0)
        last, last_of_all = looks.last_at(places), looks.last_from_here_to_end(all_of_it)
        target = effects, evidence.record[effects], last_of_all, all_of_it, place(history.key[effects], MAX_OFFSET)
        parts = (
            self._missed(visible, places, last, places, places + 1, looks.ended(last)),
            self._missed(*target, looks.begun(last_of_all)),
        )
        self.rows, self.looks, self._still_there = (np.concatenate(each) for each in zip(*parts, strict=True))
        not_given = self._missed(*target, looks.ended(last_of_all))[0]
        self.doubtful = np.setdiff1d(
            not_given, parts[1][0]
        )  # effects that the last look did not give, and need not have

    def _missed(
        self, rows: Ints, group: Ints, look: Ints, low: Ints, high: Ints, moment: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Of each group of these rows, which are one and the same, the last one, if the last look at it did not give it.

        With that look; and the rows that are still there. What had ended before the ``moment`` it should have given.
        Each may have been dropped from the places ``low`` to ``high``.
        """
        ended = self._evidence.op_end[self._history.op[rows]]
        missed = moment > ended
        missed[missed] = ~self._evidence.gone.overlap(low[missed], high[missed])
        missed[missed] = ~among(group[missed], group[~missed])
        chosen = _last_of_each(group[missed], ended[missed])
        return rows[missed][chosen], look[missed][chosen], rows[~missed]

    @cached_property
    def at_a_target(self) -> Mask:
        """For each, whether it is an effect, and nothing in a log."""
        return self._evidence.is_target[self._history.key[self.rows]]

    @cached_property
    def writers(self) -> Ints:
        """For each the row that sent it, or NOBODY."""
        return self._evidence.writer[self.rows]

    @cached_property
    def rest(self) -> Ints:
        """For each a part of the same transaction that was read and did not vanish, -1 for none: the row that sent it."""
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


def _meant(evidence: Evidence) -> Ints:
    """The effects found that somebody was to have, and not only who failed."""
    effects, writer = evidence.effects, evidence.writer[evidence.effects]
    meant: Ints = effects[(writer != NOBODY) & (evidence.history.status[writer] != Status.FAIL)]
    return meant


def _last_of_each(group: Ints, order: Ints) -> Ints:
    """The index of the element of each group that comes last in this order."""
    by_order = np.argsort(-order, kind="stable")
    return by_order[np.unique(group[by_order], return_index=True)[1]]
