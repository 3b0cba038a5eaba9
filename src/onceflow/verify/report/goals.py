"""Recovery times, and the goals that they are held against."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onceflow.verify.report.text import counted, seconds
from onceflow.verify.result import Lost, Recovery, RunResult

RECOVERY_P50_S = 5.0
RECOVERY_P99_S = 10.0
LSO_HELD_S = 10.0
_ENOUGH_FOR_P99 = 100


@dataclass(frozen=True, slots=True)
class Times:
    """Recovery times of one kind of fault. A recovery that never came counts as infinitely long, and is not left out."""

    fault: str
    sorted_s: tuple[float, ...]

    @classmethod
    def of(cls, recoveries: Iterable[Recovery], fault: str = "") -> Times:
        """The times of all of these."""
        return cls(fault, tuple(sorted(math.inf if each.seconds is None else each.seconds for each in recoveries)))

    def percentile(self, percent: int) -> float | None:
        """The nearest rank: the smallest time that so many percent of all reach; None when there is none."""
        if not self.sorted_s:
            return None
        return self.sorted_s[max(0, math.ceil(len(self.sorted_s) * percent / 100) - 1)]

    @property
    def median_s(self) -> float | None:
        """The time in the middle, the mean of the two there if they are an even number; None when there is none."""
        return statistics.median(self.sorted_s) if self.sorted_s else None

    @property
    def longest_s(self) -> float | None:
        return self.percentile(100)


def times_by_fault(recoveries: Sequence[Recovery]) -> list[Times]:
    """The times of each kind of fault, by name, and those of all kinds last if there are several."""
    kinds = sorted({each.fault for each in recoveries})
    found = [Times.of((each for each in recoveries if each.fault == kind), kind) for kind in kinds]
    return [*found, Times.of(recoveries, "all")] if len(kinds) > 1 else found


@dataclass(frozen=True, slots=True)
class Goal:
    """A time that was measured and must not be longer than ``limit_s``; None was not measured, infinity never ended."""

    name: str
    meaning: str
    limit_s: float
    measured_s: float | None
    samples: int

    @property
    def missed(self) -> bool:
        return self.measured_s is not None and self.measured_s > self.limit_s

    @property
    def state(self) -> str:
        if self.measured_s is None:
            return "not measured"
        return "missed" if self.missed else "met"

    @property
    def text(self) -> str:
        measured = f"{seconds(self.measured_s)} ({self.meaning}, {counted(self.samples, 'sample')})"
        return f"{self.name}: {measured}; the goal is {self.limit_s:g} s at most"


def are_binding(results: Iterable[RunResult]) -> bool:
    """Whether a goal that is missed fails the verification."""
    return any(result.held_to_goals for result in results if result.judged)


def goals(results: Iterable[RunResult]) -> list[Goal]:
    """The goals, over all runs that are judged. Runs that failed count as well: not to end is no way to meet a goal."""
    judged = [result for result in results if result.judged]
    recoveries = [each for result in judged for each in result.recoveries]
    of = {lost: [each for each in recoveries if each.lost is lost] for lost in Lost}
    killed = of[Lost.DRIVER]
    last = [each.since_last_kill for each in killed]
    alone = [each for each in killed if not each.others]
    held = [result.lso_held_s for result in judged if result.lso_held_s is not None]
    after = "from SIGKILL to the driver to the first new record that is visible"
    from_last = "the same, from the last kill where it was killed again before that"
    by_itself = (
        "the same, where no other fault came right before it or until it was over, and its own took no other driver"
    )
    ended = "the same, from the end of a driver that no kill ended"
    of_others = (
        "the same, from SIGKILL to a process that works for the driver: of Spark, or a broker where others are left"
    )
    return [
        *_recovery_goals("", after, killed),
        *_recovery_goals(" from the last kill", from_last, last),
        *_recovery_goals(" from one fault", by_itself, alone),
        *_recovery_goals(" from an end by itself", ended, of[Lost.ENDED]),
        *_recovery_goals(" from the loss of another", of_others, of[Lost.OTHER]),
        Goal(
            "last stable offset held",
            "longest time for which a dead instance held it",
            LSO_HELD_S,
            max(held, default=None),
            len(held),
        ),
    ]


def _recovery_goals(of: str, meaning: str, recoveries: Iterable[Recovery]) -> list[Goal]:
    times = Times.of(recoveries)
    number = len(times.sorted_s)
    longest = f"the longest, for they are few; {meaning}" if number < _ENOUGH_FOR_P99 else meaning
    return [
        Goal(f"recovery{of} p50", meaning, RECOVERY_P50_S, times.median_s, number),
        Goal(f"recovery{of} p99", longest, RECOVERY_P99_S, times.percentile(99), number),
    ]
