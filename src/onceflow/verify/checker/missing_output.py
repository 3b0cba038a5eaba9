"""Output that is missing: where it should stand, and whether anybody looked there.

The order is kept, so it stands between what comes before it and what comes after it, as far as that is there::

    expected a b c, seen a at 0 and c at 7          b should stand at 1 to 6
    the log dropped 0 to 4                          it may have been dropped: it is not missing

Who looked before it was written proves nothing of it::

    the output is read to its end, which is 2
    transaction 2 consumes input, sends output, is committed        nobody looked for that
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from onceflow.verify.checker.compared import Compared
from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.looks import Looks
from onceflow.verify.checker.passed_over import passed_over
from onceflow.verify.checker.processed import consumed, processed, processed_by
from onceflow.verify.checker.ranges import Ranges
from onceflow.verify.checker.unproved import listed
from onceflow.verify.history.coding import Ints, among
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import MAX_OFFSET, Kind


@dataclass(frozen=True, slots=True)
class MissingOutput:
    """The expected records of processed input that nobody saw: those that are missing, and those of which nobody can tell.

    Of some the input was dropped (``dropped``), so that the group may never have had it::

        three sends are acknowledged at 0, 1 and 2
        retention drops 0 and 1
        transaction 1 polls 2, commits position 3           nothing is to come of 0 and 1
    """

    proved: Mask
    dropped: Mask
    unlooked: Mask

    @classmethod
    def of(cls, evidence: Evidence, compared: Compared, group: str | None) -> MissingOutput:
        absent = processed(evidence, compared, group) & ~compared.is_there
        if not np.any(absent):
            return cls(absent, absent, absent)
        dropped = absent & evidence.gone.contain(place(compared.input_key, compared.input_offset))
        dropped &= ~consumed(evidence, compared, group)
        looked = _looked_for(evidence, compared, processed_by(evidence, compared, group))
        return cls(absent & ~dropped & looked, dropped, absent & ~dropped & ~looked)

    def sentences(self, compared: Compared) -> Iterator[str]:
        """What nobody can tell."""
        if np.any(self.dropped):
            yield (
                f"{_records(compared, self.dropped)}: a range of the input is gone that had what leads to it, and nothing says "
                "that it was consumed before"
            )
        if np.any(self.unlooked):
            yield (
                f"{_records(compared, self.unlooked)}, which nobody saw: nobody asked for all that may have it when its input "
                "had been processed, or a range is gone"
            )


def _records(compared: Compared, mask: Mask) -> str:
    count = int(np.count_nonzero(mask))
    return f"{count:,} record{'s' if count > 1 else ''} of output on {listed(compared.where(mask))}"


def _looked_for(evidence: Evidence, compared: Compared, by: Ints) -> Mask:
    """For each expected record, whether it was looked for, if it is missing: by that row it should have been there.

    What is read proves that nothing comes before it any more, so that the moment matters only where nothing behind was read.
    """
    key, (low, high) = compared.expected.key, _neighbours(compared.lane, compared.offset)
    dropped = evidence.gone.overlap(place(key, low), place(key, high))
    to_the_end = _end_seen(evidence, key, low) >= by
    up_to_the_next = (high < MAX_OFFSET) & _asked_for(evidence, key, low, high)
    looked: Mask = (key >= 0) & ~dropped & (up_to_the_next | to_the_end)
    return looked


def _asked_for(evidence: Evidence, key: Ints, low: Ints, high: Ints) -> Mask:
    """For each range whether somebody asked for all of it, whoever it was for each part: by a window, or on his way behind it."""
    history, passed = evidence.history, evidence.once(passed_over)
    windows = history.rows(Kind.WINDOW)
    windows = windows[evidence.happened[windows] & (history.offset[windows] < history.until[windows])]
    begins, ends = (place(history.key[windows], bound[windows]) for bound in (history.offset, history.until))
    asked = Ranges.of(np.concatenate([passed.low, begins]), np.concatenate([passed.high, ends]))
    at = asked.index(place(key, low))
    read_wholly = ~among(key, history.key[history.rows(Kind.WINDOW)])
    return read_wholly | (low >= high) | ((at >= 0) & (np.append(asked.high, -1)[at] >= place(key, high)))


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
