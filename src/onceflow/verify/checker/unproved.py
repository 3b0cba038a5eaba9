"""Why a history proves nothing although nothing in it is wrong.

An operation that failed looked at nothing, and who looks where nobody writes sees nothing either way::

    a writer sends to sales-0
    the final reader asks for sales-0, its operation fails
    another reader asks for stock-0, where nobody wrote             whether the record is in sales-0, nobody knows
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.checker.evidence import Evidence
from onceflow.verify.history.coding import Ints, among, distinct
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import Kind, Status

UNJUDGED = "unjudged"
"""What the value of a record begins with, before a colon, that is named by its place, for what it should be is not known."""

_SEEING = ("poll", "window", "effect")  # kinds of rows that say what somebody saw


def unproved(evidence: Evidence) -> str:
    """The reason; empty if the history may prove something."""
    history = evidence.history
    if not len(history.op):
        return "the history is empty"
    if not len(history.rows(Kind.POLL, Kind.WINDOW, Kind.EFFECT)):
        return f"nobody looked: the history has no row of what was seen ({', '.join(_SEEING)})"
    if not _somebody_looked(evidence):
        return "nobody looked where anybody wrote: no poll and no window of a key that was written was answered"
    if len(rows := _unlooked(evidence)):
        count = f"{len(rows):,} committed record{'s stand' if len(rows) > 1 else ' stands'}"
        return f"nobody looked at {keys_text(evidence, rows)}, where {count}"
    if len(rows := _unjudged(evidence)):
        return (
            f"output was not judged: values {UNJUDGED}:… name a place, so that nothing could be missing or repeated "
            f"({len(rows):,} of {len(evidence.polls):,} records that were read, on {keys_text(evidence, rows)})"
        )
    if groups := _consumed_for_nothing(evidence):
        return f"nobody looked at output: of what was consumed for {listed(groups)} the history has neither output nor effect"
    return ""


def _consumed_for_nothing(evidence: Evidence) -> list[str]:
    """The groups that transactions consumed for, if nothing in the history can be what came of it::

        transaction 1 polls 0 to 9 for a group, commits position 10
        the final reader reads the input, which is all there

    Output is what a unit sends that consumes, or what was looked for on a key that no group consumes; or an effect.
    """
    history, polls = evidence.history, evidence.polls
    consuming = polls[history.in_txn[polls] & (history.group[polls] >= 0) & evidence.happened[polls]]
    if not len(consuming) or len(history.rows(Kind.EFFECT)):
        return []
    rows = np.concatenate([evidence.sends, polls, history.rows(Kind.WINDOW)])
    if len(np.setdiff1d(history.key[rows], history.key[polls[history.group[polls] >= 0]])):
        return []
    if np.any(among(history.unit[evidence.sends], history.unit[consuming])):
        return []
    groups: list[str] = pc.unique(history.table["group"].take(pa.array(consuming))).to_pylist()
    return groups


def listed(names: list[str], most: int = 3) -> str:
    """The names in order, in words; of many only the first."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(sorted(names)[:most]) + rest


def _looked_at(evidence: Evidence) -> Mask:
    """For each key whether somebody found there, for certain, what he read, or that nothing is there, or an effect.

    A transaction that was aborted has read all the same.
    """
    history, polls = evidence.history, evidence.polls
    windows, effects = history.rows(Kind.WINDOW), history.rows(Kind.EFFECT)
    rows = np.concatenate(
        [
            polls[evidence.happened[polls] | history.in_txn[polls]],
            windows[evidence.happened[windows] & (history.offset[windows] < history.until[windows])],
            effects[history.status[effects] == Status.OK],
        ]
    )
    looked = np.zeros(len(history.keys), bool)
    looked[history.key[rows]] = True
    return looked


def _unlooked(evidence: Evidence) -> Ints:
    """The committed records of keys at which nobody looked."""
    rows: Ints = evidence.committed[~evidence.once(_looked_at)[evidence.history.key[evidence.committed]]]
    return rows


def _somebody_looked(evidence: Evidence) -> bool:
    """Whether somebody looked where anybody wrote, or found what came of what others wrote.

    Who writes may be unknown to the whole history: then readers are held against each other.
    """
    history, looked = evidence.history, evidence.once(_looked_at)
    effects, polls = history.rows(Kind.EFFECT), evidence.polls
    consumed = evidence.happened[polls] & history.in_txn[polls] & (history.group[polls] >= 0)
    if np.any(history.status[effects] == Status.OK) or np.any(consumed):
        return True
    return bool(np.any(looked[history.key[evidence.sends]])) if len(evidence.sends) else bool(np.any(looked))


def _unjudged(evidence: Evidence) -> Ints:
    """The polls of records whose value is but their place: two of the same content have two values."""
    values = evidence.history.values
    if not pa.types.is_string(values.type) and not pa.types.is_large_string(values.type):
        return evidence.polls[:0]
    marked = np.asarray(pc.starts_with(values, f"{UNJUDGED}:").fill_null(False), bool)
    rows: Ints = evidence.polls[marked[evidence.history.value[evidence.polls]]]
    return rows


def keys_text(evidence: Evidence, rows: Ints) -> str:
    """The keys of the rows, in words."""
    history = evidence.history
    return listed(history.keys.take(pa.array(distinct(history.key[rows]))).to_pylist())
