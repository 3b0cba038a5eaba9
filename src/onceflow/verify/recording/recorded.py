"""All that was recorded of one run."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from onceflow.verify.recording.ends import Observed
from onceflow.verify.recording.log import Log
from onceflow.verify.recording.tables import PROGRESS, READ, SENT


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the clients of one run did and saw, as tables of ``recording.tables``; what ``judge`` judges.

    ``pipeline`` is the plan's name; ``sent`` (SENT) what the writers sent, several writers put together; ``seen`` (READ) what
    the concurrent reader read; ``final`` (READ) and ``observed`` what was there at the end, when nothing ran any more.
    ``progress`` (PROGRESS) what the pipeline's group had committed meanwhile, look by look.
    ``effects`` (EFFECTS) is what readers behind the output made of it; None: there were none. Without ``handled`` they did not
    come to the end, so that an effect which is not there may only not have been yet.
    ``log`` is what the leaders have of the output and of the group; None: nobody has read that.
    ``grown`` are topics that got partitions during the run, so that a key's partition is not known.
    """

    pipeline: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    final: pa.Table
    observed: Observed
    sent: pa.Table = field(default_factory=SENT.empty_table)
    seen: pa.Table = field(default_factory=READ.empty_table)
    progress: pa.Table = field(default_factory=PROGRESS.empty_table)
    grown: frozenset[str] = frozenset()
    effects: pa.Table | None = None
    handled: bool = True
    log: Log | None = None
