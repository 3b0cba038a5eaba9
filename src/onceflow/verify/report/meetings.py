"""How many faults met work, kind by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onceflow.verify.engines.transaction import Transaction
from onceflow.verify.report.text import counted
from onceflow.verify.result import Encounter


@dataclass(frozen=True, slots=True)
class Meetings:
    """The faults of one kind: how many there were, met work, met a transaction that was certainly open, or one that may have
    been; ``batches`` were committed before them, each since the fault before it.
    """

    fault: str
    injected: int
    met: int
    in_transaction: int
    perhaps: int
    batches: int


def meetings(encounters: Sequence[Encounter]) -> list[Meetings]:
    """Each kind by its name, and all of them last if there are several."""
    kinds = sorted({each.fault for each in encounters})
    found = [_of(kind, [each for each in encounters if each.fault == kind]) for kind in kinds]
    return [*found, _of("all", encounters)] if len(kinds) > 1 else found


def _of(name: str, encounters: Sequence[Encounter]) -> Meetings:
    met = [each for each in encounters if each.met]
    return Meetings(
        name,
        len(encounters),
        len(met),
        sum(each.transaction is Transaction.OPEN for each in met),
        sum(each.transaction is Transaction.PERHAPS for each in met),
        sum(each.batches for each in encounters),
    )


def told(encounters: Sequence[Encounter]) -> str:
    """Such as ``9 faults, 7 of which met work``."""
    met = sum(each.met for each in encounters)
    if not encounters:
        return "no fault"
    if len(encounters) == 1:
        return f"1 fault, which met {'work' if met else 'no work'}"
    return f"{counted(len(encounters), 'fault')}, {met:,} of which met work"
