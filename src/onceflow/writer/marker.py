"""What is committed under a transactional id, as a fact that can be read. Pure, no I/O.

Each transaction of a writer commits, besides the caller's events and offsets, one offset of a group of the writer's own on
the anchor topic: the number of committed transactions, and as metadata who holds the id and since which number::

    {"v": 1, "claims": [["a1b2...", 0], ["c3d4...", 17]], "progress": "..."}

Whether transaction n was committed is then read, not concluded from error codes. It matters when the answer is lost::

    writer A sends EndTxn for transaction 18 and is cut off; 18 is committed, A does not know it
    writer B starts under the same id: it fences A, reads 18, and claims the id since 18
    A's repeated EndTxn is refused as fenced: committed or not? A's successor claimed since 18, so 18 is A's and committed

A writer claims in a transaction of its own, after it fenced and before it is open. So a refused writer can tell whether the
id is another's now (stop, never fence back) or still its own (its transaction timed out, or the id expired: go on).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from onceflow.errors import ProgressConflict

FORMAT_VERSION = 1
CLAIMS_KEPT = 16
PROGRESS_BYTES = 2048  # as JSON; with the claims it stays below the broker's default of 4096 bytes of metadata


def size_of(progress: str) -> int:
    """The bytes that a progress takes in the marker."""
    return len(json.dumps(progress, ensure_ascii=False).encode()) - 2


@dataclass(frozen=True, slots=True)
class Claim:
    """A writer that took the id when ``since`` transactions were committed."""

    instance: str
    since: int


@dataclass(frozen=True, slots=True)
class Marker:
    """What is committed: how many transactions, who claimed the id (newest last), and the caller's own progress."""

    number: int = 0
    claims: tuple[Claim, ...] = ()
    progress: str = ""

    @property
    def owner(self) -> str:
        """The instance that claimed the id last; empty if none did."""
        return self.claims[-1].instance if self.claims else ""

    def is_taken_from(self, instance: str, number: int) -> bool:
        """Whether another one has surely claimed the id after ``instance``, which knows of ``number`` committed transactions.

        What was committed before its own claim has neither more of them nor that claim.
        """
        is_later = self.number > number or any(claim.instance == instance for claim in self.claims)
        return is_later and self.owner not in ("", instance)

    def claimed_by(self, instance: str) -> Marker:
        """The marker of a claim: nothing new is committed, but by whom the next will be. The owner need not claim again."""
        if self.owner == instance:
            return self
        return replace(self, claims=(*self.claims, Claim(instance, self.number))[-CLAIMS_KEPT:])

    def advanced(self, progress: str | None) -> Marker:
        """The marker of the owner's next transaction; None keeps the progress."""
        return replace(self, number=self.number + 1, progress=self.progress if progress is None else progress)

    def tells(self, instance: str, number: int) -> bool | None:
        """Whether ``instance`` committed transaction ``number``; None if the marker cannot tell any more."""
        names = [claim.instance for claim in self.claims]
        if instance not in names:
            return None
        following = self.claims[names.index(instance) + 1 :]
        return (following[0].since if following else self.number) >= number

    def encode(self) -> tuple[int, str]:
        """The (offset, metadata) to commit."""
        claims = [[claim.instance, claim.since] for claim in self.claims]
        document = {"v": FORMAT_VERSION, "claims": claims, "progress": self.progress}
        return self.number, json.dumps(document, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def decode(cls, offset: int, metadata: str) -> Marker:
        """The marker of a committed (offset, metadata). Raises ProgressConflict."""
        try:
            document = json.loads(metadata)
            if document["v"] != FORMAT_VERSION:
                raise ValueError(f"format version {document['v']}, this onceflow reads {FORMAT_VERSION}")
            claims = tuple(Claim(str(instance), int(since)) for instance, since in document["claims"])
            return cls(offset, claims, str(document["progress"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ProgressConflict(
                f"the writer's marker {metadata[:80]!r} cannot be read: {error}",
                action="use the onceflow version that wrote it, or another transactional_id",
            ) from error
