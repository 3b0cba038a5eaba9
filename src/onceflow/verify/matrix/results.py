"""What the cells gave: a row for each run, and what all of them say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onceflow.verify.matrix.cells import Cell
from onceflow.verify.report import exit_status
from onceflow.verify.report.summary import ExitStatus, proved, reasons, standing
from onceflow.verify.report.text import counted
from onceflow.verify.result import RunResult

_MISSING = ("lost", "torn_transaction", "unseen")
_OUT_OF_ORDER = (
    "nonmonotonic_send", "int_nonmonotonic_send", "nonmonotonic_poll", "int_nonmonotonic_poll", "poll_skip",
    "int_poll_skip",
)  # fmt: skip
NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Row:
    """A cell with one engine; ``result`` is None as long as it was not run. A number that is not known is None."""

    cell: Cell
    messages: int  # wanted
    bounces: int  # wanted
    result: RunResult | None = None

    @property
    def engine(self) -> str:
        return self.result.engine if self.result else ""

    @property
    def standing(self) -> str:
        return str(standing(self.result)) if self.result else NOT_RUN

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it proves nothing."""
        return reasons(self.result) if self.result else (NOT_RUN,)

    def counted(self, name: str) -> int | None:
        """One of the run's counts."""
        return self.result.counts.get(name) if self.result else None

    @property
    def anomalies(self) -> dict[str, int]:
        """What was found that breaks a guarantee."""
        return proved(self.result) if self.result else {}

    @property
    def duplicates(self) -> int | None:
        return self._found(("duplicated",))

    @property
    def missing(self) -> int | None:
        return self._found(_MISSING)

    @property
    def out_of_order(self) -> int | None:
        return self._found(_OUT_OF_ORDER)

    def _found(self, anomalies: Sequence[str]) -> int | None:
        """How many there are. Of a run that proves nothing only what is certain counts: its 0 would be a lie."""
        found = sum(self.anomalies.get(name, 0) for name in anomalies)
        return None if self.reasons and not found else found


def complete(row: Row) -> Row:
    """A run that would be good, though not every message was there and came through once, proves nothing."""
    result = row.result
    if result is None or not result.judged or not result.good:
        return row
    lack = incomplete(row)
    return replace(row, result=replace(result, failures=(lack,))) if lack else row


def unwritten(row: Row, error: Exception) -> Row:
    """A good run whose report cannot be read by anybody proves nothing; a violation stays one."""
    result = row.result
    if result is None or not result.good:
        return row
    return replace(row, result=replace(result, failures=(f"its report could not be written: {error}",)))


def incomplete(row: Row) -> str:
    """What is wrong with the numbers of messages, which say the same as the checker; empty for nothing."""
    given, visible, copies = (
        row.counted(name) or 0 for name in ("input records committed", "input records visible", "output records")
    )
    if given < row.messages:
        return f"{counted(given, 'message')} of {row.messages:,} were committed"
    if visible != copies:
        return (
            f"{counted(visible, 'message')} were there to be copied, and there are {counted(copies, 'copy', 'copies')}"
        )
    return ""


def status_of(rows: Sequence[Row]) -> ExitStatus:
    """A violation outweighs all else; a cell that was not run, or proves nothing, outweighs those that are good."""
    found = exit_status([row.result for row in rows if row.result])
    return ExitStatus.NOT_JUDGED if found is ExitStatus.GOOD and any(row.result is None for row in rows) else found


def sentence(rows: Sequence[Row]) -> str:
    """What the verdict rests on."""
    judged = [row for row in rows if row.result is None or row.result.judged]
    told = [
        f"{name} {'is' if len(cells) == 1 else 'are'} {standing}"
        for standing in dict.fromkeys(row.standing for row in judged)
        for cells in [[row.cell.name for row in judged if row.standing == standing]]
        for name in [", ".join(cells)]
    ]
    copies = sum(row.counted("output records") or 0 for row in judged)
    bounces = sum(row.counted("faults") or 0 for row in judged)
    if status_of(rows) is ExitStatus.GOOD:
        done = f"{counted(len(judged), 'cell')}, {counted(bounces, 'bounce')}, {counted(copies, 'copy', 'copies')}"
        return f"{done}: nothing is wrong."
    return f"{'; '.join(told)}." if told else "No cell was to be judged."
