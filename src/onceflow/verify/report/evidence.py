"""The first findings of each violation, with the rows of the history that show them."""

from __future__ import annotations

from typing import Any

from onceflow.verify.checker.report import first_findings, shown
from onceflow.verify.checker.verdict import Verdict

FINDINGS = 3  # of each anomaly
ROWS = 10  # of each finding; a torn transaction may have any number


def examples(verdict: Verdict) -> list[dict[str, Any]]:
    """Findings with their ``rows`` as records, at most ``ROWS`` of them, and how many there are as ``rows_found``."""
    found = []
    for finding in first_findings(verdict, FINDINGS):
        few = {**finding, "rows": finding["rows"][:ROWS]}
        found.append({**finding, "rows_found": len(finding["rows"]), "rows": shown(verdict, few)})
    return found
