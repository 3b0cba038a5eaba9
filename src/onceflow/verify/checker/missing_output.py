"""Where output that is missing should stand, and whether anybody looked there.

The order is kept, so it stands between what comes before it and what comes after it, as far as that is there::

    expected a b c, seen a at 0 and c at 7          b should stand at 1 to 6
    the log dropped 0 to 4                          it may have been dropped: it is not missing
"""

from __future__ import annotations

import numpy as np

from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.looks import Looks
from onceflow.verify.history.coding import Ints
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import MAX_OFFSET, Kind


def looked_for(evidence: Evidence, lane: Ints, key: Ints, offset: Ints) -> Mask:
    """For each expected record (its key, and the offset where it was seen, else -1), whether it was looked for, if it is missing.

    Elements of one lane are in order. A key of which nobody said by a ``window`` what he asked for was read wholly, if at all.
    """
    history = evidence.history
    low, high = _neighbours(lane, offset)
    dropped = evidence.gone.overlap(place(key, low), place(key, high))
    windows = history.rows(Kind.WINDOW)
    read = np.zeros(len(history.keys) + 1, bool)  # one more for a key that the history does not have
    read[history.key[evidence.polls]] = True
    read[history.key[windows]] = False
    asked = evidence.once(Looks).last_from_here_to_end(place(np.maximum(key, 0), low)) >= 0
    looked: Mask = (key >= 0) & ~dropped & ((high < MAX_OFFSET) | read[key] | asked)
    return looked


def _neighbours(lane: Ints, offset: Ints) -> tuple[Ints, Ints]:
    """For each element the place behind the nearest one before it in its lane that was seen, and that of the nearest after it."""
    order = np.argsort(lane, kind="stable")
    low, high = np.empty((2, len(lane)), np.int64)
    low[order] = _nearest_before(lane[order], offset[order], -1) + 1
    high[order] = _nearest_before(lane[order][::-1], offset[order][::-1], MAX_OFFSET)[::-1]
    return low, high


def _nearest_before(lane: Ints, offset: Ints, none: int) -> Ints:
    """For each element the offset of the last one up to it in its lane that has one."""
    last = np.maximum.accumulate(np.where(offset >= 0, np.arange(len(lane)), 0))
    return np.where((offset[last] >= 0) & (lane[last] == lane), offset[last], none)
