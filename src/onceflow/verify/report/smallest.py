"""The smallest history of each violation, kept as a file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from onceflow.verify.checker import shrink
from onceflow.verify.checker.report import first_findings
from onceflow.verify.history import write_history
from onceflow.verify.result import RunResult


def places(results: Sequence[RunResult], directory: Path) -> dict[tuple[int, str], Path]:
    """Where each is kept, by run and anomaly: ``history-<run>-<anomaly>.parquet``."""
    return {
        (number, anomaly): directory / f"history-{number}-{re.sub(r'[^A-Za-z0-9_-]', '_', anomaly)}.parquet"
        for number, result in enumerate(results, 1)
        for anomaly in (finding["anomaly"] for finding in first_findings(result.verdict))
    }


def keep_smallest(results: Sequence[RunResult], kept: Mapping[tuple[int, str], Path]) -> None:
    """Finds and writes them."""
    for number, result in enumerate(results, 1):
        verdict = result.verdict
        for finding in first_findings(verdict):
            anomaly = finding["anomaly"]
            write_history(shrink(verdict.history, finding, verdict.check(anomaly)), kept[number, anomaly])
