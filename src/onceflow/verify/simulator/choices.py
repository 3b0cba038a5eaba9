"""Every decision of a run that is not forced, in one place: drawn from a seed, or taken from the record of another run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

Key = tuple[str, int]
"""A decision: its kind (``scenario.KINDS``), and the how manieth of its kind it is. So leaving out a fault of one kind leaves
those of other kinds where they are."""

Taken = Mapping[Key, int]
"""Which decisions were not the usual one, and the option taken."""


@dataclass(frozen=True, slots=True)
class Point:
    """A decision that a run came to, and how many options it had."""

    key: Key
    options: int


class Choices:
    """Option 0 of each decision is what happens without a fault.

    Random runs take another option with the probability that ``rates`` give the decision's kind. With ``forced`` nothing is
    random: the decisions it names are taken, all others are the usual ones. Kinds without a rate are no decisions.
    """

    def __init__(self, seed: int, rates: Mapping[str, float], forced: Taken | None = None) -> None:
        self._random = Random(seed)  # noqa: S311  no secret
        self._rates = rates
        self._forced = forced
        self.taken: dict[Key, int] = {}
        self.points: list[Point] = []
        self.quiet = False  # the faults are over
        self._made: Counter[str] = Counter()

    def pick(self, kind: str, options: int) -> int:
        """The option taken, 0 to ``options`` - 1."""
        rate = self._rates.get(kind, 0.0)
        if self.quiet or rate == 0.0:
            return 0
        key = (kind, self._made[kind])
        self._made[kind] += 1
        self.points.append(Point(key, options))
        option = self._option(key, rate, options)
        if option:
            self.taken[key] = option
        return option

    def _option(self, key: Key, rate: float, options: int) -> int:
        if self._forced is not None:
            return min(self._forced.get(key, 0), options - 1)
        return self._random.randrange(1, options) if self._random.random() < rate else 0
