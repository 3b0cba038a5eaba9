"""What a pipeline promises, and so what becomes of a batch that is not written to its end: in words for an error."""

from __future__ import annotations

from enum import Enum


class Guarantee(Enum):
    """What a pipeline promises of its output."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"

    @property
    def of_a_batch_that_failed(self) -> str:
        """Where nobody knows how far it came."""
        return _FAILED[self]

    @property
    def of_a_write_that_failed(self) -> str:
        """Of the two that write outside of a transaction: progress is committed before the write, or none is."""
        return _NOT_WRITTEN[self]

    def of_a_batch_that_is_done(self, number: int) -> str:
        """Where Spark does not know of it yet, and the query failed::

        batch 7 is committed, and Spark cannot write commits/7 (the disk of the checkpoint is full): the query fails
        whoever is told that nothing of batch 7 is visible writes it again by hand
        """
        if self is Guarantee.AT_LEAST_ONCE:  # it has no progress that would know
            return self.of_a_batch_that_failed
        done = "committed" if self is Guarantee.EXACTLY_ONCE else "written"
        return f"batch {number} is {done}, and the query failed behind it; the next start knows it and goes on"


_FAILED = {
    Guarantee.EXACTLY_ONCE: "a batch is visible as a whole or not at all: onceflow status shows the newest one that is, and the "
    "next start goes on behind it",
    Guarantee.AT_LEAST_ONCE: "of the failed batch all, a part or nothing may be visible; the next start writes all of it again",
    Guarantee.AT_MOST_ONCE: "of the failed batch a part or nothing may be visible; where its progress is committed (onceflow "
    "status) the rest is lost, and the next start goes on behind it",
}
_NOT_WRITTEN = {
    Guarantee.AT_LEAST_ONCE: _FAILED[Guarantee.AT_LEAST_ONCE],
    Guarantee.AT_MOST_ONCE: "the batch is lost, but for what may be visible of it: its progress is committed, and the next start "
    "goes on behind it",
}
