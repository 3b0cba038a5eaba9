"""When batch ends are not known: a fault lost the checkpoint, and the pipeline was resumed at its committed offsets.

Then only a plan that treats each record by itself can be judged. All that was consumed is run as one batch, from where the first
checkpoint began to where the group's positions stand. That one batch has one time, and those of the run had each its own::

    the plan           current_timestamp() AS processed_at
    batches 0, 1       at 12:00:00 and 12:00:01; offsets/1 is lost, the pipeline resumes
    run as one         at 12:00:00: all records of batch 1 would seem to be missing, and others to be there that nobody wrote

So that one is run twice, the second time as if planned now, which is behind all batches of the run. If that makes a difference
to the plan, it cannot be judged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.offsets import OffsetLog, Offsets, Planned
from onceflow.verify.oracle.replay import Replay

Positions = Mapping[tuple[str, int], int]
_NO_LOOKS = "of the progress that was committed meanwhile nothing is judged"


def whole_replay(replay: Replay, logs: Sequence[OffsetLog], positions: Positions) -> Expected:
    """What everything up to ``positions`` must lead to, as one batch 0; refused for a plan that keeps state."""
    last = logs[-1]
    begins = next((log for log in logs if log.initial), last)
    template = next((log.batches[0] for log in logs if log.batches), None)
    note = "batch ends are not known (" + (last.broken or "the pipeline was resumed with a new checkpoint") + ")"
    if template is None or not positions:
        lacking = "no batch of the run is left" if template is None else "its group has no committed position"
        refused = f"{note}, and {lacking} to tell what it read"
        return replace(replay.expected(replace(last, batches=())), refused=refused)
    one = OffsetLog(last.query_id, begins.initial, (_everything(template, begins, positions),), ())
    expected = replay.expected(one, again_at_ms=int(time.time() * 1000))
    if expected.stateful:
        refused = f"{note}, and the plan keeps state, which depends on them"
        return replace(expected, records=expected.records.slice(0, 0), refused=expected.refused or refused)
    if expected.refused:
        refused = f"{note}, nor is the time of each batch (current_timestamp()): {expected.refused}"
        return replace(expected, whole=True, refused=refused)
    return replace(expected, whole=True, notes=(f"{note}: judged as one batch, record by record; {_NO_LOOKS}",))


def _everything(template: Planned, begins: OffsetLog, positions: Positions) -> Planned:
    """The metadata of the run's first batch with the ends that are committed.

    An engine that did not write where a source began has named its topics in that batch.
    """
    named = [begins.initial.get(source, end or {}) for source, end in enumerate(template.ends)]
    ends = [_end(topics, positions) for topics in named]
    head = template.text.splitlines()[:2]
    return Planned(0, "\n".join([*head, *(json.dumps(end) for end in ends)]), tuple(ends))


def _end(initial: Offsets, positions: Positions) -> Offsets:
    topics = {topic for topic, _ in positions if topic in initial}
    return {
        topic: {str(partition): offset for (name, partition), offset in positions.items() if name == topic}
        for topic in sorted(topics)
    }
