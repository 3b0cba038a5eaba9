"""The progress record: what of a pipeline is committed, and what that says about the next batch. Pure, no I/O.

The record lives in the committed offsets of the pipeline's own group, on one partition of an anchor topic that holds no
data, and is committed in the same transaction as the batch's output. Its offset is the next batch id to commit (Kafka's own
convention: a committed offset is the next one to process); its metadata is a small JSON document:

``{"v": 1, "query": "<Spark's query id>", "instance": "<the driver that claimed the name>", "ends": ["<digest>", ...],
"sources": "<what else is to be known of the sources at the newest end: source_mark.py; not there before 0.1>",
"planned": [<when Spark planned each of these batches, ms since the epoch>, ...]}``, the last one not before 0.1 either

``ends`` holds the digests of the source end offsets of the newest committed batches, newest last. A batch id alone does not
identify a batch::

    batch 7 is committed; the checkpoint is restored from a backup that ends at batch 5
    Spark plans a new batch 6 over everything that arrived meanwhile, far beyond the old 7
    a sink that compares ids sees 6 <= 7, skips it, and loses all that was not in the old 6 and 7

so the digest of what Spark is about to write must equal the digest of what was committed under that id. Where offsets do not
name the records (a file source counts its batches) the digest is also of the time at which Spark planned the batch. Where they
do, that time matters to a query alone that keeps it as state (``Progress.is_planned_again``)::

    batch 7 counts by date(current_timestamp()), and is committed on Monday, as Monday +5; Spark's own entry of it is lost
    nothing has come since; on Tuesday Spark plans batch 7 anew, with the same ends, and its digest is that of the committed one
    it is skipped, for its output is there, and its 5 records are put into the state once more as Tuesday's
    batch 8 says Tuesday 6, where 1 is right: 5 records are counted twice
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

FORMAT_VERSION = 1
DIGESTS_KEPT = 64  # 64 digests of 16 characters stay far below the broker's default of 4096 bytes of metadata


NO_PROGRESS = (
    "no progress is committed under this name, but the checkpoint has batches, or there are source offsets that were committed "
    "with progress: it was used with another name, cluster or guarantee (at_least_once), or the progress has expired since "
    "(offsets.retention.minutes) or was deleted"
)


class ProgressUnreadable(ValueError):
    """The committed metadata was not written by this version of onceflow."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch as Spark offers it.

    ``end`` is the digest of its source end offsets, ``start`` that of the batch before it (empty for batch 0). ``sources`` is
    kept with the progress as it is, and so is ``planned_ms``, when Spark planned it (since the epoch; 0: it is not known).
    """

    id: int
    query_id: str
    start: str
    end: str
    sources: str = ""
    planned_ms: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """What is committed under a pipeline's name; ``next_batch`` is the batch id that comes next.

    ``ends`` and ``planned_ms`` are those of the newest batches, newest last; of fewer are the times known where an older onceflow
    has committed some. ``sources`` are those of the newest.
    """

    next_batch: int
    query_id: str
    instance: str
    ends: tuple[str, ...]
    sources: str = ""
    planned_ms: tuple[int, ...] = ()

    @classmethod
    def empty(cls, instance: str) -> Progress:
        """The claim of a driver on a name under which nothing was committed yet."""
        return cls(0, "", instance, ())

    def claimed_by(self, instance: str) -> Progress:
        """The same progress, owned by another driver."""
        return replace(self, instance=instance)

    def advanced(self, batch: Batch, instance: str) -> Progress:
        """The progress once ``batch`` is committed."""
        follows = self.query_id == batch.query_id and self.next_batch == batch.id
        before = self if follows else Progress.empty(instance)
        ends = (*before.ends, batch.end)[-DIGESTS_KEPT:]
        planned_ms = (*before.planned_ms, batch.planned_ms)[-DIGESTS_KEPT:] if batch.planned_ms else ()
        return Progress(batch.id + 1, batch.query_id, instance, ends, batch.sources, planned_ms)

    def end_of(self, batch_id: int) -> str | None:
        """The digest committed for ``batch_id``, or None when it is too old to be kept."""
        index = batch_id - self.next_batch
        return self.ends[index] if -len(self.ends) <= index < 0 else None

    def planned_at(self, batch_id: int) -> int:
        """When ``batch_id`` was planned that is committed, in ms since the epoch; 0 where that is not known."""
        index = batch_id - self.next_batch
        return self.planned_ms[index] if -len(self.planned_ms) <= index < 0 else 0

    def contains(self, batch: Batch) -> bool:
        """Whether exactly this batch is committed."""
        return self.query_id == batch.query_id and self.end_of(batch.id) == batch.end

    def is_planned_again(self, batch: Batch) -> bool:
        """Whether this batch is committed, and Spark has planned it once more, at another time than then."""
        return self.contains(batch) and differ(self.planned_at(batch.id), batch.planned_ms)

    def encode(self) -> tuple[int, str]:
        """The (offset, metadata) pair to commit."""
        document: dict[str, Any] = {
            "v": FORMAT_VERSION,
            "query": self.query_id,
            "instance": self.instance,
            "ends": list(self.ends),
        }
        if self.sources:
            document["sources"] = self.sources
        if self.planned_ms:
            document["planned"] = list(self.planned_ms)
        return self.next_batch, json.dumps(document, separators=(",", ":"))

    @classmethod
    def decode(cls, offset: int, metadata: str) -> Progress:
        """The progress of a committed (offset, metadata) pair. Raises ProgressUnreadable."""
        try:
            document = json.loads(metadata)
            if document["v"] != FORMAT_VERSION:
                raise ProgressUnreadable(f"format version {document['v']}, this onceflow reads {FORMAT_VERSION}")
            ends = tuple(map(str, document["ends"]))
            sources, planned_ms = str(document.get("sources", "")), tuple(map(int, document.get("planned", ())))
            return cls(offset, str(document["query"]), str(document["instance"]), ends, sources, planned_ms)
        except (ValueError, KeyError, TypeError) as error:
            raise ProgressUnreadable(f"metadata {metadata[:80]!r} is not a progress record: {error}") from error


class Verdict(Enum):
    """What to do with an offered batch."""

    WRITE = "write"
    SKIP = "skip"
    REFUSE = "refuse"


class OnMismatch(Enum):
    """What the user allows when a checkpoint does not continue the committed progress."""

    REFUSE = "refuse"
    RESUME = "resume"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict, and for a refusal why, in words for the user."""

    verdict: Verdict
    reason: str = ""


WRITE = Decision(Verdict.WRITE)
SKIP = Decision(Verdict.SKIP)


def decide(progress: Progress, batch: Batch, allowed: OnMismatch) -> Decision:
    """Step 2 of the commit algorithm: what the committed progress says about ``batch``.

    What does not continue the progress is refused, unless the user asked for it (``allowed``); the reason is kept, so that
    it can be logged. Whether a resumed query starts where the old one ended is checked by the caller, which knows the
    offsets. Never skips or repeats silently.
    """
    decision = _judge(progress, batch)
    if decision.verdict is not Verdict.REFUSE:
        return decision
    resumes = allowed is OnMismatch.RESUME and batch.id == 0 and batch.query_id != progress.query_id
    if allowed is OnMismatch.RESTART or resumes:
        return Decision(Verdict.WRITE, decision.reason)
    return decision


def _judge(progress: Progress, batch: Batch) -> Decision:
    if progress.query_id == "":
        return _first(batch)
    if progress.query_id != batch.query_id:
        return _new_query(progress, batch)
    if batch.id < progress.next_batch:
        return _replayed(progress, batch)
    if batch.id == progress.next_batch:
        return _following(progress, batch)
    return _refuse(
        f"the checkpoint is at batch {batch.id}, but only batches up to {progress.next_batch - 1} are committed: "
        f"{batch.id - progress.next_batch} in between would be lost"
    )


def _first(batch: Batch) -> Decision:
    if batch.id == 0:
        return WRITE
    return _refuse(
        f"the checkpoint is at batch {batch.id}, but no progress is committed under this name: it was used with another "
        "name or another sink, or the committed offsets have expired (offsets.retention.minutes)"
    )


def _new_query(progress: Progress, batch: Batch) -> Decision:
    return _refuse(
        f"query {batch.query_id} offers batch {batch.id}, but query {progress.query_id} has committed batches up to "
        f"{progress.next_batch - 1} under this name: the checkpoint was deleted or replaced, or two pipelines share a name"
    )


def _replayed(progress: Progress, batch: Batch) -> Decision:
    if progress.contains(batch):
        return SKIP
    return _refuse(
        f"batch {batch.id} is committed already, but the checkpoint now gives it other source offsets: the checkpoint is "
        f"older than the progress (up to batch {progress.next_batch - 1}) and Spark planned the batch anew"
    )


def _following(progress: Progress, batch: Batch) -> Decision:
    if progress.end_of(batch.id - 1) == batch.start:
        return WRITE
    return _refuse(
        f"batch {batch.id} does not start where committed batch {batch.id - 1} ended: the checkpoint was edited or is a "
        "mixture of two"
    )


def _refuse(reason: str) -> Decision:
    return Decision(Verdict.REFUSE, reason)


def digest_of(offsets: Any) -> str:
    """A digest of source offsets (any JSON-like value) that does not depend on key order or spacing: 16 characters."""
    canonical = json.dumps(offsets, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()


def differ(before: str | int | None, now: str | int | None) -> bool:
    """Whether both are known (digests, ids of topics, times), and not the same."""
    return bool(before and now) and before != now


SourceOffsets = Mapping[tuple[str, int], int]
"""End offsets of the Kafka sources: (topic, partition) to the next offset to read."""
