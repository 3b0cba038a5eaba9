"""What all runs say together: the verdict, and how often each engine showed each anomaly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from onceflow.verify.report.goals import Goal, are_binding, goals
from onceflow.verify.report.meetings import told
from onceflow.verify.report.text import counted, cut, listed
from onceflow.verify.result import Lost, RunResult


class ExitStatus(IntEnum):
    """What a verification ends with."""

    GOOD = 0
    VIOLATED = 1
    NOT_JUDGED = 2
    GOALS_MISSED = 3


class Standing(StrEnum):
    """What one run says."""

    GOOD = "good"
    VIOLATED = "violated"
    NOT_JUDGED = "not judged"
    CONTROL = "control"


def reasons(result: RunResult) -> tuple[str, ...]:
    """Why a run in which nothing was found proves nothing; empty when it does prove something."""
    return (*_doubts(result), *result.weaknesses, *_unmeasured(result))


def _doubts(result: RunResult) -> tuple[str, ...]:
    """Why what was found may not be what is there."""
    found = list(result.failures)
    if not any(check.judged for check in result.verdict.checks):
        found.append("no check was made")
    if not found and result.verdict.unproved:
        found.append(result.verdict.unproved)
    return tuple(found)


def _unmeasured(result: RunResult) -> tuple[str, ...]:
    """Goals that count are not met by a run in which nothing was lost, nor by one of which their times are not known."""
    if not result.held_to_goals:
        return ()
    if not result.recoveries:
        return ("it is held to the goals of recovery, and there was none to be measured: no driver was lost",)
    found = [result.doubted_times] if result.doubted_times else []
    if result.lso_held_s is None and any(each.lost is not Lost.OTHER for each in result.recoveries):
        found.append("nobody saw for how long a dead driver held the last stable offset")
    return tuple(f"it is held to the goals of recovery, and {each}" for each in found)


CERTAIN = frozenset(
    {
        "duplicated",
        "effect_repeated",
        "inconsistent_offsets",
        "phantom",
        "aborted_read",
        "consumed_twice",
        "torn_progress",
        "hung_transaction",
    }
)
"""What stands in the log, or in a table of effects, and cannot be undone by anything that comes later. A transaction hangs that
is open when nothing runs any more and all coordinators have been back for two minutes, longer than any of a run may last.
"""
_OF_ONE_THAT_IS_STUCK = CERTAIN | {"stuck_progress"}


def proved(result: RunResult) -> dict[str, int]:
    """The violations that a run shows for certain, and how often. A judged run that did not end shows those of ``CERTAIN``,
    and that its pipeline stood still by itself (``stuck_progress``)::

    a batch is written twice, and the pipeline gets stuck behind it: what is missing may come yet, the repetition stays
    no fault met work, and the pipeline lost a record by itself: it was read to its end, so that record is lost
    """
    found = result.verdict.violations
    if not _doubts(result):
        return found
    certain = _OF_ONE_THAT_IS_STUCK if result.is_stuck else CERTAIN
    return {name: count for name, count in found.items() if result.judged and name in certain}


def standing(result: RunResult) -> Standing:
    """What a run says. Of a run that proves nothing, violations that are not certain are shown, and not judged."""
    if not result.judged:
        return Standing.CONTROL
    if proved(result):
        return Standing.VIOLATED
    return Standing.NOT_JUDGED if reasons(result) else Standing.GOOD


def exit_status(results: Sequence[RunResult]) -> ExitStatus:
    """A violation outweighs a run that could not be judged, that one a goal that was missed and counts; without any judged run
    nothing is proved.
    """
    found = {standing(result) for result in results}
    if Standing.VIOLATED in found:
        return ExitStatus.VIOLATED
    if Standing.NOT_JUDGED in found or Standing.GOOD not in found:
        return ExitStatus.NOT_JUDGED
    return ExitStatus.GOALS_MISSED if _missed(results) else ExitStatus.GOOD


def _missed(results: Sequence[RunResult]) -> list[Goal]:
    """The goals that fail the verification."""
    return [goal for goal in goals(results) if goal.missed] if are_binding(results) else []


HEADLINES = {
    ExitStatus.GOOD: "Exactly once held",
    ExitStatus.VIOLATED: "Exactly once was violated",
    ExitStatus.NOT_JUDGED: "Nothing is proved",
    ExitStatus.GOALS_MISSED: "Exactly once held, but not in time",
}


def sentence(results: Sequence[RunResult]) -> str:
    """What the verdict rests on."""
    if exit_status(results) in (ExitStatus.GOOD, ExitStatus.GOALS_MISSED):
        missed = [f"Missed: {goal.text}." for goal in _missed(results)]
        return " ".join([_good([result for result in results if result.judged]), *missed])
    return " ".join((*_violated(results), *_not_judged(results))) or "There was no run to be judged."


def about_controls(results: Sequence[RunResult]) -> str:
    """What the controls showed; empty without any."""
    engines = dict.fromkeys(result.engine for result in results if not result.judged)
    return " ".join(f"The control, {name}, showed {_shown_by(results, name)}." for name in engines)


def _good(judged: list[RunResult]) -> str:
    checks = {check.anomaly for result in judged for check in result.verdict.checks if check.judged}
    rows = sum(len(result.verdict.history) for result in judged)
    faults = told([each for result in judged for each in result.encounters])
    return (
        f"{counted(len(checks), 'check')} found nothing in {counted(len(judged), 'run')} "
        f"with {faults}, and {counted(rows, 'row')} of history."
    )


def _violated(results: Sequence[RunResult]) -> list[str]:
    bad = [(n, each) for n, each in enumerate(results, 1) if standing(each) is Standing.VIOLATED]
    return [f"Run {n} ({each.engine}) shows {listed(proved(each))}." for n, each in bad]


def _not_judged(results: Sequence[RunResult]) -> list[str]:
    unclear = [(n, each) for n, each in enumerate(results, 1) if standing(each) is Standing.NOT_JUDGED]
    return [f"Run {n} ({each.engine}) could not be judged: {cut(reasons(each)[0].rstrip('.'))}." for n, each in unclear]


def _shown_by(results: Sequence[RunResult], engine: str) -> str:
    found: Counter[str] = Counter()
    usable = [each for each in results if each.engine == engine and not each.judged and not reasons(each)]
    for result in usable:
        found.update(result.verdict.violations)
    return listed(found) if usable else "nothing that could be used"


@dataclass(frozen=True, slots=True)
class Column:
    """An engine in the overview; ``usable`` of its ``runs`` are counted."""

    engine: str
    judged: bool
    runs: int
    usable: int


@dataclass(frozen=True, slots=True)
class Line:
    """An anomaly in the overview, with one cell a column: how often it was found, None where nothing looked for it."""

    anomaly: str
    meaning: str
    judged: bool
    found: tuple[int | None, ...]


def overview(results: Sequence[RunResult]) -> tuple[list[Column], list[Line]]:
    """Engines, the judged ones first, by anomalies. Of runs that prove nothing only what is certain is counted: their 0 would
    be a lie.
    """
    kinds = sorted(dict.fromkeys((result.engine, result.judged) for result in results), key=lambda kind: not kind[1])
    groups = [[each for each in results if (each.engine, each.judged) == kind] for kind in kinds]
    usable = [[each for each in group if not reasons(each)] for group in groups]
    columns = [
        Column(engine, judged, len(group), len(counted))
        for (engine, judged), group, counted in zip(kinds, groups, usable, strict=True)
    ]
    counts = [_counts(group) for group in groups]
    checks = {check.anomaly: check for result in results for check in result.verdict.checks}
    return columns, [
        Line(name, check.meaning, check.judged, tuple(found.get(name) for found in counts))
        for name, check in checks.items()
    ]


def _counts(results: list[RunResult]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for result in results:
        found.update(proved(result) if reasons(result) else result.verdict.counts)
    return found
