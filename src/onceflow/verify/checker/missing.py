"""Records that were committed and that are not there.

Each is accused once, of the worst that it shows: ``torn_transaction`` if other records of its transaction are visible, or
where that is known to be committed by the position that it gave its group only,
``lost`` if records behind it were read, if the log ends before it, or if it was read and is gone (``vanished.py``), else
``unseen``, or ``effect_missing`` where it is an effect outside of the log, also one that was found once and is gone. These need
the word of a reader that it asked for the place: after the record was committed (a ``window`` row), without which the record may
yet come; or on its way to one behind it (``passed_over.py``). Who began behind a record proves nothing of it, as a consumer does
that begins at the end.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.bounds import lowest_offsets
from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.findings import findings, joined
from onceflow.verify.checker.looks import Looks
from onceflow.verify.checker.passed_over import passed_over
from onceflow.verify.checker.vanished import Vanished
from onceflow.verify.history.coding import Ints, among
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import MAX_OFFSET


class Missing:
    """The records of a history that were committed and never read; or, of other ``sends``, those that were not."""

    def __init__(self, evidence: Evidence, sends: Ints | None = None) -> None:
        self._evidence = evidence
        self._looks = evidence.once(Looks)
        self._sends = evidence.committed if sends is None else sends
        self.history = evidence.history

    @cached_property
    def unread(self) -> Ints:
        """Sent, read by nobody, and not dropped by retention or compaction, wherever it can stand."""
        rows = self._sends[~self._evidence.read[self._sends]]
        key, lowest = self.history.key[rows], lowest_offsets(self._evidence, rows)
        ranges = self._evidence.gone
        somewhere = ranges.overlap(place(key, lowest), place(key, MAX_OFFSET))
        return rows[~np.where(self.history.offset[rows] < 0, somewhere, ranges.contain(place(key, lowest)))]

    @cached_property
    def passed(self) -> Mask:
        """For each unread record, whether somebody read behind it, and it was asked for."""
        key, offset = self.history.key[self.unread], self.history.offset[self.unread]
        behind = (offset >= 0) & (offset < self._evidence.highest_read[key])
        return behind & (self.drained | self._evidence.once(passed_over).contain(place(key, offset)))

    @cached_property
    def log_end(self) -> Ints:
        """For each unread record the row that says, after it was committed, that the log ends before it, -1 for none.

        ::

            three sends are acknowledged at 0, 1 and 2
            the leader is lost, its followers had only 0 and 1
            all of the log is read, which is 0 and 1
        """
        end = self._looks.log_end[self.history.key[self.unread]]
        cut_off = (self.history.offset[end] <= self.history.offset[self.unread]) & self._looked_after(end)
        return np.where(cut_off, end, -1)

    @cached_property
    def drained(self) -> Mask:
        """For each unread record, whether its place, or each that can be its place, was looked at after it was committed."""
        places = place(self.history.key[self.unread], lowest_offsets(self._evidence, self.unread))
        anywhere = self._looks.last_from_here_to_end(places)
        is_known = self.history.offset[self.unread] >= 0
        return self._looked_after(np.where(is_known, self._looks.last_at(places), anywhere))

    @cached_property
    def torn(self) -> Mask:
        """For each unread record, whether others of its transaction were read, or a position that it gave was seen."""
        history, unread, evidence = self.history, self.unread, self._evidence
        seen = evidence.seen_unit | (evidence.seen_position >= 0)
        visible = seen[history.unit[unread]] | among(unread, evidence.of_some_attempt)
        return (self.passed | self.drained) & history.in_txn[unread] & visible

    @cached_property
    def unseen(self) -> Mask:
        """For each unread record, whether it was looked for in vain, and nothing worse can be said of it."""
        unseen: Mask = self.drained & ~self.passed & (self.log_end < 0) & ~self.torn
        return unseen

    @cached_property
    def at_a_target(self) -> Mask:
        """For each unread record, whether it is an effect to be found at a target, and nothing in a log."""
        target: Mask = self._evidence.is_target[self.history.key[self.unread]]
        return target

    def _looked_after(self, looks: Ints) -> Mask:
        """For each unread record, whether this look ended after it was committed."""
        after: Mask = self._looks.ended(looks) > self._evidence.unit_end[self.history.unit[self.unread]]
        return after


def torn_transaction(evidence: Evidence) -> pa.Table:
    """A transaction of which a part is visible and another part is missing."""
    missing, vanished = evidence.once(Missing), evidence.once(Vanished)
    unread, history = missing.unread[missing.torn], evidence.history
    torn = vanished.torn
    return joined(
        history,
        [
            findings(history, "torn_transaction", unread, *_what_was_seen_of(evidence, unread)),
            findings(
                history,
                "torn_transaction",
                vanished.rows[torn],
                vanished.writers[torn],
                vanished.looks[torn],
                vanished.rest[torn],
                detail=_VANISHED,
            ),
        ],
    )


def lost(evidence: Evidence) -> pa.Table:
    """A committed record that is gone: it was asked for and one behind it read, the log ends before it, or it was read once."""
    missing, vanished = evidence.once(Missing), evidence.once(Vanished)
    history, left = evidence.history, ~(vanished.torn | vanished.at_a_target)
    cut_off = (missing.log_end >= 0) & ~missing.passed & ~missing.torn
    return joined(
        history,
        [
            findings(history, "lost", missing.unread[missing.passed & ~missing.torn]),
            findings(history, "lost", missing.unread[cut_off], missing.log_end[cut_off], detail=_CUT_OFF),
            findings(
                history, "lost", vanished.rows[left], vanished.writers[left], vanished.looks[left], detail=_VANISHED
            ),
        ],
    )


def unseen(evidence: Evidence) -> pa.Table:
    """A committed record that nobody read, though a reader asked for its place afterwards."""
    missing = evidence.once(Missing)
    return findings(evidence.history, "unseen", missing.unread[missing.unseen & ~missing.at_a_target])


def effect_missing(evidence: Evidence) -> pa.Table:
    """An effect that a committed transaction or operation was to have, and that who looked for it last did not find."""
    history, missing, vanished = evidence.history, evidence.once(Missing), evidence.once(Vanished)
    gone = vanished.at_a_target & ~vanished.torn
    shown = vanished.rows[gone], vanished.writers[gone], vanished.looks[gone]
    return joined(
        history,
        [
            findings(history, "effect_missing", missing.unread[missing.unseen & missing.at_a_target]),
            findings(history, "effect_missing", *shown, detail=_VANISHED),
        ],
    )


_CUT_OFF = "the log ends before it"
_VANISHED = "it was seen, and the last look at its place did not give it"


def _what_was_seen_of(evidence: Evidence, rows: Ints) -> tuple[Ints, Ints]:
    """For each row a send of the same transaction that was read, and who saw its position, if nothing else proves it."""
    history = evidence.history
    read = evidence.sends[evidence.read[evidence.sends]]
    witness = np.full(len(evidence.seen_unit), -1, np.int64)
    witness[history.unit[read]] = read
    units = history.unit[rows]
    return witness[units], np.where(witness[units] < 0, evidence.seen_position[units], -1)
