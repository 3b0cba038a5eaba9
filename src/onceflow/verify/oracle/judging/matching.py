"""Which expected record each record seen is.

Records are told by place and content alone, and contents repeat (a sum that comes back, a copy of a copy). Of one content on one
partition the n-th seen is the n-th expected, as long as there are as many. Where there are not, the neighbours decide::

    expected on a partition     a (batch 3)  x (batch 3)   b (batch 5)  x (batch 5)
    seen                        a            x             b
    the x seen stands between a and b, so it is that of batch 3, and that of batch 5 is missing

What is seen more often than it is expected is a repetition of the expected record that it stands next to. On one partition
records choose in their order, each the first that is left to it, so that none takes what belongs to one before it::

    expected on a partition     x (batch 1)  a (batch 1)   x (batch 2)  b (batch 2)   x (batch 3, planned and never run)
    seen                        x            a             x            b
    the second x may be that of batch 1 or 2; if it chose first, and took the former, the first x would be left with the latter

Where the partition is free, offsets of different partitions are compared, which tells nothing of the order. Which record of
such a group is which stays open (``Matching.guessed``), and no order may be judged by it::

    expected   x (batch 0)  x (batch 1)
    seen       x at offset 70 of partition 0, x at offset 5 of partition 1: either may be the one of batch 0
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onceflow.verify.history.coding import Ints

NOTHING = -1
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records expected, in the order of batches. ``lane`` numbers the partition, or the topic where that is free."""

    lane: Ints
    content: Ints
    batch: Ints
    is_wide: Mask  # whether the lane is a topic


@dataclass(frozen=True, slots=True)
class Found:
    """The records seen, each place and content once. ``partition`` numbers the partition where it stands."""

    lane: Ints
    content: Ints
    partition: Ints
    offset: Ints


@dataclass(frozen=True, slots=True)
class Matching:
    """For each record found the expected one that it is (NOTHING for none), and whether another one was that already."""

    wanted: Ints
    again: Ints  # 1 where it is a repetition
    guessed: Mask  # for each expected record, whether another one of its lane and content, of another batch, may be the one found

    def found_by(self, count: int) -> Ints:
        """For each of ``count`` expected records the number of the record found, NOTHING for none."""
        found = np.full(count, NOTHING, np.int64)
        first = np.flatnonzero((self.wanted != NOTHING) & (self.again == 0))
        found[self.wanted[first]] = first
        return found


def match(wanted: Wanted, found: Found) -> Matching:
    """Matches what was found with what was expected."""
    groups = _Groups(wanted, found)
    guessed = wanted.is_wide & differs_in(np.stack([wanted.lane, wanted.content]), wanted.batch)
    result = np.full(len(found.lane), NOTHING, np.int64)
    again = np.zeros(len(found.lane), np.int64)
    even = groups.is_even[groups.of_found]
    result[groups.found[even]] = groups.nth_wanted(even)
    uneven = np.flatnonzero(~groups.is_even & (groups.wanted_count > 0) & (groups.found_count > 0))
    if len(uneven):
        neighbours = _Neighbours(np.where(guessed, NOTHING, wanted.batch), found, result)
        for group in uneven.tolist():
            _match_uneven(groups.members(group), wanted, neighbours, result, again)
    return Matching(result, again, guessed)


def differs_in(groups: npt.NDArray[np.int64], values: Ints) -> Mask:
    """For each column of ``groups`` whether equal columns have more than one of ``values``."""
    if not len(values):
        return np.zeros(0, bool)
    order = np.lexsort((values, *groups))
    new = np.ones(len(order), bool)
    new[1:] = np.any(np.diff(groups[:, order]) != 0, axis=0)
    group = np.cumsum(new) - 1
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(order)) - 1
    differs = np.empty(len(order), bool)
    differs[order] = (values[order][starts] != values[order][ends])[group]
    return differs


class _Groups:
    """Records of one lane and content: those expected in order, then those found in order."""

    def __init__(self, wanted: Wanted, found: Found) -> None:
        self._first_found = len(wanted.lane)
        lane = np.concatenate([wanted.lane, found.lane])
        content = np.concatenate([wanted.content, found.content])
        place = np.concatenate([np.arange(len(wanted.lane)), found.offset])
        side = np.repeat([0, 1], [len(wanted.lane), len(found.lane)])
        order = np.lexsort((place, side, content, lane))
        changes = (lane[order][1:] != lane[order][:-1]) | (content[order][1:] != content[order][:-1])
        group = np.concatenate([[0], np.cumsum(changes)])[: len(order)]
        is_found = side[order] == 1
        count = int(group.max(initial=-1)) + 1
        self.wanted = order[~is_found]
        self.found = order[is_found] - self._first_found
        self.of_found = group[is_found]
        self.wanted_count = np.bincount(group[~is_found], minlength=count)
        self.found_count = np.bincount(self.of_found, minlength=count)
        self.is_even = self.wanted_count == self.found_count
        self._wanted_start = np.concatenate([[0], np.cumsum(self.wanted_count)])
        self._found_start = np.concatenate([[0], np.cumsum(self.found_count)])

    def nth_wanted(self, mask: Mask) -> Ints:
        """For the records found in ``mask`` the expected one with the same number in its group."""
        group = self.of_found[mask]
        rank = np.flatnonzero(mask) - self._found_start[group]
        nth: Ints = self.wanted[self._wanted_start[group] + rank]
        return nth

    def members(self, group: int) -> tuple[list[int], list[int]]:
        """The records of a group, expected and found."""
        wanted = self.wanted[self._wanted_start[group] : self._wanted_start[group + 1]]
        found = self.found[self._found_start[group] : self._found_start[group + 1]]
        return wanted.tolist(), found.tolist()


class _Neighbours:
    """Between which batches each record found stands, told by what is matched already before and behind it."""

    def __init__(self, wanted_batch: Ints, found: Found, matched: Ints) -> None:
        order = np.lexsort((found.offset, found.partition))
        batch = np.append(wanted_batch, NOTHING)[matched][order]
        begins = np.flatnonzero(np.diff(found.partition[order], prepend=NOTHING))
        self.low, self.high = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
        for part in np.split(np.arange(len(order)), begins[1:]):
            rows, known = order[part], batch[part]
            self.low[rows] = np.maximum.accumulate(known)
            above = np.where(known == NOTHING, np.iinfo(np.int64).max, known)
            self.high[rows] = np.minimum.accumulate(above[::-1])[::-1]

    def fits(self, found: int, batch: int) -> bool:
        return bool(self.low[found] <= batch <= self.high[found])

    def until(self, found: int) -> int:
        """The last batch that a record may belong to."""
        return int(self.high[found])


def _match_uneven(
    members: tuple[list[int], list[int]], wanted: Wanted, neighbours: _Neighbours, result: Ints, again: Ints
) -> None:
    free, seen = members
    every = list(free)
    rest = []
    for found in sorted(seen, key=neighbours.until):
        fitting = next((each for each in free if neighbours.fits(found, int(wanted.batch[each]))), None)
        if fitting is None:
            rest.append(found)
        else:
            result[found] = fitting
            free.remove(fitting)
    for found in rest:
        if free:
            result[found] = free.pop(0)
        else:
            beside = [each for each in every if wanted.batch[each] <= neighbours.low[found]]
            result[found], again[found] = (beside or every)[-1 if beside else 0], 1
