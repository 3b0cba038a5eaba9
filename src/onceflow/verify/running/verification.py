"""All runs of a verification, one engine after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from onceflow.verify.history import write_history
from onceflow.verify.result import RunResult
from onceflow.verify.running.progress import Progress
from onceflow.verify.running.run import run, unfinished
from onceflow.verify.running.settings import Settings
from onceflow.verify.running.timeline import Timeline

NOT_RUN = "it was not run to its end: the verification was ended before"


Done = Callable[[list[RunResult]], None]


def verify_all(settings: Settings, progress: Progress, done: Done = lambda results: None) -> list[RunResult]:
    """The engines suffer the same faults from the same seed.

    ``done`` is called after each run that others follow, with a result for each engine: what is done stays, however the rest
    ends.
    """
    progress.line(f"seed {settings.seed}; the same again: {settings.command}")
    results: list[RunResult] = []
    for engine in settings.engines:
        results.append(run(settings, engine, progress))
        following = settings.engines[len(results) :]
        if following:
            done([*results, *(unfinished(settings, each, Timeline(), [NOT_RUN]) for each in following)])
    return results


def keep_histories(results: Sequence[RunResult], directory: Path, *, of_all: bool = False) -> list[Path]:
    """Writes the whole history of each judged run that shows a violation, or ``of_all`` judged ones: ``history.parquet``,
    ``history-2.parquet``, ...
    """
    wanted = [result for result in results if result.judged and (of_all or result.verdict.violations)]
    directory.mkdir(parents=True, exist_ok=True)
    kept = []
    for number, result in enumerate(wanted, 1):
        kept.append(directory / ("history.parquet" if number == 1 else f"history-{number}.parquet"))
        write_history(result.verdict.history, kept[-1])
    return kept
