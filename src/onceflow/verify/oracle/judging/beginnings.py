"""Where the pipeline's reading had to begin: at the first record of every partition of the input.

That is the plan's word, for a run's plan begins at the earliest offset of private topics. Where the reading did begin is the
engine's own word (``sources/N/0`` of its checkpoint)::

    input, committed     in-0: offsets 0 to 11
    an engine            begins at the end of the input, which is 8 then; its batches read 8 to 11, and their output is there
    judged by itself     each batch goes on where the one before it ended, nothing of theirs is missing; 0 to 7 are in no batch

So the history says where each reading begins (``assign`` at 0), and the checker finds what was skipped: ``poll_skip``. Where
nothing at all was read of a partition there is no poll that could come too late. There the batches stand at 0, which is an
observation of its own: ``stuck_progress``, if there is a record that they could have taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from onceflow.verify.history import Kind
from onceflow.verify.history.coding import Ints
from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.judging.batches import Batches, Polled, process_names
from onceflow.verify.oracle.judging.book import Book, Lanes, choice, kinds
from onceflow.verify.recording.recorded import Recorded

_READING_BITS = 16


@dataclass(frozen=True, slots=True)
class Beginnings:
    """Each partition of the input, once for every reading of its topic. All begin at 0."""

    lane: Ints
    reading: Ints

    @classmethod
    def of(cls, recorded: Recorded, expected: Expected, lanes: Lanes) -> Beginnings:
        """Those of a plan whose batches are known; partitions that were added are read from their beginning, too."""
        readings = _readings(recorded, expected)
        pairs = [
            (lanes.number(row["topic"], row["partition"]), reading)
            for row in recorded.observed.ends.select(["topic", "partition"]).to_pylist()
            for reading in readings.get(row["topic"], ())
        ]
        both = np.asarray(pairs, np.int64).reshape(-1, 2)
        return cls(both[:, 0], both[:, 1])

    def add_to(self, book: Book, pipeline: str) -> None:
        """Says where each reading begins, before any batch."""
        order = np.argsort(self.reading, kind="stable")
        book.add(
            op=self.reading[order],
            process=choice(self.reading[order], process_names(pipeline, self.reading)),
            kind=kinds(Kind.ASSIGN, len(order)),
            lane=self.lane[order],
            offset=np.zeros(len(order), np.int64),
        )

    def add_untouched(self, book: Book, batches: Batches, polled: Polled, observer: str, pipeline: str) -> None:
        """Where no batch that was, or may have been, committed read a record: there the batches stand at the beginning."""
        may_be = ~batches.has_failed(polled.batch)
        touched = _both(polled.lane[may_be], polled.reading[may_be])
        untouched = ~np.isin(_both(self.lane, self.reading), touched)
        lane, reading = self.lane[untouched], self.reading[untouched]
        groups = [f"batches of {name}" for name in process_names(pipeline, reading)]
        book.add(
            op=np.zeros(len(lane), np.int64),
            process=observer,
            kind=kinds(Kind.POSITION, len(lane)),
            lane=lane,
            offset=np.zeros(len(lane), np.int64),
            group=choice(reading, groups),
        )


def _readings(recorded: Recorded, expected: Expected) -> dict[str, list[int]]:
    """The numbers of the readings of each topic of the input: 0 at least, also where no batch names the topic."""
    of_topic: dict[str, set[int]] = {topic: {0} for topic in recorded.inputs}
    named = pa.table({"topic": expected.ranges["topic"].cast(pa.string()), "reading": expected.ranges["reading"]})
    for row in named.group_by(["topic", "reading"]).aggregate([]).to_pylist():
        of_topic.setdefault(row["topic"], set()).add(row["reading"])
    return {topic: sorted(numbers) for topic, numbers in of_topic.items()}


def _both(lane: Ints, reading: Ints) -> Ints:
    return lane << _READING_BITS | reading
