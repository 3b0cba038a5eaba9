"""Which batches are committed and which are planned: the progress record beside the checkpoint. Pure.

What it survives::

    the checkpoint is lost, the next start plans a batch 0 and is refused; Kafka has a batch 0 too
    by their ids they are one batch, and nobody would miss what is not written; they are batches of two queries

    a checkpoint is restored from a backup, Spark plans batch 6 anew, the start is refused; Kafka has a batch 6 too
    by query and id they are one batch; what each is made of, its source offsets, tells them apart

    the same, before the start: the checkpoint ends with batch 5 and fits; but Kafka has batches 6 to 9 too
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onceflow.pipeline.local_checkpoint import LocalCheckpoint, Planned
from onceflow.transaction.progress import Progress, differ


@dataclass(frozen=True, slots=True)
class BatchState:
    """A batch of a query, as Kafka and as Spark's checkpoint know it.

    A batch is its source offsets, not its id: where the two give one id other offsets, they are two batches. ``committed`` is
    None where the progress record does not tell: of another query than the newest that committed, or too long ago.
    ``in_checkpoint``: Spark's commit log has it (None: there is no checkpoint to look at).
    """

    query_id: str
    batch_id: int
    committed: bool | None
    in_checkpoint: bool | None
    planned_at: float | None


def batch_states(progress: Progress | None, checkpoint: LocalCheckpoint | None, last: int) -> Iterator[BatchState]:
    """Query by query, that of the progress first."""
    queries = dict.fromkeys(each.query_id for each in (progress, checkpoint) if each)
    for query_id in queries:
        its = progress if progress and progress.query_id == query_id else None
        planned = checkpoint.planned if checkpoint and checkpoint.query_id == query_id else {}
        kept = range(its.next_batch - len(its.ends), its.next_batch) if its else ()
        ids = sorted({*planned, *kept})
        for batch_id in ids[max(len(ids) - last, 0) :]:
            yield from _known_of(query_id, batch_id, its, planned.get(batch_id), looked=checkpoint is not None)


def _known_of(
    query_id: str, batch_id: int, progress: Progress | None, planned: Planned | None, *, looked: bool
) -> Iterator[BatchState]:
    """One row, or two where what is committed is not what is planned. ``looked``: there is a checkpoint."""
    end = progress.end_of(batch_id) if progress else None
    is_another = planned is not None and differ(end, planned.end)
    if end is not None and (planned is None or is_another):
        yield BatchState(query_id, batch_id, True, False if looked else None, None)
    if planned is not None:
        committed = False if is_another else _is_committed(progress, batch_id, end, planned)
        yield BatchState(query_id, batch_id, committed, planned.finished, planned.at)


def _is_committed(progress: Progress | None, batch_id: int, end: str | None, planned: Planned) -> bool | None:
    if progress is None or (batch_id < progress.next_batch and not (end and planned.end)):
        return None
    return batch_id < progress.next_batch


def is_behind(progress: Progress | None, checkpoint: LocalCheckpoint | None) -> bool:
    """Whether more is committed of the checkpoint's query than is planned in it. A batch is planned before it is committed."""
    if progress is None or checkpoint is None or checkpoint.query_id != progress.query_id:
        return False
    return max(checkpoint.planned, default=-1) < progress.next_batch - 1


def warning(progress: Progress | None, checkpoint: LocalCheckpoint | None, location: Path | None) -> str:
    """Why the checkpoint in ``location`` does not continue the progress; empty where it does, or nothing is committed.

    A checkpoint that ``is_behind`` has to be read after the progress. Of a batch that is planned and committed with other offsets
    only the newest counts: below it a slower driver that shared the checkpoint may have replaced what the committing one had
    planned, and Spark never looks there again.
    """
    if progress is None or location is None:
        return ""
    if checkpoint is None:
        return f"there is no checkpoint in {location} on this machine: a start without it will be refused"
    if checkpoint.query_id != progress.query_id:
        return (
            f"the checkpoint in {location} is of another query, {checkpoint.query_id}: Kafka has committed batches of query "
            f"{progress.query_id} last, and does not tell of others; a start with it will be refused"
        )
    newest = min(max(checkpoint.planned, default=-1), progress.next_batch - 1)
    if newest in checkpoint.planned and differ(progress.end_of(newest), checkpoint.planned[newest].end):
        return (
            f"the checkpoint in {location} gives batch {newest} other source offsets than those that are committed: it is older "
            "than the progress, and Spark planned the batch anew; a start with it will be refused"
        )
    if newest in checkpoint.planned and differ(progress.planned_at(newest), checkpoint.planned[newest].planned_ms):
        return (
            f"the checkpoint in {location} gives batch {newest} the source offsets that are committed, and another time: it was "
            "older than the progress, and Spark planned the batch anew; a start with it will be refused if state may depend on "
            "the time"
        )
    if is_behind(progress, checkpoint):
        end = f"ends with batch {newest}" if newest >= 0 else "has no batch"
        return (
            f"the checkpoint in {location} {end}, Kafka has committed batches up to {progress.next_batch - 1}:"
            " it is older than the progress; a start with it will be refused, unless Spark plans those batches just as they were"
        )
    return ""
