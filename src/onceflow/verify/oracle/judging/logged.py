"""What the logs tell of the pipeline's transactions, as rows of the history: each attempt that was made, and what it committed.

The replay says what must have been written, and readers what can be seen. Neither knows of attempts. The logs have them::

    attempt 1 of batch 7    25 of its 40 records, aborted                      nobody may ever read one of these: aborted_read
    attempt 2 of batch 7    40 records, progress 8, offset 150 of in-0         positions that somebody really gave: torn_progress
    attempt 3 of batch 7    40 records, progress 8 again, committed            a batch of two transactions: consumed_twice
    or                      40 records in one transaction, progress 8 in another: the same, for both are of batch 7

For the last two each committed transaction takes its batch, as a group takes a record: the one whose progress it commits, and
those that its records are of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import ANCHOR_PARTITION, ANCHOR_TOPIC
from onceflow.verify.checker.evidence import place
from onceflow.verify.cluster.placement import GROUPS_TOPIC
from onceflow.verify.history import Kind
from onceflow.verify.history.coding import Ints, dense, expanded, numbered, plain_numbers
from onceflow.verify.history.columns import Mask
from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.judging.book import Book, Lanes, choice, flat, kinds
from onceflow.verify.oracle.judging.sightings import Sightings
from onceflow.verify.recording.log import Log
from onceflow.verify.recording.recorded import Recorded
from onceflow.verify.recording.transactions import Transactions, transactions_of


@dataclass(frozen=True, slots=True)
class Logged:
    """The transactions of a log, with the lane of each of its batches."""

    log: Log
    transactions: Transactions
    lane: Ints

    @classmethod
    def of(cls, recorded: Recorded, lanes: Lanes) -> Logged | None:
        """None where nobody has read the log."""
        if recorded.log is None:
            return None
        return cls(recorded.log, transactions_of(recorded.log), lanes.of(recorded.log.batches))

    def add_uncommitted(self, book: Book, sightings: tuple[Sightings, ...]) -> None:
        """A transaction for each that has written output, or a part of it, that is not committed: the records with their places.

        A record has the value that a reader gave it who saw it all the same; else one of its own.
        """
        rows = np.flatnonzero((self.transactions.of_batch >= 0) & ~self.transactions.is_committed & self._is_output)
        first, until = (plain_numbers(self.log.batches[name])[rows] for name in ("first", "until"))
        offset, row = expanded(first, until, rows)
        txn = self.transactions.of_batch[row]
        order = np.lexsort((offset, self.lane[row], txn))
        txn, lane, offset = txn[order], self.lane[row[order]], offset[order]
        number = dense(txn)
        book.add(
            op=number,
            process=self.process_of(txn),
            kind=kinds(Kind.SEND, len(txn)),
            status=self.status_of(txn),
            txn=number,
            lane=lane,
            offset=offset,
            value=_values(place(lane, offset), sightings),
        )

    @property
    def _is_output(self) -> Mask:
        """For each batch of the log whether it is of the output, and not of the partition that keeps the group."""
        return np.asarray(pc.not_equal(self.log.batches["topic"].cast(pa.string()), GROUPS_TOPIC), bool)

    def batches_taken(self, expected: Expected, seen: tuple[Sightings, ...]) -> list[tuple[int, int]]:
        """Pairs of a committed transaction and a batch that it has: by the progress that it commits, and by its records."""
        return sorted({*self._batches_of_records(seen), *self._batches_of_progress(expected)})

    def _batches_of_records(self, seen: tuple[Sightings, ...]) -> set[tuple[int, int]]:
        first = plain_numbers(self.log.batches["first"])
        ours = np.flatnonzero(self.transactions.of_batch >= 0)
        ours = ours[np.argsort(place(self.lane[ours], first[ours]), kind="stable")]
        starts, until = place(self.lane[ours], first[ours]), plain_numbers(self.log.batches["until"])[ours]
        found: set[tuple[int, int]] = set()
        for each in seen:
            known = each.batch >= 0
            lane, offset, batch = each.lane[known], each.offset[known], each.batch[known]
            at = np.searchsorted(starts, place(lane, offset), side="right") - 1
            inside = (at >= 0) & (self.lane[ours][at] == lane) & (offset < until[at])
            pairs = np.stack([self.transactions.of_batch[ours][at][inside], batch[inside]], axis=1)
            found |= {(int(txn), int(number)) for txn, number in np.unique(pairs, axis=0)}
        return {pair for pair in found if self.transactions.status[pair[0]] == "ok"}

    def _batches_of_progress(self, expected: Expected) -> Iterator[tuple[int, int]]:
        """A claim commits the progress that is there, for the name of its driver; it has no output, and no batch."""
        before, with_output = 0, set(self.transactions.of_batch[self._is_output].tolist())
        for txn, progress in self._progress():
            if progress.query_id != expected.query_id or self.transactions.status[txn] != "ok":
                continue
            if progress.next_batch > before or (txn in with_output and progress.next_batch):
                yield txn, progress.next_batch - 1
            before = progress.next_batch

    def _progress(self) -> Iterator[tuple[int, Progress]]:
        rows = zip(self.transactions.of_given.tolist(), self.log.given.to_pylist(), strict=True)
        for txn, row in sorted(rows, key=lambda each: each[0]):
            if txn >= 0 and (row["topic"], row["partition"]) == (ANCHOR_TOPIC, ANCHOR_PARTITION):
                yield txn, Progress.decode(row["offset"], row["metadata"])

    def given(self, lanes: Lanes) -> tuple[Ints, Ints, Ints]:
        """The positions that transactions gave the group: transaction, lane, offset. The last one counts of several."""
        kept = np.flatnonzero(self.transactions.of_given >= 0)
        table = self.log.given.take(pa.array(kept))
        return self.transactions.of_given[kept], lanes.of(table), plain_numbers(table["offset"])

    def process_of(self, txn: Ints) -> pa.Array:
        """Who made each of these transactions, by producer id and epoch."""
        return choice(txn, [f"producer {number}, epoch {epoch}" for number, epoch, _ in self.transactions.names])

    def status_of(self, txn: Ints) -> pa.Array:
        """The status of each of these transactions, as a word."""
        return choice(txn, self.transactions.status)


def batches_key(recorded: Recorded, lanes: Lanes) -> int:
    """The key at which the pipeline takes its batches, by their numbers; no record stands there."""
    return lanes.target(f"batches of {recorded.pipeline}")


def process_of(recorded: Recorded) -> str:
    """Who gives the pipeline's positions, transaction after transaction."""
    return f"transactions of {recorded.pipeline}"


def add_batches_key(book: Book, recorded: Recorded, next_batch: int, lanes: Lanes) -> None:
    """The batches that must have been committed, as a log of their own that ends where the progress stands."""
    offset, key = np.arange(next_batch), batches_key(recorded, lanes)
    book.add(
        op=offset * 0,
        process=f"plan of {recorded.pipeline}",
        kind=kinds(Kind.SEND, next_batch),
        lane=offset * 0 + key,
        offset=offset,
        value=_batch_names(offset),
    )
    both = np.zeros(2, np.int64)
    kind = np.asarray([Kind.LOG_END, Kind.STABLE_END], np.int64)
    book.add(op=both, process=f"plan of {recorded.pipeline}", kind=kind, lane=both + key, offset=both + next_batch)


def add_logged(book: Book, recorded: Recorded, logged: Logged, taken: list[tuple[int, int]], lanes: Lanes) -> None:
    """Each transaction that gave positions or took batches (pairs of both), with its own outcome, in the order of the log.

    All positions are given by one process, for a transactional id has one transaction at a time: each began when the one before
    had ended. Who takes batches has a process for each transaction, so that a batch which is taken again is told once.
    """
    txn, lane, offset = logged.given(lanes)
    key = batches_key(recorded, lanes)
    is_progress = lane == lanes.number(ANCHOR_TOPIC, ANCHOR_PARTITION)
    pairs = np.asarray(taken, np.int64).reshape(-1, 2)
    count = (len(pairs), len(txn), int(is_progress.sum()))
    txn = np.concatenate([pairs[:, 0], txn, txn[is_progress]])
    part = np.repeat([0, 1, 2], count)
    position = np.concatenate([pairs[:, 1], offset, offset[is_progress]])
    order = np.lexsort((position, part, txn))
    txn, part, position = txn[order], part[order], position[order]
    kind = np.where(part == 0, Kind.POLL, Kind.POSITION).astype(np.int64)
    lane = np.concatenate([np.full(count[0], key), lane, np.full(count[2], key)])[order]
    named = _batch_names(position)
    group = choice(txn * 0, [recorded.pipeline])
    book.add(
        op=dense(2 * txn + (part > 0)),
        process=pc.if_else(pa.array(part == 0), logged.process_of(txn).cast(pa.string()), process_of(recorded)),
        kind=kind,
        status=logged.status_of(txn),
        txn=dense(txn),
        lane=lane,
        offset=position,
        value=pc.if_else(pa.array(part == 0), named, pa.scalar(None, pa.string())),
        group=group,
    )


def _batch_names(numbers: Ints) -> pa.Array:
    return pa.array([f"batch {number}" for number in numbers.tolist()], pa.string())


def _values(places: Ints, sightings: tuple[Sightings, ...]) -> pa.Array:
    """For each place what was read there, or a name that nobody has read."""
    read = np.concatenate([place(each.lane, each.offset) for each in sightings])
    value = pa.concat_arrays([flat(each.value) for each in sightings])
    at = numbered(pa.array(places), pa.array(read))
    names = pa.array([f"never committed {number}" for number in range(len(places))], pa.string())
    return pc.coalesce(value.take(pa.array(at, mask=at < 0)), names)
