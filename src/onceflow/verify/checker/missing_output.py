"""Where output that is missing should stand, and whether anybody looked there.

The order is kept, so it stands between what comes before it and what comes after it, as far as that is there::

    expected a b c, seen a at 0 and c at 7          b should stand at 1 to 6
    the log dropped 0 to 4                          it may have been dropped: it is not missing

Who looked before it was written proves nothing of it::

    the output is read to its end, which is 2
    transaction 2 consumes input, sends output, is committed        nobody looked for that
"""

from __future__ import annotations

import numpy as np

from onceflow.verify.checker.compared import Compared
from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.looks import Looks
from onceflow.verify.history.coding import Ints
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import MAX_OFFSET, Kind


def looked_for(evidence: Evidence, compared: Compared, processed_by: Ints) -> Mask:
    """For each expected record, whether it was looked for, if it is missing: by ``processed_by`` it should have been there.

    What is read proves that nothing comes before it any more, so that the moment matters only where nothing behind was read.
    """
    key, (low, high) = compared.expected.key, _neighbours(compared.lane, compared.offset)
    dropped = evidence.gone.overlap(place(key, low), place(key, high))
    to_the_end = _end_seen(evidence, key, low) >= processed_by
    looked: Mask = (key >= 0) & ~dropped & ((high < MAX_OFFSET) | to_the_end)
    return looked


def _end_seen(evidence: Evidence, key: Ints, low: Ints) -> Ints:
    """For each place the row by which all from there to the end of its key was last looked at, -1 if it was not.

    A window asks for what lies below the last stable offset, where nothing is written any more; so it is the last question for
    the end that counts. A key of which nobody said by a ``window`` what he asked for was read wholly, with each poll anew::

        the output is read, which is 0 and 1; log_end is 2
        transaction 2 is committed
        log_end is 2                                        transaction 2 wrote nothing: its output is missing
    """
    history, looks = evidence.history, evidence.once(Looks)
    asked = looks.last_from_here_to_end(place(np.maximum(key, 0), low)) >= 0
    read = np.full(len(history.keys) + 1, -1, np.int64)  # one more for a key that the history does not have
    read[history.key[evidence.polls]] = evidence.op_end[history.op[evidence.polls]]
    read[history.key[history.rows(Kind.WINDOW)]] = -1
    return np.maximum(np.where(asked, np.append(looks.ended(looks.log_end), -1)[key], -1), read[key])


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
