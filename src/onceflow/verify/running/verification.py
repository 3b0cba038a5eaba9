"""All runs of a verification, one engine after the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onceflow.verify.history import write_history
from onceflow.verify.result import RunResult
from onceflow.verify.running.progress import Progress
from onceflow.verify.running.run import run
from onceflow.verify.running.settings import Settings


def verify_all(settings: Settings, progress: Progress) -> list[RunResult]:
    """The engines suffer the same faults from the same seed."""
    progress.line(f"seed {settings.seed}; the same again: {settings.command}")
    return [run(settings, engine, progress) for engine in settings.engines]


def keep_histories(results: Sequence[RunResult], directory: Path) -> list[Path]:
    """Writes the whole history of each judged run that shows a violation: ``history.parquet``, ``history-2.parquet``, ..."""
    violated = [result for result in results if result.judged and result.verdict.violations]
    directory.mkdir(parents=True, exist_ok=True)
    kept = []
    for number, result in enumerate(violated, 1):
        kept.append(directory / ("history.parquet" if number == 1 else f"history-{number}.parquet"))
        write_history(result.verdict.history, kept[-1])
    return kept
