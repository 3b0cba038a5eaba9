"""Where a query begins when its checkpoint is lost or does not fit: at the committed offsets, or all over again.

``resume`` takes the source offsets that were committed together with the output, so nothing is lost and nothing
repeated; what aggregations and joins had remembered is gone with the checkpoint. ``restart`` begins at
``starting_offsets`` again, and writes again what was written before: on purpose.
"""

from __future__ import annotations

from onceflow.config import Plan, PlanFile
from onceflow.errors import ProgressConflict
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.checkpoint import Checkpoint, CheckpointState
from onceflow.pipeline.events import Listener, Note
from onceflow.pipeline.topics import Partitions, topics_of
from onceflow.transaction.committed import EARLIEST, Committed, read_committed
from onceflow.transaction.progress import OnMismatch, Progress

Offsets = dict[str, dict[str, dict[str, int]]]


def prepare(
    file: PlanFile,
    mode: OnMismatch,
    checkpoint: Checkpoint,
    settings: ClusterSettings,
    known: Partitions,
    sources: int,
    tell: Listener,
) -> tuple[OnMismatch, Offsets]:
    """What the sink shall allow, and where sources start (by source name; empty: as the plan says).

    ``sources`` counts the plan's readings of sources. Sets the old checkpoint aside where a new one is needed. Raises
    ProgressConflict if the checkpoint is another plan's, or if there is nothing to resume.
    """
    state = checkpoint.state()
    if mode is OnMismatch.REFUSE:
        _check_same_plan(state, sources)
        return mode, {}
    if mode is OnMismatch.RESTART:
        _set_aside(checkpoint, mode, tell)
        tell(Note("restart: reads from starting_offsets again, what was written before is written again"))
        return mode, {}
    committed = read_committed(file.plan.name, settings)
    progress = committed.progress
    if progress is None or not progress.query_id:
        raise ProgressConflict(
            f"nothing is committed under the name {file.plan.name!r}: there is nothing to resume",
            action="run it without --resume",
        )
    if continues(state, progress, sources):
        tell(Note("the checkpoint continues the committed progress: there is nothing to resume, it simply goes on"))
        return OnMismatch.REFUSE, {}
    _set_aside(checkpoint, mode, tell)
    tell(Note("resume: reads from the committed offsets; aggregations and joins begin with an empty state"))
    return mode, starting_offsets(file.plan, committed, known)


def _check_same_plan(state: CheckpointState | None, sources: int) -> None:
    if state is not None and state.sources not in (None, sources):
        raise ProgressConflict(
            f"the checkpoint was written by a plan that reads its sources {state.sources} times (once for every branch "
            f"that ends in a sink), this one reads them {sources} times",
            action="go back to the plan as it was, or run with --resume: a new checkpoint begins at the committed "
            "offsets, and aggregations begin empty",
        )


def continues(state: CheckpointState | None, progress: Progress, sources: int) -> bool:
    """Whether a checkpoint is this plan's and goes on where the progress ends, perhaps with the next batch planned."""
    if state is None or state.query_id != progress.query_id or state.sources not in (None, sources):
        return False
    return state.last_batch in (progress.next_batch - 1, progress.next_batch)


def starting_offsets(plan: Plan, committed: Committed, known: Partitions) -> Offsets:
    """The committed offsets per source; a partition that is new since then starts at its beginning."""
    found: Offsets = {}
    for source in plan.source:
        topics = topics_of(source, known)
        found[source.name] = {
            topic: {str(p): committed.offsets.get((topic, p), EARLIEST) for p in known.get(topic, ())}
            for topic in topics
        }
    return found


def _set_aside(checkpoint: Checkpoint, mode: OnMismatch, tell: Listener) -> None:
    moved = checkpoint.set_aside(mode.value)
    if moved is not None:
        tell(Note(f"the old checkpoint is kept in {moved}"))
