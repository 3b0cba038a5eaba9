"""Whether output came behind a fault: batches without any lose nothing and repeat nothing, whatever strikes them.

::

    batches 0 to 2   have all of the output: a filter lets nothing else pass, or the windows end later than the run
    fault            kills the driver in batch 9, in its commit: it met work, and was recovered from
    every record     is there exactly once, for none was ever in danger
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from onceflow.verify.oracle import Expected
from onceflow.verify.result import Encounter
from onceflow.verify.running.course import Effect


def no_output_behind(
    encounters: Sequence[Encounter],
    expected: Expected | None,
    effects: Sequence[Effect],
    began_at: float,
    seen_s: Sequence[float],
) -> str:
    """Why a run with these faults proves nothing; empty if it does, or if there are other reasons.

    A batch counts if it was committed after the first fault that met work had struck. Where nobody knows which batch a
    record is of (``Expected.whole``), when the reader saw it (``seen_s``) counts.
    """
    first = next((each for each in encounters if each.met), None)
    if first is None or expected is None or expected.refused or not len(expected.records):
        return ""
    if expected.whole:
        follows = any(at_s > first.at_s for at_s in seen_s)
    else:
        with_output = set(pc.unique(expected.records["batch"]).to_pylist())
        follows = any(each.batch in with_output and each.at - began_at > first.at_s for each in effects)
    if follows:
        return ""
    return (
        f"no output followed the first fault that met work ({first.fault}, {first.at_s:.0f} s): only what had nothing to "
        "lose was struck; give it values that pass its filters all the time (--input TOPIC=FILE), or longer (--for)"
    )
