"""Output, progress and source offsets are one transaction: at rest they say the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from onceflow.verify.checker import Check
from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.findings import findings
from onceflow.verify.history import Kind
from onceflow.verify.history.coding import dense


def torn_progress(evidence: Evidence) -> pa.Table:
    """A group's committed position is not where its last committed batch ended."""
    history = evidence.history
    rows = history.rows(Kind.POSITION)
    lane = dense(place(history.key[rows], history.group[rows] + 1))
    first, last = np.empty((2, int(lane.max(initial=-1)) + 1), np.int64)
    first[lane[::-1]] = rows[::-1]  # what the pipeline said of its batch
    last[lane] = rows  # what was seen when nothing ran any more
    torn = history.offset[first] != history.offset[last]
    return findings(history, "torn_progress", last[torn], first[torn])


TORN_PROGRESS = Check(torn_progress)
"""Beyond the checker's own: only the judge of a run adds the pipeline's word, a position for each end of its last batch."""
