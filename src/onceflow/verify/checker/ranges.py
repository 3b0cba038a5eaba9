"""Sets of places, kept as ranges that do not overlap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onceflow.verify.history.coding import Ints
from onceflow.verify.history.columns import Mask


@dataclass(frozen=True, slots=True)
class Ranges:
    """Half-open ranges in ascending order."""

    low: Ints
    high: Ints

    @classmethod
    def of(cls, low: Ints, high: Ints) -> Ranges:
        """The union of ranges that may overlap and come in any order."""
        if not len(low):
            return cls(low, high)
        order = np.argsort(low, kind="stable")
        low, reach = low[order], np.maximum.accumulate(high[order])
        begins = np.concatenate([[True], low[1:] > reach[:-1]])
        ends = np.concatenate([begins[1:], [True]])
        return cls(low[begins], reach[ends])

    def contain(self, places: Ints) -> Mask:
        """For each place, whether a range holds it."""
        index = np.searchsorted(self.low, places, side="right") - 1
        found = index >= 0
        if len(self.high):
            found &= places < self.high[index]
        return found

    def overlap(self, low: Ints, high: Ints) -> Mask:
        """For each pair of bounds, whether anything of a range lies between them."""
        return np.searchsorted(self.high, low, side="right") < np.searchsorted(self.low, high)

    def index(self, places: Ints) -> Ints:
        """For each place the number of the range that holds it, or -1."""
        return np.where(self.contain(places), np.searchsorted(self.low, places, side="right") - 1, -1)
