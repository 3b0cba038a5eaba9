"""All checks on one history, and what they found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.checker.evidence import Evidence
from onceflow.verify.checker.findings import joined
from onceflow.verify.checker.function import Function
from onceflow.verify.checker.not_judged import not_judged
from onceflow.verify.checker.registry import CHECKS, Check
from onceflow.verify.checker.unproved import unproved
from onceflow.verify.history.columns import Columns


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checks found in a history. ``findings`` has the columns of ``checker.findings.FINDINGS``.

    ``unproved`` says why it proves nothing that they found nothing; empty where it does. ``not_judged`` says of which parts of
    the history it proves nothing, if all checks were made.
    """

    history: pa.Table
    findings: pa.Table
    checks: tuple[Check, ...]
    unproved: str = field(default="", kw_only=True)
    not_judged: tuple[str, ...] = field(default=(), kw_only=True)

    def check(self, anomaly: object) -> Check:
        """The check that looked for it."""
        return next(check for check in self.checks if check.anomaly == anomaly)

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
        return "" if self.violations else self.unproved


def check_history(
    history: pa.Table | Columns,
    checks: Iterable[Check] | None = None,
    where: str = "the history",
    function: Function | None = None,
) -> Verdict:
    """Runs the checks (all of ``CHECKS`` by default) on a history, and holds its output against ``function``, if one is given.

    One that comes as ``Columns`` is validated already; ``where`` names any other one in what is raised.

    Raises HistoryInvalid; FunctionInvalid where a function from a file fails, or its names are of nothing in the history.
    """
    history = history if isinstance(history, Columns) else Columns.of(history, where)
    evidence = Evidence(history)
    if function:
        function.require(evidence)
    chosen = (*(CHECKS.values() if checks is None else checks), *([function.check()] if function else []))
    found = joined(history, [check.find(evidence) for check in chosen])
    lack = unproved(evidence) or (function.unproved(evidence) if function else "")
    held = function.output_keys(evidence) if function else ()
    beside = function.not_judged(evidence) if function else ()
    open_parts = (*not_judged(evidence, held), *beside) if checks is None else ()
    return Verdict(history.table, found, chosen, unproved=lack, not_judged=open_parts)
