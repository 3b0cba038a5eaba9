"""The places of a log that a reader asked for and went past: a committed record that stands there it would have been given.

A reader is given records in the order of the log, up to the last stable offset. So whoever was given one had been given each that
is committed before it, from where it had begun::

    a reader begins at 0, and polls 0 and 2         what is committed at 1 is not there
    a reader begins at 2, where it is the latest    what stands at 0 and 1 nobody asked for

It begins where an ``assign`` row says or its operation's ``window``, or behind its poll before (``order.py``).
"""

from __future__ import annotations

import numpy as np

from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.order import PollSteps
from onceflow.verify.checker.ranges import Ranges
from onceflow.verify.history.coding import Ints, dense
from onceflow.verify.history.schema import Kind


def passed_over(evidence: Evidence) -> Ranges:
    """Where a record that is not there was asked for by somebody who was given one behind it."""
    history, steps = evidence.history, evidence.once(PollSteps)
    windows, last = _answers(evidence)
    begins = np.concatenate(
        [place(history.key[steps.rows], steps.position), place(history.key[windows], history.offset[windows])]
    )
    ends = np.concatenate(
        [place(history.key[steps.rows], history.offset[steps.rows]), place(history.key[windows], last)]
    )
    forward = begins < ends
    return Ranges.of(begins[forward], ends[forward])


def _answers(evidence: Evidence) -> tuple[Ints, Ints]:
    """The windows whose operations polled something of them, and the furthest offset that these did."""
    history, polls = evidence.history, evidence.polls
    windows = history.rows(Kind.WINDOW)
    windows = windows[evidence.happened[windows]]
    rows = np.concatenate([windows, polls])
    asked = dense(history.op[rows] * (len(history.keys) + 1) + history.key[rows])
    furthest = np.full(int(asked.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(furthest, asked[len(windows) :], history.offset[polls])
    last = np.minimum(furthest[asked[: len(windows)]], history.until[windows])
    return windows[last >= 0], last[last >= 0]
