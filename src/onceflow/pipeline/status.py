"""What is known of a pipeline from outside: its progress record, its lag, its last batches. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.topics import Partitions
from onceflow.transaction.committed import Committed, read_committed
from onceflow.transaction.progress import Progress
from onceflow.transaction.requests import transactional_id


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One source partition; ``end`` is where a read_committed reader ends. The lag counts offsets, markers too."""

    topic: str
    partition: int
    committed: int
    end: int

    @property
    def lag(self) -> int:
        return max(self.end - self.committed, 0)


@dataclass(frozen=True, slots=True)
class BatchState:
    """A batch as Kafka and as Spark's checkpoint know it (None: there is no checkpoint to look at)."""

    batch_id: int
    committed: bool
    in_checkpoint: bool | None
    planned_at: float | None


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """All of it; ``progress`` is None where nothing is committed under the name."""

    name: str
    group: str
    bootstrap_servers: str
    progress: Progress | None
    partitions: tuple[PartitionLag, ...]
    batches: tuple[BatchState, ...]


def read_status(name: str, settings: ClusterSettings, checkpoint: Path | None, last: int) -> PipelineStatus:
    """Asks the cluster and looks at a local checkpoint; ``last`` bounds the number of batches."""
    admin = ClusterAdmin(settings)
    known = admin.partitions()
    committed = read_committed(name, settings)
    return PipelineStatus(
        name,
        transactional_id(name),
        settings.bootstrap_servers,
        committed.progress,
        _lags(admin, known, committed),
        _batches(committed.progress, checkpoint, last),
    )


def _lags(admin: ClusterAdmin, known: Partitions, committed: Committed) -> tuple[PartitionLag, ...]:
    """Of the partitions that are still there."""
    sources = {
        place: offset for place, offset in sorted(committed.offsets.items()) if place[1] in known.get(place[0], ())
    }
    ends = admin.end_offsets(sources)
    return tuple(PartitionLag(*place, offset, ends[place]) for place, offset in sources.items())


def _batches(progress: Progress | None, checkpoint: Path | None, last: int) -> tuple[BatchState, ...]:
    planned = _numbered(checkpoint, "offsets")
    finished = _numbered(checkpoint, "commits")
    next_batch = progress.next_batch if progress else 0
    kept = len(progress.ends) if progress else 0
    ids = sorted({*planned, *range(next_batch - kept, next_batch)})[-last:]
    return tuple(
        BatchState(i, i < next_batch, i in finished if checkpoint is not None else None, planned.get(i)) for i in ids
    )


def _numbered(checkpoint: Path | None, kind: str) -> dict[int, float]:
    """The numbered files of a log in the checkpoint, with the time (seconds since 1970) each was written."""
    if checkpoint is None or not (checkpoint / kind).is_dir():
        return {}
    return {int(f.name): f.stat().st_mtime for f in (checkpoint / kind).iterdir() if f.name.isdecimal()}
