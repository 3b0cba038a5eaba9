"""Ends of a log that do not fit each other, though no record is known that tells what became of it.

A log only grows, and its stable end never goes back either. Who asks later is told no less::

    a probe is told that the log ends at 5
    the same probe is told later that it ends at 3      3 and 4 are gone: records that nobody wrote down, or markers only

A known record there is ``lost``. If two ask at the same time, one may be told of less: it may have asked first. And a stable
end behind the end of the log was asked when there was more of it::

    a probe is told that the log ends at 2, others write and commit, it is told that the stable end is 5
"""

from __future__ import annotations

import numpy as np

from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.history.coding import Ints
from onceflow.verify.history.schema import Kind


def went_back(evidence: Evidence) -> Ints:
    """The rows that say of a log that it ends, or is stable, below where it was seen to before their operation began."""
    ends, stable = (_answered(evidence, kind) for kind in (Kind.LOG_END, Kind.STABLE_END))
    return np.concatenate(
        [_below(evidence, ends, np.concatenate([ends, stable])), _below(evidence, stable, stable)],
    )


def stable_behind_the_end(evidence: Evidence) -> Ints:
    """The last stable ends that stand behind the last end of their log."""
    history = evidence.history
    ends, stable = evidence.last_said(Kind.LOG_END), evidence.last_said(Kind.STABLE_END)
    both = (ends >= 0) & (stable >= 0)
    ends, stable = ends[both], stable[both]
    behind: Ints = stable[history.offset[stable] > history.offset[ends]]
    return behind


def _answered(evidence: Evidence, kind: Kind) -> Ints:
    rows = evidence.history.rows(kind)
    answered: Ints = rows[evidence.happened[rows]]
    return answered


def _below(evidence: Evidence, rows: Ints, others: Ints) -> Ints:
    """Those of the rows that tell of less than any of the others on their key that was answered before they were asked."""
    history, moments = evidence.history, len(evidence.history.op) + 1
    others = others[np.lexsort((evidence.op_end[history.op[others]], history.key[others]))]
    furthest = np.append(np.maximum.accumulate(place(history.key[others], history.offset[others])), -1)
    answered = history.key[others] * moments + evidence.op_end[history.op[others]]
    asked = history.key[rows] * moments + evidence.begun_after[history.op[rows]]
    before = furthest[np.searchsorted(answered, asked, side="right") - 1]
    # What is furthest on a key before this one is less than any place on this one.
    below: Ints = rows[place(history.key[rows], history.offset[rows]) < before]
    return below
