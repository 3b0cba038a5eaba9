"""Order: what a process polls one after the other, and where what it sends one after the other comes to stand.

A process' position on a partition is known after each poll that it kept (an operation that committed), and where it says so
by an ``assign`` row. It is unknown after ``subscribe`` and ``crash``, and after a poll of unknown outcome, unless something
proves that its transaction was committed; but it is not before where the process stood for certain, nor, behind transactions,
behind all that these had polled. The polls of a failed operation move nothing, so that a consumer which goes on behind an
aborted transaction is caught::

    transaction 1 polls 0 to 4, commits
    transaction 2 polls 5 to 9, aborts          the consumer's own position is 10 now
    transaction 3 polls 10 to 14, commits       5 to 9 were skipped (KAFKA-17582)

In a consumer group partitions move between operations as they like: there only steps inside one operation or transaction,
and from a position that was stated, are judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.findings import findings
from onceflow.verify.checker.unanswered import Unanswered
from onceflow.verify.history.coding import Ints, among
from onceflow.verify.history.columns import Columns, Mask
from onceflow.verify.history.schema import MAX_OFFSET, Kind, Status


def poll_skip(evidence: Evidence) -> pa.Table:
    """A process' next operation began behind records that it had not read."""
    steps = evidence.once(PollSteps)
    return steps.found("poll_skip", steps.skips & steps.between_units)


def nonmonotonic_poll(evidence: Evidence) -> pa.Table:
    """A process' next operation went back and read again."""
    steps = evidence.once(PollSteps)
    return steps.found("nonmonotonic_poll", steps.goes_back & steps.between_units)


def int_poll_skip(evidence: Evidence) -> pa.Table:
    """Inside one operation or transaction a process skipped records."""
    steps = evidence.once(PollSteps)
    return steps.found("int_poll_skip", steps.skips & ~steps.between_units)


def int_nonmonotonic_poll(evidence: Evidence) -> pa.Table:
    """Inside one operation or transaction a process went back and read again."""
    steps = evidence.once(PollSteps)
    return steps.found("int_nonmonotonic_poll", steps.goes_back & ~steps.between_units)


def nonmonotonic_send(evidence: Evidence) -> pa.Table:
    """What a process sent in a later operation stands before what it sent in an earlier one."""
    rows, previous, same_unit = evidence.once(_send_steps)
    back = (evidence.sent_offset[rows] < evidence.sent_offset[previous]) & ~same_unit
    open_ended = evidence.once(Unanswered)
    return findings(
        evidence.history,
        "nonmonotonic_send",
        np.concatenate([rows[back], open_ended.before]),
        np.concatenate([previous[back], open_ended.witnesses]),
    )


def int_nonmonotonic_send(evidence: Evidence) -> pa.Table:
    """Inside one operation or transaction the records of a process stand in another order than it sent them in."""
    rows, previous, same_unit = evidence.once(_send_steps)
    back = evidence.sent_offset[rows] < evidence.sent_offset[previous]
    return findings(evidence.history, "int_nonmonotonic_send", rows[back & same_unit], previous[back & same_unit])


def int_send_skip(evidence: Evidence) -> pa.Table:
    """Records of others stand between those of one transaction. Legal: a log does not isolate writers."""
    rows, previous, same_unit = evidence.once(_send_steps)
    rows, previous = rows[same_unit], previous[same_unit]
    key, after = evidence.history.key[rows], evidence.sent_offset[previous] + 1
    others = evidence.records_between(place(key, after), place(key, evidence.sent_offset[rows])) > 0
    return findings(evidence.history, "int_send_skip", rows[others], previous[others])


@dataclass(frozen=True)
class _Steps:
    """Successive rows of one process on one partition: each of ``rows`` and the one before it."""

    rows: Ints
    previous: Ints

    @classmethod
    def of(cls, history: Columns, rows: Ints) -> _Steps:
        lane = history.process[rows] * (len(history.keys) + 1) + history.key[rows]
        if int(lane.max(initial=0)) < 1 << 16:
            lane = lane.astype(np.uint16)  # numpy sorts these by radix
        order = np.argsort(lane, kind="stable")
        rows, lane = rows[order], lane[order]
        same = lane[1:] == lane[:-1]
        return cls(rows[1:][same], rows[:-1][same])


class PollSteps:
    """Each kept poll whose process had a known position, and that position (after doubt the lowest and the furthest one)."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._history = history = evidence.history
        sessions = _Sessions(history)
        moves = history.rows(Kind.POLL, Kind.ASSIGN)
        is_poll = history.kind[moves] == Kind.POLL
        # A failed poll in a group moves nothing either, but the partition may have moved since: what was stated is stale.
        # And whoever seeks in a transaction has done so, whatever became of that.
        kept_though_failed = np.where(is_poll, sessions.in_group[moves], history.in_txn[moves])
        kept = (history.status[moves] != Status.FAIL) | kept_though_failed
        steps = _Steps.of(history, moves[kept])
        rows, previous = steps.rows, steps.previous
        self._stated = history.kind[previous] != Kind.POLL
        self._same_unit = history.unit[rows] == history.unit[previous]
        judged = (history.kind[rows] == Kind.POLL) & evidence.happened[rows]
        stood = history.offset[previous]
        in_doubt = history.status[previous] == Status.INFO
        stood[self._stated & in_doubt & ~history.in_txn[previous]] = -1  # whether it was done nobody knows
        doubtful = ~self._stated & ~evidence.happened[previous] & in_doubt
        judged &= self._stated | evidence.happened[previous] | doubtful
        judged &= stood >= 0
        judged &= sessions.number[rows] == sessions.number[previous]
        judged &= self._stated | self._same_unit | ~sessions.in_group[rows]
        self.rows, self.previous = rows[judged], previous[judged]
        after = np.minimum(stood + (history.kind[previous] == Kind.POLL), MAX_OFFSET)
        # Of an operation without an answer nobody knows what else it read.
        further = doubtful & ~history.in_txn[previous]
        ends = _Ends(after, stood < 0, doubtful, further, doubtful & self._same_unit)
        lowest, furthest = ends.positions(steps, sessions.number)
        self._lowest, self.position = lowest[judged], furthest[judged]
        self._stated, self._same_unit = self._stated[judged], self._same_unit[judged]

    @cached_property
    def between_units(self) -> Mask:
        across: Mask = self._stated | ~self._same_unit
        return across

    @cached_property
    def goes_back(self) -> Mask:
        back: Mask = self._history.offset[self.rows] < self._lowest
        return back

    @cached_property
    def skips(self) -> Mask:
        key, offset = self._history.key[self.rows], self._history.offset[self.rows]
        between = self._evidence.records_between(place(key, self.position), place(key, offset))
        skips: Mask = between > 0
        return skips

    def found(self, anomaly: str, mask: Mask) -> pa.Table:
        return findings(self._history, anomaly, self.rows[mask], self.previous[mask])


@dataclass(frozen=True)
class _Ends:
    """For each step where the process stands behind the row before it, if that did happen."""

    after: Ints
    unknown: Mask
    doubtful: Mask  # whether it did happen nobody knows
    further: Mask  # nor how far it went, perhaps further
    inside: (
        Mask  # of a unit in doubt, which goes on: there the process stands only if it did happen, and not behind that
    )

    def positions(self, steps: _Steps, session: Ints) -> tuple[Ints, Ints]:
        """For each step the lowest and the furthest place at which the process can stand before it: one, but after doubt.

        ::

            transaction 1 polls 0, commits              it stands at 1
            transaction 2 polls 1, in doubt             it stands at 1 again, or at 2
            transaction 3 polls 5, commits              2 to 4 were skipped in any case; had it polled 0, it had gone back

        Where it began is not known without an ``assign`` row or an earlier step: then it can stand anywhere.
        """
        lowest, furthest = self.after.copy(), self.after.copy()
        if not np.any(self.doubtful):
            return lowest, furthest
        previous = steps.previous
        begins = np.ones(len(previous), bool)
        begins[1:] = (previous[1:] != steps.rows[:-1]) | (session[previous[1:]] != session[previous[:-1]])
        lane = np.cumsum(begins) - 1
        at = np.flatnonzero(among(lane, lane[self.doubtful]))
        after, doubtful, begins = self.after[at], self.doubtful[at], begins[at]
        anywhere = self.unknown[at] | (begins & doubtful)
        # What came before a certain step says nothing of what comes behind it.
        certain: Ints = np.cumsum(~doubtful | begins, dtype=np.int64)
        least = _least(np.where(anywhere, 0, np.where(self.inside[at], MAX_OFFSET, after)), certain)
        most = _most(np.where(anywhere | self.further[at], MAX_OFFSET, after), certain)
        lowest[at] = np.where(doubtful, least, after)
        furthest[at] = np.where(doubtful, most, after)
        return lowest, furthest


def _most(numbers: Ints, group: Ints) -> Ints:
    """For each element the highest one up to it in its group; groups lie together and ascend."""
    values, rank = np.unique(numbers, return_inverse=True)
    band = group * len(values)
    most: Ints = values[np.maximum.accumulate(band + rank) - band]
    return most


def _least(numbers: Ints, group: Ints) -> Ints:
    """For each element the lowest one up to it in its group."""
    return -_most(-numbers, group)


class _Sessions:
    """For each row: how often its process subscribed or crashed before, and whether it reads as member of a group."""

    def __init__(self, history: Columns) -> None:
        self.number = np.zeros(len(history.op), np.int64)
        self.in_group = np.zeros(len(history.op), bool)
        changes = history.rows(Kind.SUBSCRIBE, Kind.CRASH)
        changes = changes[(history.status[changes] != Status.FAIL) | history.in_txn[changes]]
        if not len(changes):
            return
        order = np.argsort(history.process, kind="stable")
        is_change = np.zeros(len(order), bool)
        is_change[changes] = True
        is_change = is_change[order]
        self.number[order] = np.cumsum(is_change)  # goes on from one process to the next, which does no harm
        last = np.maximum.accumulate(np.where(is_change, np.arange(len(order)), 0))
        subscribed = history.kind[order[last]] == Kind.SUBSCRIBE
        self.in_group[order] = subscribed & (history.process[order[last]] == history.process[order])


def _send_steps(evidence: Evidence) -> tuple[Ints, Ints, Mask]:
    """Successive sends of one process on one partition that were committed, and whose offsets are known."""
    history = evidence.history
    sends = evidence.sends[evidence.happened[evidence.sends]]
    steps = _Steps.of(history, sends[evidence.sent_offset[sends] >= 0])
    return steps.rows, steps.previous, history.unit[steps.rows] == history.unit[steps.previous]
