"""Where a query begins when its checkpoint is lost or does not fit: at the committed offsets, or all over again.

``resume`` takes the source offsets that were committed together with the output, so nothing is lost and nothing
repeated; what aggregations and joins had remembered is gone with the checkpoint. ``restart`` begins at
``starting_offsets`` again, and writes again what was written before: on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping

from onceflow.config import Plan, PlanFile
from onceflow.errors import ProgressConflict
from onceflow.kafka.admin import ClusterAdmin, Partition
from onceflow.pipeline.checkpoint import Checkpoint, CheckpointState
from onceflow.pipeline.events import Listener, Note
from onceflow.pipeline.topics import Partitions, topics_of
from onceflow.transaction.progress import OnMismatch, Progress
from onceflow.transaction.requests import ANCHOR_PARTITION, ANCHOR_TOPIC, transactional_id

EARLIEST = -2
ANCHOR = (ANCHOR_TOPIC, ANCHOR_PARTITION)
Committed = Mapping[Partition, tuple[int, str]]
Offsets = dict[str, dict[str, dict[str, int]]]


def progress_in(committed: Committed) -> Progress | None:
    """The progress record among a group's committed offsets."""
    return Progress.decode(*committed[ANCHOR]) if ANCHOR in committed else None


def prepare(
    file: PlanFile, mode: OnMismatch, checkpoint: Checkpoint, admin: ClusterAdmin, known: Partitions, tell: Listener
) -> tuple[OnMismatch, Offsets]:
    """What the sink shall allow, and where sources start (by source name; empty: as the plan says).

    Sets the old checkpoint aside where a new one is needed. Raises ProgressConflict if there is nothing to resume.
    """
    if mode is OnMismatch.REFUSE:
        return mode, {}
    if mode is OnMismatch.RESTART:
        _set_aside(checkpoint, mode, tell)
        tell(Note("restart: reads from starting_offsets again, what was written before is written again"))
        return mode, {}
    committed = admin.committed(transactional_id(file.plan.name))
    progress = progress_in(committed)
    if progress is None or not progress.query_id:
        raise ProgressConflict(
            f"nothing is committed under the name {file.plan.name!r}: there is nothing to resume",
            action="run it without --resume",
        )
    if continues(checkpoint.state(), progress):
        tell(Note("the checkpoint continues the committed progress: there is nothing to resume, it simply goes on"))
        return OnMismatch.REFUSE, {}
    _set_aside(checkpoint, mode, tell)
    tell(Note("resume: reads from the committed offsets; aggregations and joins begin with an empty state"))
    return mode, starting_offsets(file.plan, committed, known)


def continues(state: CheckpointState | None, progress: Progress) -> bool:
    """Whether a checkpoint goes on where the progress ends: at its last batch, or with the next one planned."""
    if state is None or state.query_id != progress.query_id:
        return False
    return state.last_batch in (progress.next_batch - 1, progress.next_batch)


def starting_offsets(plan: Plan, committed: Committed, known: Partitions) -> Offsets:
    """The committed offsets per source; a partition that is new since then starts at its beginning."""
    found: Offsets = {}
    for source in plan.source:
        topics = topics_of(source, known)
        found[source.name] = {
            topic: {str(p): committed.get((topic, p), (EARLIEST, ""))[0] for p in known.get(topic, ())}
            for topic in topics
        }
    return found


def _set_aside(checkpoint: Checkpoint, mode: OnMismatch, tell: Listener) -> None:
    moved = checkpoint.set_aside(mode.value)
    if moved is not None:
        tell(Note(f"the old checkpoint is kept in {moved}"))
