"""Up to where a group processed its input: the position at which it was seen in the end.

A position after which the group went on says nothing of the end::

    the driver that takes over writes down where it begins: the group's position is seen to be 0
    transaction 1 polls 0, commits position 1, sends output        its input is processed
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.checker.evidence import Evidence
from onceflow.verify.checker.progress import went_on
from onceflow.verify.history.coding import Ints
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import Kind


def final_positions(evidence: Evidence, group: str | None) -> Ints:
    """For each key the row that saw the position of the group when it did not go on there any more, -1 for none."""
    history = evidence.history
    rows = history.rows(Kind.POSITION)
    rows = rows[~history.in_txn[rows] & evidence.happened[rows]]
    rows = rows[is_of_group(evidence, rows, group)]
    rows = rows[~went_on(evidence, rows)]
    final = np.full(len(history.keys), -1, np.int64)
    final[history.key[rows]] = rows
    return final


def is_of_group(evidence: Evidence, rows: Ints, group: str | None) -> Mask:
    """For each row whether it names the group; none does if none is given."""
    groups = evidence.history.table["group"].combine_chunks().take(pa.array(rows))
    return np.asarray(pc.equal(groups, group).fill_null(False), bool)
