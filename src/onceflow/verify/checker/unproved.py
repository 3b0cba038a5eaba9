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
        return "nobody looked where anybody wrote: no record was read, and no window over a key that was written is ok"
    if _is_unjudged(evidence):
        return f"output was not judged: values {UNJUDGED}:… name a place, so that nothing could be missing or repeated"
    return ""


def _somebody_looked(evidence: Evidence) -> bool:
    """Whether a record or an effect was found, or an answer was that at a place of a key that is written none is."""
    history, effects = evidence.history, evidence.history.rows(Kind.EFFECT)
    if len(evidence.polls) or np.any(history.status[effects] == Status.OK):
        return True
    windows = history.rows(Kind.WINDOW)
    looked = windows[evidence.happened[windows] & (history.offset[windows] < history.until[windows])]
    return bool(np.any(np.isin(history.key[looked], history.key[evidence.sends])))


def _is_unjudged(evidence: Evidence) -> bool:
    """Whether a record was read whose value is but its place: two of the same content have two values."""
    values = evidence.history.values
    if not pa.types.is_string(values.type) and not pa.types.is_large_string(values.type):
        return False
    marked = np.asarray(pc.starts_with(values, f"{UNJUDGED}:").fill_null(False))
    return bool(np.any(marked[evidence.history.value[evidence.polls]]))
