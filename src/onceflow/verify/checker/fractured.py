"""Positions seen together that never stood together: one is of a transaction, another one is from before it.

What a transaction gives becomes visible at once, and who asks for several positions in one operation is told how all of them
stood at one moment. So a position that nobody had been given before a transaction shows that all that it gave is there, or what
came later::

    transaction 1 commits position 2 of a and position 2 of b
    transaction 2 commits position 4 of a and position 4 of b
    a is seen at 4 and, in the same operation, b at 2           of transaction 2 a half is there

This is the fractured read of RAMP transactions (Bailis et al., 2014), of what a group has committed: offsets without the progress
that belongs to them, or the other way round. At the end of a run nothing of it may be left, for whoever goes on mends it.

It is accused only where it must be one::

    a look began before transaction 1 and ended behind it           what it saw may be from before the history
    the other position is of a transaction of unknown outcome       it may have been committed late, behind transaction 2
    it is of two transactions, and one of them came later           it is that one's
    what shows transaction 2 another one gave, too                  it may be of that, unless that came later
    transaction 2 gave its part before transaction 1 had ended      which of them was applied last nobody knows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from onceflow.verify.checker.evidence import Evidence
from onceflow.verify.checker.positions import first_polled, given_positions, lanes, seen_positions
from onceflow.verify.history.coding import Ints, among, dense, expanded, lowest
from onceflow.verify.history.columns import Columns, Mask
from onceflow.verify.history.schema import OFFSET_BITS, Status

_NEVER = np.iinfo(np.int64).max


def fractured(evidence: Evidence) -> tuple[Ints, Ints, Ints]:
    """Rows: a position from before a transaction, one of that transaction that was seen with it, and what that gave instead.

    Each position that is accused is so once.
    """
    told = _Told.of(evidence)
    looks = _Looks.of(evidence.history, told)
    seen, shown, gave = _older(evidence, told, looks, looks.that_show(evidence, told))
    seen, first = np.unique(seen, return_index=True)
    return seen, shown[first], gave[first]


@dataclass(frozen=True, slots=True)
class _Told:
    """Every position that may be: given by a transaction that may have been committed, or seen.

    ``rows`` with the ``lane`` of each (a group on a key), and its ``spot``: an offset on a lane. For each spot: ``giver`` is a
    row of the first transaction that gave it, if whoever stands there was given it by that one or behind it, else -1; ``over`` is
    the row with which the last of all that gave it ended, beyond all where nobody gave it, or one of them may have been committed
    later than it ended.
    """

    rows: Ints
    lane: Ints
    spot: Ints
    given: Mask
    giver: Ints
    over: Ints

    @classmethod
    def of(cls, evidence: Evidence) -> Self:
        history, given = evidence.history, given_positions(evidence.history)
        rows = np.sort(np.concatenate([given, seen_positions(history)]))
        lane, is_given = lanes(history, rows), among(rows, given)
        spot = dense((lane << OFFSET_BITS) | history.offset[rows])
        by, count = spot[is_given], int(spot.max(initial=-1)) + 1
        first = lowest(spot, rows, count)
        shows = among(first, given)
        shows[by[~_behind(evidence, first[by], given)]] = False
        is_sure = history.status[given] == Status.OK
        ends = np.where(is_sure, evidence.unit_end[history.unit[given]], _NEVER)
        over = np.full(count, -1)
        np.maximum.at(over, by, ends)
        return cls(rows, lane, spot, is_given, np.where(shows, first, -1), np.where(over < 0, _NEVER, over))


def _behind(evidence: Evidence, first: Ints, given: Ints) -> Mask:
    """For each position that was given whether its transaction is that of the first one, or came behind it, for certain.

    Whichever of them is seen, the first one is committed::

        transaction 1 gives 4 of a, and 2 of b
        transaction 2 gives 4 of a, and 3 of b      it had no input of a
        a is seen at 4                              it may be of either
    """
    history, other = evidence.history, evidence.history.unit[given] != evidence.history.unit[first]
    sure = (history.status[given] == Status.OK) & (history.status[first] == Status.OK)
    behind: Mask = ~other
    behind[other] = sure[other] & evidence.surely_after(first[other], given[other])
    return behind


@dataclass(frozen=True, slots=True)
class _Looks:
    """The positions that were seen together with another one of their group, each of another key.

    ``row``, its ``lane`` and ``spot``, and ``look``: the same number for those that were seen together.
    """

    row: Ints
    lane: Ints
    spot: Ints
    look: Ints

    @classmethod
    def of(cls, history: Columns, told: _Told) -> Self:
        row, lane, spot = (each[~told.given] for each in (told.rows, told.lane, told.spot))
        look = dense(history.op[row] * (int(history.group.max(initial=-1)) + 2) + history.group[row] + 1)
        # A key that was asked for twice was asked for at two moments.
        order = np.lexsort((lane, look))
        again = order[1:][(np.diff(look[order]) == 0) & (np.diff(lane[order]) == 0)]
        kept = ~among(look, look[again]) & (np.bincount(look)[look] > 1)
        return cls(row[kept], lane[kept], spot[kept], look[kept])

    def that_show(self, evidence: Evidence, told: _Told) -> Ints:
        """The numbers of those that show that their giver was committed, where something is older than that."""
        oldest = lowest(self.look, told.over[self.spot], int(self.look.max(initial=-1)) + 1)[self.look]
        giver = told.giver[self.spot]
        shows = np.flatnonzero(giver >= 0)
        shows = shows[oldest[shows] < evidence.unit_end[evidence.history.unit[giver[shows]]]]  # hardly any
        return shows[_came(evidence, told, giver[shows], self.row[shows], self.lane[shows])]


def _came(evidence: Evidence, told: _Told, giver: Ints, seen: Ints, lane: Ints) -> Mask:
    """For each position that was given, and seen, whether its group cannot have stood there before.

    It stood elsewhere, and was looked at after that; or the transaction took records below for it.
    """
    history = evidence.history
    certain = ~told.given | (history.status[told.rows] == Status.OK)
    first = lowest(told.lane[certain], told.rows[certain], int(told.lane.max(initial=-1)) + 1)[lane]
    came: Mask = first < giver
    came[came] = evidence.surely_after(first[came], seen[came])
    came |= first_polled(history, evidence.polls, giver) < history.offset[giver]
    return came


def _older(evidence: Evidence, told: _Told, looks: _Looks, shown: Ints) -> tuple[Ints, Ints, Ints]:
    """Of each transaction that a look shows what it gave, and the look saw to be from before it.

    As the rows that saw it, those that show the transaction, and those that gave.
    """
    history, giver = evidence.history, told.giver[looks.spot[shown]]
    given, lane = told.rows[told.given], told.lane[told.given]
    order = np.argsort(history.unit[given], kind="stable")
    given, lane = given[order], lane[order]
    begin, end = (np.searchsorted(history.unit[given], history.unit[giver], side) for side in ("left", "right"))
    gave, shows = expanded(begin, end, shown)
    seen = _seen_there(looks, looks.look[shows], lane[gave])
    began = evidence.begun_after[history.op[given[gave]]]
    older = (seen >= 0) & (began >= told.over[looks.spot[seen]])
    return looks.row[seen[older]], looks.row[shows[older]], given[gave[older]]


def _seen_there(looks: _Looks, look: Ints, lane: Ints) -> Ints:
    """For each pair the number of the position that this look saw on this lane, -1 for none."""
    lanes_known = int(max(looks.lane.max(initial=-1), lane.max(initial=-1))) + 1
    known, wanted = looks.look * lanes_known + looks.lane, look * lanes_known + lane
    order = np.argsort(known, kind="stable")
    at = np.append(order, -1)[np.searchsorted(known[order], wanted)]
    return np.where(np.append(known, -1)[at] == wanted, at, -1)
