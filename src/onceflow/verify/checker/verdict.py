"""All checks on one history, and what they found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.checker.evidence import Evidence
from onceflow.verify.checker.findings import joined
from onceflow.verify.checker.registry import CHECKS, Check
from onceflow.verify.history.columns import Columns


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checks found in a history. ``findings`` has the columns of ``checker.findings.FINDINGS``."""

    history: pa.Table
    findings: pa.Table
    checks: tuple[Check, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How often each anomaly was found, 0 included."""
        found = {each["values"]: each["counts"] for each in pc.value_counts(self.findings["anomaly"]).to_pylist()}
        return {check.anomaly: found.get(check.anomaly, 0) for check in self.checks}

    @property
    def violations(self) -> dict[str, int]:
        """How often each anomaly was found that breaks a guarantee; empty when the history is good."""
        counts = self.counts
        return {check.anomaly: counts[check.anomaly] for check in self.checks if check.judged and counts[check.anomaly]}

    @property
    def lack(self) -> str:
        """Why it proves nothing that nothing was found; empty if it does, or if something was found."""
        return "" if self.violations else unproved(self.history)


_SEEING = ("poll", "window", "effect")  # kinds of rows that say what somebody saw


def unproved(history: pa.Table) -> str:
    """Why a history proves nothing, though nothing in it is wrong; empty if it may prove something."""
    if not len(history):
        return "the history is empty"
    seen = pc.is_in(history["kind"].cast(pa.string()), pa.array(_SEEING))
    if not pc.any(seen).as_py():
        return f"nobody looked: the history has no row of what was seen ({', '.join(_SEEING)})"
    return ""


def check_history(table: pa.Table, checks: Iterable[Check] | None = None, where: str = "the history") -> Verdict:
    """Runs the checks (all of ``CHECKS`` by default) on a history. Raises HistoryInvalid."""
    history = Columns.of(table, where)
    evidence = Evidence(history)
    chosen = tuple(CHECKS.values() if checks is None else checks)
    return Verdict(history.table, joined(history, [check.find(evidence) for check in chosen]), chosen)
