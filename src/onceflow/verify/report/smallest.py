"""The smallest history of each violation, kept as a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from onceflow.verify.checker import shrink
from onceflow.verify.checker.report import first_findings
from onceflow.verify.history import write_history
from onceflow.verify.result import RunResult


def keep_smallest(results: Sequence[RunResult], directory: Path) -> dict[tuple[int, str], Path]:
    """Writes ``history-<run>-<anomaly>.parquet`` for each violation of each run; gives the paths by run and anomaly."""
    kept = {}
    for number, result in enumerate(results, 1):
        checks = {check.anomaly: check for check in result.verdict.checks}
        for finding in first_findings(result.verdict):
            anomaly = finding["anomaly"]
            path = directory / f"history-{number}-{re.sub(r'[^A-Za-z0-9_-]', '_', anomaly)}.parquet"
            write_history(shrink(result.verdict.history, finding, checks[anomaly]), path)
            kept[number, anomaly] = path
    return kept
