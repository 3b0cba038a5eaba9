"""What several checks need to know of a history: who wrote what was read, what was read, in which order records stand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar, cast

import numpy as np

from onceflow.verify.checker.attempts import Attempts
from onceflow.verify.checker.positions import Proofs
from onceflow.verify.checker.ranges import Ranges
from onceflow.verify.checker.writers import writers_of
from onceflow.verify.history.coding import Ints, dense, distinct
from onceflow.verify.history.columns import Columns, Mask
from onceflow.verify.history.schema import MAX_OFFSET, OFFSET_BITS, Kind, Status

NOBODY = -1
T = TypeVar("T")


def place(key: Ints, offset: Ints | int) -> Ints:
    """One number for a key and an offset; numbers of one key lie together, in the order of offsets."""
    return (key << OFFSET_BITS) | offset


def offset_of(places: Ints) -> Ints:
    """The offset in each of these places."""
    return places & MAX_OFFSET


class Evidence:
    """A history and what follows from it, computed when first asked for and then kept. Nothing of it ever changes."""

    def __init__(self, history: Columns) -> None:
        self.history = history
        self._derived: dict[object, object] = {}

    def once(self, derive: Callable[[Evidence], T]) -> T:
        """What ``derive`` makes of this evidence, made once for all checks that ask."""
        if derive not in self._derived:
            self._derived[derive] = derive(self)
        return cast("T", self._derived[derive])

    @cached_property
    def sends(self) -> Ints:
        """The rows that send."""
        return self.history.rows(Kind.SEND)

    @cached_property
    def polls(self) -> Ints:
        """The rows that poll."""
        return self.history.rows(Kind.POLL)

    @cached_property
    def effects(self) -> Ints:
        """The rows that found an effect which somebody said that he would apply: at a target, a key that is no partition."""
        history = self.history
        rows = history.rows(Kind.EFFECT)
        found: Ints = rows[(history.status[rows] == Status.OK) & self.is_target[history.key[rows]]]
        return found

    @cached_property
    def is_target(self) -> Mask:
        """For each key whether effects are found there that ``send`` rows told of; then nothing of it has a place in a log."""
        sent = np.zeros(len(self.history.keys), bool)
        if np.any(self.has_effects_only):
            sent[self.history.key[self.sends]] = True
        return self.has_effects_only & sent

    @cached_property
    def has_effects_only(self) -> Mask:
        """For each key whether effects are found there, and nothing of it has a place in a log, told of or not."""
        history = self.history
        target = np.zeros(len(history.keys), bool)
        target[history.key[history.rows(Kind.EFFECT)]] = True
        if np.any(target):
            target[history.key[self.polls]] = False
            target[history.key[self.sends[history.offset[self.sends] >= 0]]] = False
        return target

    @cached_property
    def record(self) -> Ints:
        """A number for each row's (key, value), -1 where a row has none: what the writer meant as one event."""
        history = self.history
        both = np.where(
            (history.value >= 0) & (history.key >= 0), history.key * len(history.values) + history.value, -1
        )
        return dense(both)

    @cached_property
    def writer(self) -> Ints:
        """For each row that polls the row that sent what it read, or NOBODY; the same of an effect that was found."""
        return writers_of(self.history, self.sends, np.concatenate([self.polls, self.effects]), self.record)

    @cached_property
    def read(self) -> Mask:
        """For each row that sends, whether anybody read it, or found its effect, or may have.

        A value read at an offset that no acknowledgement explains may be that of any attempt without a known offset.
        """
        history, writer = self.history, self.writer[self.polls]
        unexplained = np.zeros(int(self.record.max(initial=-1)) + 2, bool)  # one more, for rows without a record
        unexplained[self.record[self.polls[history.offset[writer] != history.offset[self.polls]]]] = True
        unexplained[self.record[self.effects]] = True
        may_be: Mask = (history.kind == Kind.SEND) & (history.offset < 0) & unexplained[self.record]
        may_be[writer[writer != NOBODY]] = True
        return may_be

    @cached_property
    def visible(self) -> Ints:
        """The polls of what may be seen: all but those whose writer failed for certain."""
        writer = self.writer[self.polls]
        shown: Ints = self.polls[(writer == NOBODY) | (self.history.status[writer] != Status.FAIL)]
        return shown

    @cached_property
    def seen_unit(self) -> Mask:
        """For each unit, whether anything that it sent was read, for certain."""
        seen: Mask = self.sighting >= 0
        return seen

    @cached_property
    def sighting(self) -> Ints:
        """For each unit the first row that read anything that it sent, or found its effect, for certain; -1 for none.

        A value that several attempts may have written proves none of them, unless its offset tells which::

            attempt 1 sends v, its outcome is unknown (it was aborted)
            attempt 2 sends v, its outcome is unknown (it was committed)        v is read once
        """
        history, rows = self.history, np.concatenate([self.polls, self.effects])
        writer = self.writer[rows]
        writers = self.sends[history.status[self.sends] != Status.FAIL]
        attempts = np.bincount(self.record[writers], minlength=int(self.record.max(initial=-1)) + 1)
        same_place = (history.offset[writer] == history.offset[rows]) & (history.offset[rows] >= 0)
        certain = ((attempts[self.record[rows]] == 1) | same_place) & (writer != NOBODY)
        first = np.full(int(history.unit.max(initial=-1)) + 1, -1, np.int64)
        first[history.unit[writer[certain][::-1]]] = rows[certain][::-1]
        return first

    @cached_property
    def seen_position(self) -> Ints:
        """For each unit of unknown outcome the row that saw a position which only that unit can have given, -1 for none."""
        return self._proofs.alone(self.history)

    @cached_property
    def _proofs(self) -> Proofs:
        return Proofs.of(self.history, self.polls, self.surely_after)

    @cached_property
    def happened(self) -> Mask:
        """For each row, whether what it says certainly happened: sent and committed, or asked and answered.

        A transaction of unknown outcome counts if anything that it sent was read, or if its group was seen at a position
        that it gave: then it was committed, and wholly.
        """
        history = self.history
        happened: Mask = history.status == Status.OK
        unknown = np.flatnonzero((history.status == Status.INFO) & history.in_txn)
        committed = self.seen_unit | (self.seen_position >= 0)
        happened[unknown] = committed[history.unit[unknown]]
        return happened

    @cached_property
    def committed(self) -> Ints:
        """The rows that sent what must be in the log; where that is not known which of several, one of them."""
        rows: Ints = self.sends[self.happened[self.sends]]
        return distinct(np.concatenate([rows, self.of_some_attempt])) if len(self.of_some_attempt) else rows

    @cached_property
    def of_some_attempt(self) -> Ints:
        """Of each unread record that one of several attempts committed, nobody knows which, a row that sent it."""
        shown = np.concatenate([self.visible, self.effects])
        return self.attempts.certain(self.history, self.record[shown], self._proofs)

    @cached_property
    def attempts(self) -> Attempts:
        """The records that nobody knows of which attempt they are."""
        return Attempts.of(self.history, self.sends, self.record)

    @cached_property
    def op_end(self) -> Ints:
        """For each operation its last row: histories are written in the order in which operations complete."""
        return _last_rows(self.history.op)

    @cached_property
    def unit_end(self) -> Ints:
        """For each unit its last row."""
        return _last_rows(self.history.unit)

    @cached_property
    def begun_after(self) -> Ints:
        """For each operation the last row of the one before it of the same process, -1 for the first.

        When an operation began no history says; but a process does one thing after the other.
        """
        process = self.history.process[self.op_end]
        order = np.lexsort((self.op_end, process))
        before = np.full(len(self.op_end), -1, np.int64)
        same = process[order[1:]] == process[order[:-1]]
        before[order[1:][same]] = self.op_end[order[:-1][same]]
        return before

    def surely_after(self, earlier: Ints, later: Ints) -> Mask:
        """For each pair of rows whether the second one's unit took effect after all of the first one's had ended.

        A transaction is committed when all of its operations have begun.
        """
        unit, ends = self.history.unit, self.unit_end
        after: Mask = self.begun_after[self.history.op[ends[unit[later]]]] >= ends[unit[earlier]]
        return after

    def last_said(self, kind: Kind) -> Ints:
        """For each key the last row of this kind whose operation was answered, -1 for none."""
        rows = self.history.rows(kind)
        rows = rows[self.happened[rows]]
        last = np.full(len(self.history.keys), -1, np.int64)
        last[self.history.key[rows]] = rows
        return last

    @cached_property
    def gone(self) -> Ranges:
        """What the log may have dropped."""
        rows = self.history.rows(Kind.GONE)
        rows = rows[self.history.offset[rows] < self.history.until[rows]]
        rows = rows[self.history.status[rows] != Status.FAIL]
        return Ranges.of(place(self.history.key[rows], self.history.offset[rows]), self._until(rows))

    @cached_property
    def known(self) -> Ints:
        """The places, in order, of every record that may be seen, was seen, and was not dropped later."""
        places = distinct(place(self.history.key[self.visible], self.history.offset[self.visible]))
        return places[~self.gone.contain(places)]

    @cached_property
    def known_poll(self) -> Ints:
        """For each known record a row that polled it."""
        places = place(self.history.key[self.visible], self.history.offset[self.visible])
        order = np.argsort(places, kind="stable")
        return self.visible[order[np.searchsorted(places[order], self.known)]]

    def records_between(self, low: Ints, high: Ints) -> Ints:
        """How many known records stand from place ``low`` up to, and without, ``high``: gaps of markers are none."""
        return np.searchsorted(self.known, high) - np.searchsorted(self.known, low)

    @cached_property
    def sent_offset(self) -> Ints:
        """For each row that sends the offset it was acknowledged with, or else was first read at; -1 where unknown.

        First by place: a repetition further behind is that, and does not put the record itself out of order.
        """
        offsets = self.history.offset.copy()
        read_by = self.polls[self.writer[self.polls] != NOBODY]
        read_by = read_by[offsets[self.writer[read_by]] < 0]
        read_by = read_by[
            np.argsort(-self.history.offset[read_by], kind="stable")
        ]  # of equal senders the last one stays
        offsets[self.writer[read_by]] = self.history.offset[read_by]
        return offsets

    @cached_property
    def highest_read(self) -> Ints:
        """For each key the highest offset that anybody read, -1 for none."""
        highest = np.full(len(self.history.keys), -1, np.int64)
        if len(self.known):
            keys = self.known >> OFFSET_BITS
            last = np.flatnonzero(np.diff(keys, append=-1))
            highest[keys[last]] = offset_of(self.known[last])
        return highest

    def _until(self, rows: Ints) -> Ints:
        return place(self.history.key[rows], self.history.until[rows])


def _last_rows(group: Ints) -> Ints:
    last = np.empty(int(group.max(initial=-1)) + 1, np.int64)
    last[group] = np.arange(len(group))
    return last
