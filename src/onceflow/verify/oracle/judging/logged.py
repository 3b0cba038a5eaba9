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
from itertools import groupby

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

    @property
    def is_plain(self) -> Mask:
        """For each batch of the log whether its records are of no transaction."""
        return np.asarray(pc.equal(self.log.batches["kind"].cast(pa.string()), "plain"), bool)

    def process_of(self, txn: Ints) -> pa.Array:
        """Who made each of these transactions, by producer id and epoch."""
        return choice(txn, [f"producer {number}, epoch {epoch}" for number, epoch, _ in self.transactions.names])

    def committed_progress(self) -> Iterator[tuple[int, int, Progress]]:
        """Row of the positions, transaction (-1: outside of one) and progress of each that was there, in that order."""
        given = self.log.given.to_pylist()
        for row in self.given_in_order():
            if (given[row]["topic"], given[row]["partition"]) != (ANCHOR_TOPIC, ANCHOR_PARTITION):
                continue
            if given[row]["offset"] is not None:
                try:
                    progress = Progress.decode(given[row]["offset"], given[row]["metadata"])
                except ProgressUnreadable:  # a stranger's, and whoever looks at the group meets it as well
                    continue
                yield row, int(self.transactions.of_given[row]), progress

    def given_in_order(self) -> list[int]:
        """The rows of the positions that were there, in the order in which they were."""
        at = self.transactions.given_at
        rows = np.flatnonzero(at >= 0)
        return list(rows[np.argsort(at[rows], kind="stable")].tolist())

    def told_apart(self) -> Mask:
        """For each transaction whether it is known which parts belong to it: it has an epoch of its own."""
        of_epoch = Counter(name[:2] for name in self.transactions.names)
        return np.asarray([of_epoch[name[:2]] == 1 for name in self.transactions.names], bool)


def add_uncommitted(book: Book, logged: Logged | None, sightings: tuple[Sightings, ...]) -> None:
    """A transaction for each that has written output which is not committed, or not everywhere: the records with their places.

    What the marker on their own partition says became of them, whatever others say. A record has the value that a reader gave
    it who saw it all the same; else one of its own. Only where it is known what should be there: a partition with one writer
    in the history has no other one.
    """
    if logged is None:
        return
    log, transactions = logged.log, logged.transactions
    rows = np.flatnonzero((transactions.of_batch >= 0) & ~transactions.is_committed & logged.is_output)
    first, until = (plain_numbers(log.batches[name])[rows] for name in ("first", "until"))
    offset, row = expanded(first, until, rows)
    txn = transactions.of_batch[row]
    is_open = ~transactions.is_ended[row]
    order = np.lexsort((offset, logged.lane[row], is_open, txn))
    txn, lane, offset, is_open = txn[order], logged.lane[row[order]], offset[order], is_open[order]
    unit = dense(2 * txn + is_open)
    book.add(
        op=unit,
        process=logged.process_of(txn),
        kind=kinds(Kind.SEND, len(txn)),
        status=choice(is_open.astype(np.int64), ["fail", "info"]),
        txn=unit,
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
    group = key_of_batches(recorded.pipeline)
    lane = lanes.target(group)
    number = np.arange(next_batch)
    book.add(
        op=number * 0,
        process=f"plan of {recorded.pipeline}",
        kind=kinds(Kind.SEND, next_batch),
        lane=number * 0 + lane,
        offset=number,
        value=_numbered("batch", number),
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
        value=_numbered("batch", batch),
        group=choice(txn * 0, [group]),
    )
    _add_look(book, f"plan of {recorded.pipeline}", lane, np.unique(batch), next_batch, "batch", group)


def _add_look(book: Book, process: str, lane: int, there: Ints, end: int, name: str, group: str = "") -> None:
    """All that is there, as one sees it who reads from 0 to the end; then where that is, and that the group stands there."""
    ends = [Kind.LOG_END, Kind.STABLE_END, *([Kind.POSITION] if group else [])]
    kind = np.asarray([Kind.ASSIGN, *[Kind.POLL] * len(there), Kind.WINDOW, *ends], np.int64)
    offset = np.concatenate([[0], there, [0], np.full(len(ends), end)])
    op = np.asarray([0] * (len(there) + 2) + [1] * len(ends))
    book.add(
        op=op,
        process=process,
        kind=kind,
        lane=op * 0 + lane,
        offset=offset,
        until=np.where(kind == Kind.WINDOW, end, -1),
        value=pc.if_else(pa.array(kind == Kind.POLL), _numbered(name, offset), pa.scalar(None, pa.string())),
        group=choice(np.where(kind == Kind.POSITION, 0, -1), [group]),
    )


def _numbered(name: str, numbers: Ints) -> pa.Array:
    return pa.array([f"{name} {number}" for number in numbers.tolist()], pa.string())


def _by_records(logged: Logged, seen: tuple[Sightings, ...]) -> Iterator[tuple[int, int]]:
    """By the records of output that somebody read, as far as it is known of which batch each is."""
    transactions, told_apart = logged.transactions, logged.told_apart()
    rows = np.flatnonzero((transactions.of_batch >= 0) & transactions.is_committed & logged.is_output)
    for row, batch in _batches_read(logged, rows, seen):
        if told_apart[transactions.of_batch[row]]:
            yield int(transactions.of_batch[row]), batch


def _batches_read(logged: Logged, rows: Ints, seen: tuple[Sightings, ...]) -> set[tuple[int, int]]:
    """Pairs of one of these rows of the log and a batch of the pipeline that a record in it is of."""
    first, until = (plain_numbers(logged.log.batches[name]) for name in ("first", "until"))
    rows = rows[np.argsort(place(logged.lane[rows], first[rows]), kind="stable")]
    found: set[tuple[int, int]] = set()
    for each in seen if len(rows) else ():
        known = each.batch >= 0
        lane, offset, batch = each.lane[known], each.offset[known], each.batch[known]
        row = rows[np.searchsorted(place(logged.lane[rows], first[rows]), place(lane, offset), side="right") - 1]
        inside = (logged.lane[row] == lane) & (offset >= first[row]) & (offset < until[row])
        width = int(batch.max(initial=0)) + 1
        found |= {divmod(pair, width) for pair in np.unique(row[inside] * width + batch[inside]).tolist()}
    return found


def _by_progress(logged: Logged, expected: Expected) -> Iterator[tuple[int, int]]:
    """By the progress that it commits. A claim commits what is there, for the name of its driver; it has no output, no batch."""
    with_output = set(logged.transactions.of_batch[logged.is_output].tolist())
    before = 0
    for _, txn, progress in logged.committed_progress():
        if progress.query_id == expected.query_id:
            if txn >= 0 and (progress.next_batch > before or (txn in with_output and progress.next_batch)):
                yield txn, progress.next_batch - 1
            before = progress.next_batch


# -------------------------------------------------------------------------------------------- output with its progress


def add_whole(book: Book, recorded: Recorded, logged: Logged, lanes: Lanes, seen: tuple[Sightings, ...]) -> None:
    """Each transaction that has output and must have progress, as one that sends both; and who looked at what of it is there.

    So one without progress is torn, and so is output of a batch that is in no transaction at all::

        transaction    40 records of batch 7
        beside it      progress 8, committed outside of it      a crash between the two, and batch 7 is written again
    """
    transactions = logged.transactions
    of_output = transactions.of_batch[logged.is_output & transactions.is_committed]
    with_output = np.unique(of_output[of_output >= 0])
    with_progress = np.asarray([txn for _, txn, _ in logged.committed_progress()], np.int64)
    plain = np.flatnonzero(logged.is_plain & logged.is_output)
    beside = len({row for row, _ in _batches_read(logged, plain, seen)})
    has_progress = np.concatenate([among(with_output, with_progress), np.zeros(beside, bool)])
    count = len(has_progress)
    both = [lanes.target(f"{what} in transactions of {recorded.pipeline}") for what in ("output", "progress")]
    number = np.repeat(np.arange(count), 2)
    names = logged.process_of(with_output).to_pylist() + ["nobody's transaction"] * beside
    book.add(
        op=number,
        process=choice(number, [f"{name}, transaction {each}" for each, name in enumerate(names)]),
        kind=kinds(Kind.SEND, 2 * count),
        txn=number,
        lane=np.tile(both, count),
        offset=number,
        value=_numbered("transaction", number),
    )
    for lane, there in zip(both, (np.arange(count), np.flatnonzero(has_progress)), strict=True):
        _add_look(book, f"log of {recorded.pipeline}", lane, there, count, "transaction")


# ---------------------------------------------------------------------------------------- positions, as they really stood


def states(logged: Logged, recorded: Recorded, query_id: str, lanes: Lanes) -> tuple[Ints, Ints, Ints]:
    """Where the group stood, behind each change of that: number of the state, lane, offset.

    As a look at all positions of the group would have seen it, had it come then. Changed it is by what is committed, in a
    transaction or outside of one. Only states of this query's progress, or of the claims before it.
    """
    log, at = logged.log, logged.transactions.given_at
    query_of = {row: progress.query_id for row, _, progress in logged.committed_progress()}
    lane, offset = lanes.of(log.given), plain_numbers(log.given["offset"])
    judged = {lanes.number(*each) for each in _judged_places(log, recorded)}
    stands, query = dict[int, int](), ""
    found: list[tuple[int, int, int]] = []
    for when, rows in groupby(logged.given_in_order(), key=lambda row: int(at[row])):
        for row in rows:
            query = query_of.get(row, query)
            if lane[row] in judged:
                stands[int(lane[row])] = max(int(offset[row]), 0)  # one that is removed stands at no place
        if query in ("", query_id):
            found += [(when, *each) for each in stands.items()]
    state, lane, offset = np.asarray(found, np.int64).reshape(-1, 3).T
    return dense(state), lane, offset


def _judged_places(log: Log, recorded: Recorded) -> Iterator[tuple[str, int]]:
    for row in log.given.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([]).to_pylist():
        if row["topic"] in (*recorded.inputs, ANCHOR_TOPIC):
            yield row["topic"], row["partition"]
