"""What each operation read of each partition, a *view*, and what of the transactions that it read was hidden from it.

Readers may ask for the same ranges again and again, and a transaction may have millions of records::

    transaction 1 sends 0 to 9,999
    reader polls 0, asks for 0 to 0
    reader polls 1, asks for 0 to 1         0 is hidden; and so on

So no view is gone through record by record. What an operation read of a transaction leaves *gaps* between, among the places of
that transaction, and of each gap only those places are looked at at which something of what was asked for begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onceflow.verify.checker.evidence import NOBODY, Evidence, place
from onceflow.verify.checker.ranges import Ranges
from onceflow.verify.history.coding import Ints, among, distinct
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import Kind

# Of a known record's number; above them stands what it belongs to: a view, an operation, a transaction.
_NUMBER_BITS = 32
_NUMBER = (1 << _NUMBER_BITS) - 1


@dataclass(frozen=True, slots=True)
class Hidden:
    """For each operation and transaction of which it read a part: a send that it did not read, one that it did, and that poll."""

    sends: Ints
    read: Ints
    polls: Ints


class Views:
    """All views, and what they should have found.

    What a view asked for is kept as ranges of known records, by their number in ``Evidence.known``, behind the view's number.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._history = history = evidence.history
        rows = np.concatenate([evidence.polls, history.rows(Kind.WINDOW)])
        rows = rows[evidence.happened[rows]]
        self._rows = rows[np.argsort(history.op[rows] * len(history.keys) + history.key[rows], kind="stable")]
        op, key = history.op[self._rows], history.key[self._rows]
        begins = np.concatenate([[True], (op[1:] != op[:-1]) | (key[1:] != key[:-1])])[: len(self._rows)]
        self._starts = np.flatnonzero(begins)
        self._op = op[self._starts]
        self._view = np.cumsum(begins) - 1
        self._is_read = history.kind[self._rows] == Kind.POLL
        self._asked = self._ranges()

    def hidden(self) -> Hidden:
        """Of each transaction the first record that an operation asked for and did not read, in the order of operations."""
        polls = self._polls_of_suspects()
        sends = self._evidence.writer[polls]
        of_txn = (sends != NOBODY) & self._history.in_txn[sends]
        op_txn = _together(self._history.op[polls[of_txn]], self._history.unit[sends[of_txn]])
        parts, last = np.unique(op_txn[::-1], return_index=True)
        witness = polls[of_txn][::-1][last]
        number, part = self._first_in_gaps(parts, *self._read_places(polls))
        order = np.argsort(_together(parts[part] >> _NUMBER_BITS, number))
        number, witness = number[order], witness[part[order]]
        return Hidden(self._sender[number], self._evidence.writer[witness], witness)

    def _ranges(self) -> Ranges:
        history, rows, view = self._history, self._rows, self._view
        explicit = np.zeros(len(self._starts), bool)
        explicit[view[~self._is_read]] = True
        places = place(history.key[rows], history.offset[rows])
        parts = self._parts(explicit)
        low, high = (_reduce(of, places, parts) for of in (np.minimum, np.maximum))
        polled = ~explicit[view[parts]]  # these views have polls only
        whole, low, high = view[parts[polled]], low[polled], high[polled]
        windows = rows[~self._is_read]
        until = place(history.key[windows], history.until[windows])
        return Ranges.of(
            np.concatenate([self._numbered(whole, low), self._numbered(view[~self._is_read], places[~self._is_read])]),
            np.concatenate([self._numbered(whole, high + 1), self._numbered(view[~self._is_read], until)]),
        )

    def _parts(self, explicit: Mask) -> Ints:
        """Where views begin, and inside of those without a window where they begin anew, behind an ``assign`` of the key.

        ::

            assign 5, poll 5, assign 0, poll 0          what lies between 0 and 5 nobody asked for
        """
        history = self._history
        assigns = history.rows(Kind.ASSIGN)
        first = self._rows[self._starts]
        names, codes = (history.op[rows] * len(history.keys) + history.key[rows] for rows in (first, assigns))
        at = np.searchsorted(names, codes)
        mine = np.append(names, -1)[at] == codes
        mine[mine] = ~explicit[at[mine]]
        view, assigns = at[mine], assigns[mine]
        split = np.zeros(len(self._starts) + 1, bool)
        split[view] = True
        rows = np.flatnonzero(split[self._view])  # in order inside of each view
        behind = np.searchsorted(_together(self._view[rows], self._rows[rows]), _together(view, assigns))
        behind, view = behind[behind < len(rows)], view[behind < len(rows)]
        anew = rows[behind]
        return distinct(np.concatenate([self._starts, anew[self._view[anew] == view]]))

    def _numbered(self, view: Ints, places: Ints) -> Ints:
        """For each place the number of the first known record from there on, behind the number of the view."""
        return _together(view, np.searchsorted(self._evidence.known, places))

    def _read_of_what_was_asked(self) -> Ints:
        """For each view how many of the known records that it asked for it read, each counted once."""
        history, rows = self._history, self._rows[self._is_read]
        places = place(history.key[rows], history.offset[rows])
        numbers = self._numbered(self._view[self._is_read], places)
        # Also one that is not known has a number: that of the next one.
        known = np.append(self._evidence.known, -1)[numbers & _NUMBER] == places
        read = np.sort(numbers[known], kind="stable")  # nearly sorted already
        read = read[np.diff(read, prepend=-1) != 0]
        return np.bincount(read[self._asked.contain(read)] >> _NUMBER_BITS, minlength=len(self._starts))

    def _polls_of_suspects(self) -> Ints:
        """The polls of operations that did not read all that they asked for, in order."""
        expected = np.zeros(len(self._starts), np.int64)
        np.add.at(expected, self._asked.low >> _NUMBER_BITS, self._asked.high - self._asked.low)
        suspect = np.zeros(int(self._op.max(initial=-1)) + 1, bool)
        suspect[self._op[expected != self._read_of_what_was_asked()]] = True
        polls = self._rows[self._is_read]
        chosen: Ints = polls[suspect[self._history.op[polls]]]
        return chosen

    def _read_places(self, polls: Ints) -> tuple[Ints, Ints]:
        """The operations of these polls, and the numbers of the known records at their places."""
        places = place(self._history.key[polls], self._history.offset[polls])
        number = np.searchsorted(self._evidence.known, places)
        known = np.append(self._evidence.known, -1)[number] == places
        return self._history.op[polls[known]], number[known]

    @cached_property
    def _sender(self) -> Ints:
        """For each known record the row that sent it, or NOBODY."""
        return self._evidence.writer[self._evidence.known_poll]

    @cached_property
    def _by_txn(self) -> Ints:
        """The numbers of the known records that transactions sent, behind that of the transaction, in order."""
        number = np.flatnonzero((self._sender != NOBODY) & self._history.in_txn[self._sender])
        return np.sort(_together(self._history.unit[self._sender[number]], number))

    @cached_property
    def _asked_by_op(self) -> Ranges:
        """What the views asked for, with the operation in the place of the view: its views lie in the order of keys."""
        op = self._op[self._asked.low >> _NUMBER_BITS]
        some = self._asked.low < self._asked.high
        low, high = self._asked.low[some], self._asked.high[some]
        return Ranges(_together(op[some], low & _NUMBER), _together(op[some], high & _NUMBER))

    def _first_in_gaps(self, parts: Ints, op: Ints, number: Ints) -> tuple[Ints, Ints]:
        """Numbers of records that were asked for and not read, the first of each part, and these parts (by their index).

        ``parts`` are pairs of operation and transaction; ``op`` and ``number`` say which operations read which records.
        """
        at, end, part = self._gaps(parts, op, number)
        found = np.full(len(parts), len(self._sender), np.int64)
        while len(at):
            here = self._by_txn[at] & _NUMBER
            begin = self._next_asked(parts[part] >> _NUMBER_BITS, here)
            hit = begin == here
            np.minimum.at(found, part[hit], here[hit])
            part, end, begin = part[~hit], end[~hit], begin[~hit]
            at = np.searchsorted(self._by_txn, _together(parts[part] & _NUMBER, begin))
            left = (at < end) & (begin < found[part])
            at, end, part = at[left], end[left], part[left]
        some = np.flatnonzero(found < len(self._sender))
        return found[some], some

    def _gaps(self, parts: Ints, op: Ints, number: Ints) -> tuple[Ints, Ints, Ints]:
        """Where in ``_by_txn`` the records lie that were not read: from, until, and of which part."""
        sender = self._sender[number]
        of_part = among(_together(op, np.where(sender == NOBODY, 0, self._history.unit[sender])), parts)
        of_part &= (sender != NOBODY) & self._history.in_txn[sender]
        txn, op, number = self._history.unit[sender[of_part]], op[of_part], number[of_part]
        read = distinct(
            _together(np.searchsorted(parts, _together(op, txn)), np.searchsorted(self._by_txn, _together(txn, number)))
        )
        # A gap begins with its transaction, or behind a record that was read, and ends where the next one is read.
        every, txn = np.arange(len(parts)), parts & _NUMBER
        first, behind = (np.searchsorted(self._by_txn, _together(each, 0)) for each in (txn, txn + 1))
        begins = np.sort(np.concatenate([_together(every, first), read + 1]))
        ends = np.sort(np.concatenate([_together(every, behind), read]))
        left = begins < ends
        return begins[left] & _NUMBER, ends[left] & _NUMBER, begins[left] >> _NUMBER_BITS

    def _next_asked(self, op: Ints, number: Ints) -> Ints:
        """For each record the first one from there on that this operation asked for; behind all records where there is none."""
        asked, here = self._asked_by_op, _together(op, number)
        at = np.searchsorted(asked.high, here, side="right")
        low = np.append(asked.low, -1)[at]
        return np.where(low >> _NUMBER_BITS == op, np.maximum(low, here) & _NUMBER, len(self._sender))


def _reduce(combine: np.ufunc, numbers: Ints, starts: Ints) -> Ints:
    return combine.reduceat(numbers, starts) if len(starts) else numbers


def _together(upper: Ints, number: Ints | int) -> Ints:
    return (upper << _NUMBER_BITS) | number
