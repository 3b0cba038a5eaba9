"""Positions of groups: which row speaks of which group on which partition, and which transaction a seen position proves.

A client that died while it committed does not know what became of its transaction. The group's position may tell::

    transaction 1 polls 0, commits position 1
    transaction 2 polls 1, sends v, commits position 2; its outcome is not known
    the group's position is seen to be 2                only transaction 2 gave that, so it was committed, and v with it

Whoever began after it was seen did not give it::

    the driver that took over reads from 1 on
    transaction 3 of it polls 1, commits position 2     record 1 is consumed twice
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from onceflow.verify.history.coding import Ints, among, dense, lowest
from onceflow.verify.history.columns import Columns, Mask
from onceflow.verify.history.schema import MAX_OFFSET, OFFSET_BITS, Kind, Status


def lanes(history: Columns, rows: Ints) -> Ints:
    """A number for each key and group."""
    return dense((history.key[rows] << OFFSET_BITS) | (history.group[rows] + 1))


def seen_positions(history: Columns) -> Ints:
    """The rows of positions that somebody saw committed; what was not answered says nothing."""
    rows = history.rows(Kind.POSITION)
    seen: Ints = rows[~history.in_txn[rows] & (history.status[rows] == Status.OK)]
    return seen


def given_positions(history: Columns) -> Ints:
    """The rows of positions that transactions gave which may have been committed."""
    rows = history.rows(Kind.POSITION)
    given: Ints = rows[history.in_txn[rows] & (history.status[rows] != Status.FAIL)]
    return given


def first_polled(history: Columns, polls: Ints, positions: Ints) -> Ints:
    """For each position the lowest offset that its transaction polled of the key for the group, MAX_OFFSET for none."""
    polls = polls[among(history.unit[polls], history.unit[positions])]
    rows = np.concatenate([positions, polls])
    lane = lanes(history, rows)
    taken = dense(history.unit[rows] * (int(lane.max(initial=0)) + 1) + lane)
    lowest = np.full(int(taken.max(initial=-1)) + 1, MAX_OFFSET)
    np.minimum.at(lowest, taken[len(positions) :], history.offset[polls])
    return lowest[taken[: len(positions)]]


@dataclass(frozen=True, slots=True)
class Proofs:
    """The positions given by transactions of unknown outcome that were seen committed, where none but they can have given them.

    ``rows`` are those that give them, ``seen`` those that saw them; of rows with the same ``spot`` any one may be the one.
    """

    rows: Ints
    spot: Ints
    seen: Ints

    @classmethod
    def of(cls, history: Columns, polls: Ints, surely_after: Callable[[Ints, Ints], Mask]) -> Proofs:
        """Of positions that nobody spoke of before, and that are new to the group: it stood elsewhere, or polled below.

        ``surely_after`` says for pairs of rows whether the second one's unit took effect after the first one's had ended.
        """
        said, saw = given_positions(history), seen_positions(history)
        rows = np.sort(np.concatenate([said, saw]))
        is_said = among(rows, said)
        unknown = is_said & (history.status[rows] == Status.INFO)
        lane = lanes(history, rows)
        spot = np.unique((lane << OFFSET_BITS) | history.offset[rows], return_inverse=True)[1]
        spots = int(spot.max(initial=-1)) + 1
        seen = lowest(spot, np.where(is_said, len(history.op), rows), spots)[spot]
        certain = lowest(lane, np.where(unknown, len(history.op), rows), int(lane.max(initial=-1)) + 1)[lane]
        possible = unknown & (seen < len(history.op))
        is_new = possible & (certain < rows)
        is_new[possible] |= first_polled(history, polls, rows[possible]) < history.offset[rows[possible]]
        too_late = is_said & (seen < rows) & among(spot, spot[is_new])
        too_late[too_late] = surely_after(seen[too_late], rows[too_late])
        first = is_said & (lowest(spot, rows, spots)[spot] == rows)
        others = is_said & ~is_new & ~too_late
        proved = is_said & ~too_late & among(spot, spot[first]) & ~among(spot, spot[others])
        return cls(rows[proved], spot[proved], seen[proved])

    def alone(self, history: Columns) -> Ints:
        """For each unit the row that saw a position which only that unit can have given, -1 for none."""
        is_alone = np.bincount(self.spot)[self.spot] == 1
        proof = np.full(int(history.unit.max(initial=-1)) + 1, -1, np.int64)
        proof[history.unit[self.rows[is_alone]]] = self.seen[is_alone]
        return proof
