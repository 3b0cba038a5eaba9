"""The history of a run, in the order: writers, the pipeline's batches, what of its attempts was not committed, the concurrent
reader, the final reader, the effects, the ends, what was committed for the group, the looks at that, the batches that were taken.

What the concurrent reader got from behind a stable end, after that was asked for, stands behind the ends::

    the ends are asked for: a transaction is open
    its time is out, and the broker commits or aborts it        what stands behind it becomes visible
    the concurrent reader gets that                             it was right to, and nothing hangs
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from onceflow.verify.history import Kind
from onceflow.verify.history.coding import Ints, codes_of, dense, plain_numbers
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import MAX_OFFSET
from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.judging.batches import (
    Batches,
    add_batches,
    polled_by,
    unknown_batches,
)
from onceflow.verify.oracle.judging.beginnings import Beginnings
from onceflow.verify.oracle.judging.book import Book, Lanes, choice, flat, kinds
from onceflow.verify.oracle.judging.effects import add_effects
from onceflow.verify.oracle.judging.logged import Logged, add_taken, add_uncommitted, add_whole
from onceflow.verify.oracle.judging.positions import add_commits, add_last_look, add_looks, add_states
from onceflow.verify.oracle.judging.sightings import Sightings, sightings
from onceflow.verify.recording.recorded import Recorded
from onceflow.verify.recording.tables import of_topics

READER, FINAL, OBSERVER, NOBODY = "reader", "final reader", "observer", "nobody"
NO_OUTPUT = (
    "the plan makes no record of this input, so that nothing was judged: give it values that pass its filters "
    "(--input TOPIC=FILE)"
)


def history_of(recorded: Recorded, expected: Expected | None) -> tuple[pa.Table, list[str], Ints]:
    """The history (``docs/history-format.md``), why parts of it cannot be judged, and the batch of each record of
    ``recorded.seen`` (``Sightings.batch``).
    """
    unknown = "" if expected is None else unknown_batches(recorded, expected)
    if expected is not None:
        refused = expected.refused or unknown
        records = expected.records.slice(0, 0) if refused else expected.records
        expected = replace(expected, records=records, refused=refused)
    lanes = Lanes()
    book = Book(lanes)
    final, seen, wrote = sightings(recorded, expected, lanes)
    logged = Logged.of(recorded, lanes)
    reasons = []
    batches = None
    _add_sent(book, recorded.sent, lanes)
    if expected is None or expected.refused:
        reasons.append(f"the output was not judged: {expected.refused if expected else 'no expectation'}")
    elif not len(expected.records):
        reasons.append(NO_OUTPUT)
    if expected is not None:
        batches = Batches.of(recorded, expected, lanes)
        polled = polled_by(batches, final)
        if len(expected.ranges) and not unknown:
            beginnings = Beginnings.of(recorded, expected, lanes)
            beginnings.add_to(book, recorded.pipeline)
            beginnings.add_untouched(book, batches, polled, OBSERVER, recorded.pipeline)
        add_batches(book, batches, polled, expected, wrote, recorded.pipeline)
        if not expected.refused:
            _add_nobody(book, recorded, wrote.lane, lanes)
            add_uncommitted(book, logged, (final, seen))
    late = _is_late(seen, recorded, lanes)
    _add_beginning(book, seen)
    _add_seen(book, seen, ~late)
    _add_final(book, final, recorded, lanes)
    if recorded.effects is not None:
        add_effects(book, recorded, recorded.effects, final, lanes)
    _add_ends(book, recorded, lanes)
    _add_seen(book, seen, late)
    known: Ints = np.empty(0, np.int64)
    if expected is not None and batches is not None and batches.next_batch is not None:
        known = add_commits(book, recorded, expected, batches, lanes)
        add_looks(book, recorded, expected, known, lanes)
        _add_logged(book, recorded, expected, batches.next_batch, logged, known, lanes, (final, seen))
    add_last_look(book, recorded, known, lanes, OBSERVER)
    return book.table(), reasons, seen.batch


def _add_logged(
    book: Book, recorded: Recorded, expected: Expected, next_batch: int, logged: Logged | None, known: Ints, lanes: Lanes,
    sightings: tuple[Sightings, ...],
) -> None:  # fmt: skip
    """What the log tells of committed transactions: what each gave, and which batch it has."""
    if logged is not None:
        add_states(book, recorded, expected, logged, known, lanes)
        add_taken(book, recorded, logged, expected, next_batch, lanes, sightings)
        add_whole(book, recorded, logged, lanes, sightings)


def _add_sent(book: Book, sent: pa.Table, lanes: Lanes) -> None:
    process, names = codes_of(sent["process"])
    number = dense(process * (int(plain_numbers(sent["txn"]).max(initial=0)) + 1) + plain_numbers(sent["txn"]))
    book.add(
        op=number,
        process=choice(process, names.to_pylist()),
        kind=kinds(Kind.SEND, len(sent)),
        status=sent["status"].combine_chunks() if len(sent) else "ok",
        txn=number,
        lane=lanes.of(sent),
        offset=plain_numbers(sent["offset"]),
        value=sent["id"].combine_chunks(),
    )


def _add_nobody(book: Book, recorded: Recorded, wrote: Ints, lanes: Lanes) -> None:
    """Output partitions on which nothing is expected: who wrote there is known to the history, for it is nobody.

    Without a row of a writer the checker takes a partition for one whose writers were not recorded.
    """
    empty = np.setdiff1d(lanes.of(of_topics(recorded.observed.ends, recorded.outputs)), wrote)
    rows = len(empty)
    value = pa.array(["no record is expected here"] * rows, pa.string())
    kind = kinds(Kind.SEND, rows)
    book.add(op=np.arange(rows), process=NOBODY, kind=kind, status="fail", lane=empty, value=value)


def _is_late(seen: Sightings, recorded: Recorded, lanes: Lanes) -> Mask:
    """For each record that the concurrent reader got whether it became visible after the ends were asked for, or may have."""
    ends, asked_s = recorded.observed.ends, recorded.observed.asked_s
    of_ends = lanes.of(ends)
    stable = np.full(max(of_ends.max(initial=-1), seen.lane.max(initial=-1)) + 1, MAX_OFFSET)
    stable[of_ends] = plain_numbers(ends["stable"])
    after = asked_s is None or np.asarray(recorded.seen["at_s"].combine_chunks()) >= asked_s
    late: Mask = after & (seen.offset >= stable[seen.lane])
    return late


def _add_beginning(book: Book, seen: Sightings) -> None:
    lane = np.unique(seen.lane)
    rows = len(lane)
    zeros = np.zeros(rows, np.int64)
    book.add(op=zeros, process=READER, kind=kinds(Kind.ASSIGN, rows), lane=lane, offset=zeros)


def _add_seen(book: Book, seen: Sightings, chosen: Mask) -> None:
    """These of the records that the concurrent reader got."""
    op = seen.op[chosen]
    book.add(
        op=dense(op),
        process=READER,
        kind=kinds(Kind.POLL, len(op)),
        lane=seen.lane[chosen],
        offset=seen.offset[chosen],
        value=flat(seen.value).filter(pa.array(chosen)),
    )


def _add_final(book: Book, final: Sightings, recorded: Recorded, lanes: Lanes) -> None:
    """One operation a partition: from its beginning on, these records, and that is all.

    Nothing may drop records of a run's private topics, so every log begins at 0, wherever the broker says that it does::

        out-1   the broker moves its beginning to 4, as retention would; 0 to 3 had been read, and acted upon
        judged from 4 on, nothing is missing; judged from 0 on, four records are
    """
    ends = recorded.observed.ends
    lane, stable = lanes.of(ends), plain_numbers(ends["stable"])
    rows, polls = len(lane), len(final.lane)
    start = np.zeros(rows, np.int64)
    kind = np.concatenate([kinds(Kind.ASSIGN, rows), kinds(Kind.POLL, polls), kinds(Kind.WINDOW, rows)])
    offset = np.concatenate([start, final.offset, start])
    until = np.concatenate([np.full(rows + polls, -1), stable])
    value = pa.concat_arrays([pa.nulls(rows, pa.string()), flat(final.value), pa.nulls(rows, pa.string())])
    lanes_of_rows = np.concatenate([lane, final.lane, lane])
    part = np.repeat([0, 1, 2], [rows, polls, rows])
    order = np.lexsort((offset, part, lanes_of_rows))
    book.add(
        op=dense(lanes_of_rows)[order],
        process=FINAL,
        kind=kind[order],
        lane=lanes_of_rows[order],
        offset=offset[order],
        until=until[order],
        value=value.take(pa.array(order)),
    )


def _add_ends(book: Book, recorded: Recorded, lanes: Lanes) -> None:
    """The ends of the log have an operation of their own, before that of the stable ends.

    When that began is known by it, so that what stands before both was read before, for certain.
    """
    ends = recorded.observed.ends
    lane, rows = lanes.of(ends), len(ends)
    op = np.zeros(rows, np.int64)
    for kind, name in ((Kind.LOG_END, "end"), (Kind.STABLE_END, "stable")):
        book.add(op=op, process=OBSERVER, kind=kinds(kind, rows), lane=lane, offset=plain_numbers(ends[name]))
        if (group := recorded.observed.group) is not None:
            zero = np.zeros(len(group), np.int64)
            kept, offset = lanes.of(group), plain_numbers(group[name])
            book.add(op=zero, process=OBSERVER, kind=kinds(kind, len(group)), lane=kept, offset=offset)
