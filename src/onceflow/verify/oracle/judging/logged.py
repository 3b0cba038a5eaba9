"""What the logs tell of the pipeline's transactions, as rows of the history: each attempt that was made, and what it committed.

The replay says what must have been written, and readers what can be seen. Neither knows of attempts. The logs have them::

    attempt 1 of batch 7    25 of its 40 records, aborted                  nobody may ever read one of these: aborted_read
    attempt 2 of batch 7    40 records, progress 8, offset 150 of in-0     as the plan has it, or nobody gave that: torn_progress
    attempt 3 of batch 7    40 records, progress 8 again, committed        a batch of two transactions: consumed_twice
    or                      40 records in one, progress 8 in another       the same, for both are of batch 7
    no attempt of batch 8   and progress 9 in one of batch 9               a batch of none: lost

For the last three each committed transaction takes its batch, as a group takes a record: the one whose progress it commits, and
those that its records are of. The batches are a key of their own, a record each, up to the progress that is committed in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.transaction.progress import Progress, ProgressUnreadable
from onceflow.transaction.questions import ANCHOR_PARTITION, ANCHOR_TOPIC
from onceflow.verify.checker.evidence import place
from onceflow.verify.cluster.placement import GROUPS_TOPIC
from onceflow.verify.history import Kind
from onceflow.verify.history.coding import Ints, among, dense, expanded, numbered, plain_numbers
from onceflow.verify.history.columns import Mask
from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.judging.book import Book, Lanes, choice, flat, kinds
from onceflow.verify.oracle.judging.sightings import Sightings
from onceflow.verify.recording.log import Log
from onceflow.verify.recording.recorded import Recorded
from onceflow.verify.recording.transactions import Transactions, transactions_of

Taken = list[tuple[int, int]]
"""Pairs of a committed transaction and a batch that it has."""


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

    @property
    def is_output(self) -> Mask:
        """For each batch of the log whether it is of the output, and not of the partition that keeps the group."""
        return np.asarray(pc.not_equal(self.log.batches["topic"].cast(pa.string()), GROUPS_TOPIC), bool)

    def process_of(self, txn: Ints) -> pa.Array:
        """Who made each of these transactions, by producer id and epoch."""
        return choice(txn, [f"producer {number}, epoch {epoch}" for number, epoch, _ in self.transactions.names])

    def status_of(self, txn: Ints) -> pa.Array:
        """The status of each of these transactions, as a word."""
        return choice(txn, self.transactions.status)

    def committed_progress(self) -> Iterator[tuple[int, int, Progress]]:
        """Row of the positions, transaction and progress of each that was committed, in the order of the log."""
        for row, (txn, given) in enumerate(zip(self.transactions.of_given, self.log.given.to_pylist(), strict=True)):
            is_progress = (given["topic"], given["partition"]) == (ANCHOR_TOPIC, ANCHOR_PARTITION)
            if is_progress and txn >= 0 and self.transactions.status[txn] == "ok":
                try:
                    yield row, int(txn), Progress.decode(given["offset"], given["metadata"])
                except ProgressUnreadable:  # a stranger's, and whoever looks at the group meets it as well
                    continue


def add_uncommitted(book: Book, logged: Logged | None, sightings: tuple[Sightings, ...]) -> None:
    """A transaction for each that has written output, or a part of it, that is not committed: the records with their places.

    A record has the value that a reader gave it who saw it all the same; else one of its own. Only where it is known what should
    be there: a partition with one writer in the history has no other one.
    """
    if logged is None:
        return
    log, transactions = logged.log, logged.transactions
    rows = np.flatnonzero((transactions.of_batch >= 0) & ~transactions.is_committed & logged.is_output)
    first, until = (plain_numbers(log.batches[name])[rows] for name in ("first", "until"))
    offset, row = expanded(first, until, rows)
    txn = transactions.of_batch[row]
    order = np.lexsort((offset, logged.lane[row], txn))
    txn, lane, offset = txn[order], logged.lane[row[order]], offset[order]
    book.add(
        op=dense(txn),
        process=logged.process_of(txn),
        kind=kinds(Kind.SEND, len(txn)),
        status=logged.status_of(txn),
        txn=dense(txn),
        lane=lane,
        offset=offset,
        value=_values(place(lane, offset), sightings),
    )


def _values(places: Ints, sightings: tuple[Sightings, ...]) -> pa.Array:
    """For each place what was read there, or a name that nobody has read."""
    names = pa.array([f"never committed {number}" for number in range(len(places))], pa.string())
    read = np.concatenate([place(each.lane, each.offset) for each in sightings])
    at = np.flatnonzero(among(read, places))  # of millions, hardly any
    value = pa.concat_arrays([flat(each.value) for each in sightings]).take(pa.array(at))
    found = numbered(pa.array(places), pa.array(read[at]))
    return pc.coalesce(value.take(pa.array(found, mask=found < 0)), names)


# -------------------------------------------------------------------------------------- batches, which transactions take


def key_of_batches(pipeline: str) -> str:
    """The key at which the pipeline's transactions take its batches, by their numbers; no topic has that name."""
    return f"batches of {pipeline}"


def add_taken(
    book: Book, recorded: Recorded, logged: Logged, expected: Expected, next_batch: int, lanes: Lanes,
    seen: tuple[Sightings, ...],
) -> None:  # fmt: skip
    """The batches that must have been committed, who has taken each, and who looked at what was taken.

    Who takes has a process for each transaction, so that a batch which is taken again is told once.
    """
    lane = lanes.target(key_of_batches(recorded.pipeline))
    number = np.arange(next_batch)
    book.add(
        op=number * 0,
        process=f"plan of {recorded.pipeline}",
        kind=kinds(Kind.SEND, next_batch),
        lane=number * 0 + lane,
        offset=number,
        value=_names(number),
    )
    taken = sorted({*_by_records(logged, seen), *_by_progress(logged, expected)})
    txn, batch = np.asarray(taken, np.int64).reshape(-1, 2).T
    book.add(
        op=dense(txn),
        process=logged.process_of(txn),
        kind=kinds(Kind.POLL, len(txn)),
        txn=dense(txn),
        lane=np.full(len(txn), lane),
        offset=batch,
        value=_names(batch),
        group=choice(txn * 0, [key_of_batches(recorded.pipeline)]),
    )
    _add_look_at_taken(book, recorded, np.unique(batch), next_batch, lane)


def _add_look_at_taken(book: Book, recorded: Recorded, batch: Ints, next_batch: int, lane: int) -> None:
    """All that were taken, as one who reads from the beginning to the end; then where that is, and the pipeline with it."""
    ends = [Kind.LOG_END, Kind.STABLE_END, Kind.POSITION]
    kind = np.asarray([Kind.ASSIGN, *[Kind.POLL] * len(batch), Kind.WINDOW, *ends], np.int64)
    offset = np.concatenate([[0], batch, [0], np.full(len(ends), next_batch)])
    op = np.asarray([0] * (len(batch) + 2) + [1] * len(ends))
    book.add(
        op=op,
        process=f"plan of {recorded.pipeline}",
        kind=kind,
        lane=op * 0 + lane,
        offset=offset,
        until=np.where(kind == Kind.WINDOW, next_batch, -1),
        value=pc.if_else(pa.array(kind == Kind.POLL), _names(offset), pa.scalar(None, pa.string())),
        group=choice(np.where(kind == Kind.POSITION, 0, -1), [key_of_batches(recorded.pipeline)]),
    )


def _names(numbers: Ints) -> pa.Array:
    return pa.array([f"batch {number}" for number in numbers.tolist()], pa.string())


def _by_records(logged: Logged, seen: tuple[Sightings, ...]) -> Iterator[tuple[int, int]]:
    """By the records of output that somebody read, as far as it is known of which batch each is."""
    log, transactions = logged.log, logged.transactions
    first, until = (plain_numbers(log.batches[name]) for name in ("first", "until"))
    rows = np.flatnonzero((transactions.of_batch >= 0) & transactions.is_committed & logged.is_output)
    rows = rows[np.argsort(place(logged.lane[rows], first[rows]), kind="stable")]
    if not len(rows):
        return
    of_epoch = Counter(name[:2] for name in transactions.names)
    for each in seen:
        known = each.batch >= 0
        lane, offset, batch = each.lane[known], each.offset[known], each.batch[known]
        row = rows[np.searchsorted(place(logged.lane[rows], first[rows]), place(lane, offset), side="right") - 1]
        inside = (logged.lane[row] == lane) & (offset >= first[row]) & (offset < until[row])
        width = int(batch.max(initial=0)) + 1
        for pair in np.unique(transactions.of_batch[row[inside]] * width + batch[inside]).tolist():
            if of_epoch[transactions.names[pair // width][:2]] == 1:  # else it is not known which parts belong together
                yield pair // width, pair % width


def _by_progress(logged: Logged, expected: Expected) -> Iterator[tuple[int, int]]:
    """By the progress that it commits. A claim commits what is there, for the name of its driver; it has no output, no batch."""
    with_output = set(logged.transactions.of_batch[logged.is_output].tolist())
    before = 0
    for _, txn, progress in sorted(logged.committed_progress(), key=lambda each: each[1]):
        if progress.query_id == expected.query_id:
            if progress.next_batch > before or (txn in with_output and progress.next_batch):
                yield txn, progress.next_batch - 1
            before = progress.next_batch


# ---------------------------------------------------------------------------------------- positions, as they really stood


def states(logged: Logged, recorded: Recorded, query_id: str, lanes: Lanes) -> tuple[Ints, Ints, Ints]:
    """Where the group stood behind each transaction that was committed: number of the state, lane, offset.

    As a look at all positions of the group would have seen it, had it come then. Only states of this query's progress, or of the
    claims before it.
    """
    progress = {row: each for row, _, each in logged.committed_progress()}
    by_txn: dict[int, list[int]] = {}
    for row, txn in enumerate(logged.transactions.of_given.tolist()):
        if txn >= 0 and logged.transactions.status[txn] == "ok":
            by_txn.setdefault(txn, []).append(row)
    lane, offset = lanes.of(logged.log.given), plain_numbers(logged.log.given["offset"])
    judged = {lanes.number(*at) for at in _judged_places(logged.log, recorded)}
    stands, query = dict[int, int](), ""
    found: list[tuple[int, int, int]] = []
    for number, txn in enumerate(sorted(by_txn)):
        for row in by_txn[txn]:
            query = progress[row].query_id if row in progress else query
            if lane[row] in judged:
                stands[int(lane[row])] = int(offset[row])
        if query in ("", query_id):
            found += [(number, *each) for each in stands.items()]
    state, lane, offset = np.asarray(found, np.int64).reshape(-1, 3).T
    return state, lane, offset


def _judged_places(log: Log, recorded: Recorded) -> Iterator[tuple[str, int]]:
    for row in log.given.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([]).to_pylist():
        if row["topic"] in (*recorded.inputs, ANCHOR_TOPIC):
            yield row["topic"], row["partition"]
