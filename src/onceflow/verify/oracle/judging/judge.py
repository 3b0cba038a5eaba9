"""The judge: one history of all that was recorded, read by the checker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.checker import Verdict, check_history
from onceflow.verify.history.coding import Ints
from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.judging.history import history_of
from onceflow.verify.oracle.judging.logged import key_of_batches
from onceflow.verify.recording.recorded import Recorded

_CANNOT_COME = frozenset(
    {
        "wr_cycle", "precommitted_read",  # nobody reads inside of a transaction what such a transaction wrote
        # The pipeline's reading is made of Spark's plan of it, in which a batch begins where the one before ended. What a batch
        # really read nobody tells: Spark's metrics repeat the plan, and a sink gets what the SQL made of it, without the offsets.
        # What is read twice or passed over all the same shows in the output.
        "consumed_never",
    }
)  # fmt: skip
"""Checks that a run's history gives nothing to do, so that finding nothing would tell nothing: the report leaves them out."""

_OF_BATCHES_TAKEN = frozenset({"consumed_twice"})
"""The same, where it is not known which transaction has taken which batch: it is a batch alone that can be taken twice here."""

_OF_EFFECTS = frozenset({"effect_missing", "effect_repeated"})
"""The same, where no readers ran behind the output."""

_NO_ORDER = "a shuffle may change it, or several tasks read a partition (minPartitions, maxRecordsPerPartition)"


@dataclass(frozen=True, slots=True)
class Judgement(Verdict):
    """The verdict on a run, the reasons for which the run, or a part of it, proves nothing, and what it does not look at.

    ``seen_batch`` is the batch of each record that the concurrent reader saw (``Sightings.batch``).
    """

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seen_batch: Ints = field(default_factory=lambda: np.empty(0, np.int64), compare=False)


def judge(recorded: Recorded, expected: Expected | None) -> Judgement:
    """Judges a run. Without ``expected``, or where that is refused, the output's content is not judged, and a reason says so.

    Batches are committed as far as the progress in ``recorded.observed`` says; for an engine without one (Spark's own sink)
    they are committed if Spark's commit log has them, and else when any of their output is visible.
    """
    history, reasons, seen_batch = history_of(recorded, expected)
    verdict = check_history(history, where="the run's history")
    notes = () if expected is None else tuple(_notes(recorded, expected))
    counts = verdict.counts
    cannot_come = set(_CANNOT_COME)
    if recorded.effects is None:
        cannot_come |= _OF_EFFECTS
    if key_of_batches(recorded.pipeline) not in history["key"].unique().to_pylist():
        cannot_come |= _OF_BATCHES_TAKEN
    checks = tuple(each for each in verdict.checks if each.anomaly not in cannot_come or counts[each.anomaly])
    return Judgement(
        verdict.history, verdict.findings, checks, tuple(reasons), notes, seen_batch,
        unproved=verdict.unproved, not_judged=verdict.not_judged,
    )  # fmt: skip


def _notes(recorded: Recorded, expected: Expected) -> Iterator[str]:
    yield from expected.notes
    if expected.unordered:
        yield f"the order inside of a batch is not judged in {', '.join(expected.unordered)}: {_NO_ORDER}"
    written = pc.unique(expected.records["topic"].cast(pa.string())).to_pylist()
    if not expected.refused:
        yield from (f"no record is expected in {name}" for name in recorded.outputs if name not in written)
