"""Records of which it is certain that they were committed, though not by which attempt.

::

    attempt 1 sends a and b, its outcome is not known
    attempt 2 sends a and b, its outcome is not known
    a reader gets a, nobody knows of which attempt        b was committed with it, whichever that was

The attempts that may have written the record read are its senders; every record that has the very same senders is in the log.
A position that was seen, and that only these attempts can have given, says the same as a record that was read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onceflow.verify.checker.positions import Proofs
from onceflow.verify.history.coding import Ints, among
from onceflow.verify.history.columns import Columns, Mask
from onceflow.verify.history.schema import Status


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts of unknown outcome at records of which no offset and no answer tells the attempts apart.

    ``rows`` send them, one for each record and unit; ``several`` says for each record whether more than one unit does, and
    ``senders`` which these are: a number that is the same for the same units.
    """

    rows: Ints
    record: Ints  # of each of the rows
    several: Mask
    senders: Ints

    @classmethod
    def of(cls, history: Columns, sends: Ints, record: Ints) -> Attempts:
        """Of all records, by the numbers that ``record`` gives for each row of the history."""
        count = int(record.max(initial=-1)) + 1
        rows = sends[history.status[sends] != Status.FAIL]
        told_apart = (history.status[rows] == Status.OK) | (history.offset[rows] >= 0) | ~history.in_txn[rows]
        unclear = np.ones(count, bool)
        unclear[record[rows[told_apart]]] = False
        rows = rows[unclear[record[rows]]]
        rows = np.sort(rows[np.unique(record[rows] * len(history.op) + history.unit[rows], return_index=True)[1]])
        several: Mask = np.bincount(record[rows], minlength=count) > 1
        return cls(rows, record[rows], several, _signatures(record[rows], history.unit[rows], count))

    def certain(self, history: Columns, shown: Ints, proofs: Proofs) -> Ints:
        """Of each unread record that must have been committed a row that sends it; ``shown`` are the records that were read."""
        givers = _signatures(proofs.spot, history.unit[proofs.rows], int(proofs.spot.max(initial=-1)) + 1)
        read = np.zeros(len(self.several), bool)
        read[shown] = True
        proved = np.concatenate([self.senders[self.several & read], givers])
        certain: Mask = self.several & ~read & among(self.senders, proved)
        last = np.full(len(self.several), -1, np.int64)
        last[self.record] = self.rows
        return np.sort(last[certain])


def _signatures(record: Ints, unit: Ints, count: int) -> Ints:
    """For each record a number that is the same for the same set of units: a sum of well mixed numbers."""
    sums = np.zeros(count, np.uint64)
    np.add.at(sums, record, _mixed(unit.astype(np.uint64)))
    return sums.view(np.int64)


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Splitmix64, which spreads small numbers over all 64 bits."""
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
