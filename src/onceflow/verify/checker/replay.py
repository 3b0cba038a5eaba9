"""Output that is not f(committed input).

``f`` is given as a function from the committed input to the output that it must lead to, both in columns: all input records
in the order of partition and offset, and for each expected output record the number of the input record that it comes from.

Per input and output partition the output must be what ``f`` says, in that order, up to a place in the input; and that place
must be one and the same for all output partitions: the output of an input record is visible wholly or not at all. Where the
history says how far a group has committed in the end (a ``position`` row on the input partition), it must be that place; and the
transaction that consumed an input record for the group must be the one that wrote its output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.compared import Compared, offsets
from onceflow.verify.checker.evidence import NOBODY, Evidence, place
from onceflow.verify.checker.findings import findings, joined
from onceflow.verify.checker.missing_output import MissingOutput
from onceflow.verify.checker.processed import final_positions, is_of_group, processed
from onceflow.verify.checker.unproved import keys_text
from onceflow.verify.history.coding import Ints, among, distinct
from onceflow.verify.history.schema import Kind

ANOMALY = "diverged_output"


def diverged_output(evidence: Evidence, compared: Compared, group: str | None = None) -> pa.Table:
    """The committed output is not what the function makes of the committed input, up to one place, in order.

    The place is the position of ``group`` where one is named and recorded, else that of the last output visible. That nothing
    is found proves nothing where nobody looked: ``unproved_output``.
    """
    source, found = compared.source, compared.found
    is_processed = processed(evidence, compared, group)
    early, missing = ~is_processed & (found >= 0), MissingOutput.of(evidence, compared, group).proved
    late, before = _disordered(compared.lane, compared.offset)
    elsewhere, consumer = _of_other_transactions(evidence, found, source, group)
    history = evidence.history
    tables = [
        findings(
            history, ANOMALY, compared.seen.rows[compared.extra], detail="nothing in the input leads to this record"
        ),
        findings(history, ANOMALY, source[missing], detail="output of this record is missing"),
        findings(history, ANOMALY, found[early], source[early], detail="its input is not committed as processed"),
        findings(history, ANOMALY, found[late], found[before], detail="it stands before output of an earlier record"),
        findings(
            history,
            ANOMALY,
            found[elsewhere],
            evidence.writer[found[elsewhere]],
            consumer,
            detail="another transaction wrote it than consumed its input",
        ),
    ]
    return joined(history, tables)


def unjudged_output(evidence: Evidence, compared: Compared, group: str | None) -> Iterator[str]:
    """Of which output nobody knows what it comes from, for it may be of doubtful input; and which may be missing."""
    rows = compared.seen.rows[compared.excused]
    if compared.doubts.inputs and len(rows):
        yield compared.doubts.sentence(len(rows), keys_text(evidence, rows))
    yield from MissingOutput.of(evidence, compared, group).sentences(compared)


def without_position(evidence: Evidence, inputs: Collection[str], group: str | None) -> list[str]:
    """Those of the inputs of which nobody saw the position of ``group`` in the end."""
    history, final = evidence.history, final_positions(evidence, group)
    return [str(history.keys[code]) for code in history.codes(inputs) if final[code] < 0]


def unproved_output(evidence: Evidence, outputs: Iterable[str]) -> str:
    """Why it proves nothing of the output that ``diverged_output`` finds nothing; empty if it proves something."""
    history = evidence.history
    windows = history.rows(Kind.WINDOW)
    looks = history.keys.take(
        pa.array(distinct(history.key[np.concatenate([windows[evidence.happened[windows]], evidence.polls])]))
    )
    unseen = sorted(set(outputs) - set(looks.to_pylist()))
    return f"nobody looked at {', '.join(unseen)}" if unseen else ""


def _of_other_transactions(evidence: Evidence, found: Ints, source: Ints, group: str | None) -> tuple[Ints, Ints]:
    """The output that another transaction wrote than consumed its input, and for each a poll that consumed that.

    Where both are known: committed transactions consumed the input for the group, and it is known of the writer as well.
    """
    history, polls = evidence.history, evidence.polls
    polls = polls[history.in_txn[polls] & evidence.happened[polls] & (history.group[polls] >= 0)]
    polls = polls[is_of_group(evidence, polls, group)]
    writer = np.where(found >= 0, evidence.writer[found], NOBODY)
    at = np.flatnonzero((writer != NOBODY) & history.in_txn[writer] & evidence.happened[writer])
    places = place(history.key[source[at]], offsets(evidence, source[at]))
    units = len(evidence.unit_end)
    consumed, number = np.unique(place(history.key[polls], history.offset[polls]), return_inverse=True)
    known = np.searchsorted(consumed, places)
    is_known = np.append(consumed, -1)[known] == places
    at, known = at[is_known], known[is_known]
    other = ~among(known * units + history.unit[writer[at]], number * units + history.unit[polls])
    first = np.full(len(consumed), -1, np.int64)
    first[number[::-1]] = polls[::-1]
    return at[other], first[known[other]]


def _disordered(lane: Ints, offset: Ints) -> tuple[Ints, Ints]:
    """The expected records that stand before one of the same input and output partition that comes first."""
    seen = np.flatnonzero(offset >= 0)
    order = seen[np.argsort(lane[seen], kind="stable")]
    lane = lane[order]
    back = (lane[1:] == lane[:-1]) & (offset[order[1:]] < offset[order[:-1]])
    return order[1:][back], order[:-1][back]
