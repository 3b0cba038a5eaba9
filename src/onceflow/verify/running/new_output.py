"""When new output came into sight behind a loss: what drivers told of their commits, and what a reader saw, and when."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from onceflow.verify.oracle.judging.matching import NOTHING
from onceflow.verify.running.course import Course, Effect

NOBODY = 0
"""No driver's generation: those count from 1."""


@dataclass(frozen=True, slots=True)
class Sights:
    """When a reader saw each record first, in order, and the number of its batch (``NOTHING`` where that is not known)."""

    at_s: npt.NDArray[np.float64]
    batch: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Output:
    """What drivers began to make visible, what they told to be committed, and what was seen; in seconds, each in order."""

    begun: Sequence[Effect]
    told: Sequence[Effect]
    seen: Sights

    @classmethod
    def of(cls, course: Course, began_at: float, seen: Sights) -> Output:
        """That of a run which began at ``began_at`` (seconds since the epoch)."""
        return cls(_since(began_at, course.effects), _since(began_at, course.commits_told), seen)

    def new_since(self, at_s: float, struck: int = NOBODY) -> float | None:
        """When the first record came into sight of a batch that no process had begun to commit at ``at_s``; None: never.

        Nor does a batch count that the ``struck`` driver commits later still, for it is lost::

            10.00   SIGKILL to the JVM of driver 1, which has written batch 7
            10.02   its Python, which has not missed the JVM yet, commits what it has sent
            40.00   driver 2 commits batch 8: until then nobody could bring anything new

        A record of an older batch may be seen late, behind the beginning of the new commit. So its batch counts; where that is
        not known, a record counts that was seen behind the end of the new commit, as the driver told it::

             9.93   batch 6 is committed
            10.00   its coordinator is killed
            10.02   the commit of batch 7 begins, and hangs
            10.15   the reader gets the records of batch 6
            16.00   batch 7 is committed
        """
        doubtful = self._doubtful(at_s, struck)
        begins, told = (_first_new(each, at_s, struck, doubtful) for each in (self.begun, self.told))
        if begins is None:
            return None
        first = int(np.searchsorted(self.seen.at_s, begins.at))
        seen_s, batch = self.seen.at_s[first:], self.seen.batch[first:]
        is_behind = seen_s >= (math.inf if told is None else told.at)
        is_of_new = (batch >= begins.batch) & ~np.isin(batch, doubtful)
        new = np.flatnonzero(np.where(batch == NOTHING, is_behind, is_of_new))
        return float(seen_s[new[0]]) if len(new) else None

    def _doubtful(self, at_s: float, struck: int) -> list[int]:
        """A batch whose commit had begun may have been committed then, however its process ended. Only the newest can be in
        doubt; and where a checkpoint was lost and resumed, numbers begin at 0 again.
        """
        before = [each.batch for each in self.begun if each.at <= at_s]
        of_struck = [each.batch for each in self.begun if each.generation == struck]
        return [*before[-1:], *of_struck[-1:]]


def _first_new(commits: Iterable[Effect], at_s: float, struck: int, doubtful: Sequence[int]) -> Effect | None:
    others = (each for each in commits if each.at > at_s and each.generation != struck)
    return next((each for each in others if each.batch not in doubtful), None)


def _since(began_at: float, effects: Iterable[Effect]) -> list[Effect]:
    return sorted((replace(each, at=each.at - began_at) for each in effects), key=lambda each: each.at)
