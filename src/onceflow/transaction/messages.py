"""The words of the commit protocol: what the machine hears (events) and what it asks for (effects). Pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from onceflow.transaction.progress import Batch, Progress


@dataclass(frozen=True, slots=True)
class Identity:
    """The (producer id, epoch) that owns a transaction."""

    producer_id: int
    epoch: int


class Coordinated(Enum):
    """The coordinator's state of a transaction, as DescribeTransactions names it; what differs for us is grouped."""

    ABSENT = "absent"
    EMPTY = "empty"
    ONGOING = "ongoing"
    COMPLETING = "completing"  # PrepareCommit, PrepareAbort, PrepareEpochFence: markers are still being written
    COMMITTED = "committed"  # CompleteCommit
    ABORTED = "aborted"  # CompleteAbort


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What DescribeTransactions answered."""

    state: Coordinated
    identity: Identity | None


Counts = Mapping[tuple[str, int], int]
"""Records per target partition: (topic, partition) to count."""

Sources = tuple[tuple[tuple[str, int], int], ...]
"""Source offsets as a value that can be hashed: ((topic, partition), offset), in order."""


class Stop(Enum):
    """Why a machine gave up; production turns each into an error of ``onceflow.errors``."""

    FENCED = "another driver took over"
    CONFLICT = "checkpoint and committed progress disagree"
    GONE = "the committed progress is gone"
    EXHAUSTED = "the batch failed too often"
    REJECTED = "the batch cannot be written as it is"
    UNREACHABLE = "the cluster did not answer"
    OUTCOME_UNKNOWN = "a commit was sent and not answered"


# -------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Start:
    """Open the machine."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Spark offers a batch."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Renew:
    """Nothing was committed for long: what is committed is to be committed once more, before the cluster drops it."""


@dataclass(frozen=True, slots=True)
class Described:
    """DescribeTransactions answered."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Initialised:
    """InitProducerId answered with a fresh identity."""

    identity: Identity


@dataclass(frozen=True, slots=True)
class ProgressRead:
    """OffsetFetch (require stable) answered; None when nothing is committed under the name.

    As the answer to ``Store``: it goes on from other progress than this, which is what whoever accepts it has committed.
    """

    progress: Progress | None


@dataclass(frozen=True, slots=True)
class SourcesRead:
    """OffsetFetch of everything answered: the progress, and the source offsets that the newest batch committed with it."""

    progress: Progress | None
    sources: Sources


@dataclass(frozen=True, slots=True)
class Written:
    """Every record of the batch was acknowledged."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """The write, its audit or its offsets failed. ``terminal``: another attempt cannot help, the batch is at fault or denied."""

    terminal: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Audited:
    """DescribeProducers answered: what the partition leaders hold of this identity."""

    held: Counts


@dataclass(frozen=True, slots=True)
class Stored:
    """TxnOffsetCommit was accepted."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The transaction has ended, or (an abort of version 1) is about to; ``identity`` is the next one where it is told."""

    identity: Identity | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker refused the identity or the transaction's state: fenced, timed out, unknown."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No answer within the time allowed for the effect."""

    reason: str


Event = (
    Start
    | Offered
    | Renew
    | Described
    | Initialised
    | ProgressRead
    | SourcesRead
    | Written
    | WriteFailed
    | Audited
    | Stored
    | Ended
    | Refused
    | Unreachable
)

# ------------------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Describe:
    """Send DescribeTransactions. ``settle``: the transaction is completing, ask until it is complete."""

    settle: bool = False


@dataclass(frozen=True, slots=True)
class Initialise:
    """Send InitProducerId. ``expected`` makes it a compare-and-set (KIP-360); None fences whoever is there."""

    expected: Identity | None


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Send OffsetFetch with require_stable."""


@dataclass(frozen=True, slots=True)
class ReadSources:
    """Send OffsetFetch of everything with require_stable."""


@dataclass(frozen=True, slots=True)
class Write:
    """Steps 3 and 4: encode and produce the batch under ``identity``."""

    identity: Identity
    batch: Batch
    attempt: int


@dataclass(frozen=True, slots=True)
class Audit:
    """Step 5: send DescribeProducers for the written partitions."""

    identity: Identity
    counts: Counts


@dataclass(frozen=True, slots=True)
class Store:
    """Step 6: send TxnOffsetCommit. ``batch`` is None for a claim, which carries no source offsets of its own.

    ``renewed``: those that a renewed claim commits once more. ``read``: what it goes on from was only read; where whoever accepts
    it has other progress committed, that is the answer. None: this driver has committed it itself, under the same claim.
    """

    identity: Identity
    progress: Progress
    batch: Batch | None
    renewed: Sources = ()
    read: ProgressRead | None = None


@dataclass(frozen=True, slots=True)
class End:
    """Step 7 (commit) or the end of a failed attempt (abort): send EndTxn, repeat until answered.

    An abort of version 1 is an InitProducerId; where nothing was open that is answered by ``Initialised``.
    """

    identity: Identity
    commit: bool


@dataclass(frozen=True, slots=True)
class Ready:
    """Nothing to do: the machine is open. ``committed``: the offered batch is, by a commit of this offer, or the renewal."""

    batch: Batch | None = None
    committed: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop with an error. Fenced, conflict and rejected are final; the others may be tried again later."""

    stop: Stop
    reason: str


Effect = Describe | Initialise | ReadProgress | ReadSources | Write | Audit | Store | End | Ready | Halt
