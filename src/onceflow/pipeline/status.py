"""What is known of a pipeline from outside: its progress record, its lag, its last batches. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.batch_states import BatchState, batch_states, is_behind, warning
from onceflow.pipeline.local_checkpoint import LocalCheckpoint
from onceflow.pipeline.topics import Partitions
from onceflow.transaction.committed import read_committed
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import Committed
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
class PipelineStatus:
    """All of it; ``progress`` is None where nothing is committed under the name.

    ``checkpoint_query`` is the query that the local checkpoint is of, ``warning`` why that does not continue what is committed;
    empty where there is no such thing.
    """

    name: str
    group: str
    bootstrap_servers: str
    progress: Progress | None
    checkpoint_query: str
    warning: str
    partitions: tuple[PartitionLag, ...]
    batches: tuple[BatchState, ...]


def read_status(name: str, settings: ClusterSettings, location: Path | None, last: int) -> PipelineStatus:
    """Asks the cluster and looks at a local checkpoint; ``last`` bounds the number of batches, of each query.

    The checkpoint comes first: of a batch that a running pipeline commits meanwhile, Kafka then knows more, and never less. One
    that ends before the progress is looked at once more: what was committed meanwhile is planned in it by now.
    """
    checkpoint = None if location is None else LocalCheckpoint.read(location)
    admin = ClusterAdmin(settings)
    known = admin.partitions()
    committed = read_committed(name, settings)
    progress = committed.progress if committed.progress and committed.progress.query_id else None
    return PipelineStatus(
        name,
        transactional_id(name),
        settings.bootstrap_servers,
        committed.progress,
        checkpoint.query_id if checkpoint else "",
        warning(progress, _now(progress, checkpoint), location),
        _lags(admin, known, committed),
        tuple(batch_states(progress, checkpoint, last)),
    )


def _now(progress: Progress | None, checkpoint: LocalCheckpoint | None) -> LocalCheckpoint | None:
    """The checkpoint, read again where that may say more."""
    return LocalCheckpoint.read(checkpoint.location) if checkpoint and is_behind(progress, checkpoint) else checkpoint


def _lags(admin: ClusterAdmin, known: Partitions, committed: Committed) -> tuple[PartitionLag, ...]:
    """Of the partitions that are still there, and of topics that the plan has not left: nobody would ever catch up there."""
    sources = {place: offset for place, offset in sorted(committed.ends.items()) if place[1] in known.get(place[0], ())}
    ends = admin.end_offsets(sources)
    return tuple(PartitionLag(*place, offset, ends[place]) for place, offset in sources.items())
