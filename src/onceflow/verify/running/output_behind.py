"""Whether output came behind a fault: batches without any lose nothing and repeat nothing, whatever strikes them.

::

    batches 0 to 2   have all of the output: a filter lets nothing else pass, or the windows end later than the run
    fault            kills the driver in batch 9, in its commit: it met work, and was recovered from
    every record     is there exactly once, for none was ever in danger
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.oracle import Expected
from onceflow.verify.recording.tables import Place, last_offsets
from onceflow.verify.result import Encounter
from onceflow.verify.running.course import Effect


def no_output_behind(
    encounters: Sequence[Encounter],
    expected: Expected | None,
    begun: Sequence[Effect],
    final: pa.Table,
    stable: pa.Table,
) -> str:
    """Why a run with these faults proves nothing; empty if it does, or if there are other reasons.

    A batch counts if its commit had ``begun`` (``Output.begun``) after the first fault that met work had struck. Where nobody
    knows which batch a record is of (``Expected.whole``), a record of the ``final`` read (READ) counts that was written after
    that: it stands behind the end of its log, as the first sample behind the fault (``stable``, STABLE) has that::

        9.9    batch 6, the last one that has output, is committed
        10.0   the fault strikes
        10.1   the reader, which waits for 0.2 s at a time, gets what batch 6 wrote: that is no output behind the fault
    """
    first = next((each for each in encounters if each.met), None)
    if first is None or expected is None or expected.refused or not len(expected.records):
        return ""
    if expected.whole:
        ends = _ends_behind(stable, first.at_s)
        follows = any(last >= ends[at] for at, last in last_offsets(final).items() if at in ends)
    else:
        with_output = set(pc.unique(expected.records["batch"]).to_pylist())
        follows = any(each.batch in with_output and each.at > first.at_s for each in begun)
    if follows:
        return ""
    return (
        f"no output followed the first fault that met work ({first.fault}, {first.at_s:.0f} s): only what had nothing to "
        "lose was struck; give it values that pass its filters all the time (--input TOPIC=FILE), or longer (--for)"
    )


def _ends_behind(stable: pa.Table, since_s: float) -> dict[Place, int]:
    """The end of each partition's log as it was first asked for since then."""
    ends: dict[Place, int] = {}
    for row in stable.filter(pc.greater_equal(stable["at_s"], since_s)).to_pylist():
        ends.setdefault((row["topic"], row["partition"]), row["end"])
    return ends
