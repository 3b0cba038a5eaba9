"""The pipeline's part of a history: each batch a transaction that polled its ranges of the input and sent what is expected.

Where the order inside of a batch is not known (a shuffle gives it) the rows stand in the order in which they were found, so
that nothing is accused; where it is (the records have an origin) the records of a key that were found in another order than
they are expected in get an operation of their own, which the checker then accuses. A record of which it is not known which
one it is (``Wrote.guessed``) has a process of its own, for it stands before or behind nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.evidence import place
from onceflow.verify.history import Kind
from onceflow.verify.history.coding import Ints, dense, expanded, plain_numbers
from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.judging.book import Book, Lanes, choice, flat
from onceflow.verify.oracle.judging.matching import Mask, differs_in
from onceflow.verify.oracle.judging.sightings import Sightings, Wrote
from onceflow.verify.recording.recorded import Recorded

_STATUSES = ("ok", "info", "fail")
_OK, _INFO, _FAIL = range(3)


@dataclass(slots=True)
class Batches:
    """The batches of a run and what is known of each; ``status`` is a number in (ok, info, fail)."""

    number: Ints
    status: Ints
    lane: Ints  # of each range of input, with the others below
    batch: Ints
    reading: Ints
    start: Ints
    until: Ints
    next_batch: int | None = None  # by the progress: those below are committed; None where it does not say which

    @classmethod
    def of(cls, recorded: Recorded, expected: Expected, lanes: Lanes) -> Batches:
        """The batches that the offset log names."""
        ranges = expected.ranges
        columns = [plain_numbers(ranges[name]) for name in ("batch", "reading", "start", "until")]
        batch, reading, start, until = columns
        number = np.unique(np.concatenate([batch, plain_numbers(expected.records["batch"])]))
        made = cls(number, np.full(len(number), _OK), lanes.of(ranges), batch, reading, start, until)
        made._decide(recorded, expected)
        return made

    def _decide(self, recorded: Recorded, expected: Expected) -> None:
        if expected.whole:
            return
        progress = recorded.observed.committed.progress
        if progress is None:
            self.status = np.where(np.isin(self.number, expected.finished), _OK, _INFO)
        elif unknown_batches(recorded, expected):
            self.status[:] = _INFO
        else:
            self.status = np.where(self.number < progress.next_batch, _OK, _FAIL)
            self.next_batch = progress.next_batch

    def given(self) -> tuple[Ints, Ints, Ints]:
        """The positions that the committed batches gave their group: batch, lane, offset.

        Where two readings of a topic are not equally far it is the one that is less.
        """
        rows = np.flatnonzero(self.batch < (self.next_batch or 0))
        rows = rows[np.lexsort((self.until[rows], self.lane[rows], self.batch[rows]))]
        batch, lane = self.batch[rows], self.lane[rows]
        first = (np.diff(batch, prepend=-1) != 0) | (np.diff(lane, prepend=-1) != 0)
        return batch[first], lane[first], self.until[rows[first]]

    def has_failed(self, batch: Ints) -> Mask:
        """For each of these batches whether it was certainly not committed."""
        failed: Mask = np.isin(batch, self.number[self.status == _FAIL])
        return failed

    def status_of(self, batch: Ints) -> pa.Array:
        """The status of each of these batches, as a word."""
        if not len(batch):
            return choice(batch, _STATUSES)
        return choice(self.status[np.searchsorted(self.number, batch)], _STATUSES)


def unknown_batches(recorded: Recorded, expected: Expected) -> str:
    """Why the batches of the checkpoint are not those that were committed, so that output may be of others; empty if they are.

    A batch is its source offsets, not its number::

        committed    batch 7, up to 100; its entry of the offset log is lost
        Spark        plans batch 7 anew, up to 150; the pipeline refuses to run it
        run          broken off before anybody has resumed: 100 is committed, as it should be, and offsets/7 says 150
    """
    progress = recorded.observed.committed.progress
    if expected.whole or progress is None:
        return ""
    if progress.query_id not in ("", expected.query_id):
        return "the committed progress belongs to another query than the checkpoint"
    named = int(plain_numbers(expected.ranges["batch"]).max(initial=-1)) + 1
    if progress.next_batch > named:
        return f"{progress.next_batch} batches are committed, the checkpoint names {named}"
    for batch, planned in reversed(list(enumerate(expected.digests[: progress.next_batch]))):
        committed = progress.end_of(batch)  # of some tens of the newest ones
        if committed and planned and committed != planned:
            return f"batch {batch} of the checkpoint is not the one that is committed: it was planned anew, with another end"
    return ""


def finished_for_nothing(recorded: Recorded, expected: Expected) -> int | None:
    """The newest batch, if Spark calls it finished, and the committed progress does not have it; None where all is well.

    Spark notes a batch in its commit log when the sink has returned, and never runs it again::

        batch 7 closes windows, of no new input; the sink returns, commits/7 is there
        progress 7, and the source offsets of batch 6, which are those of batch 7     the windows are lost, no offset tells of it

    Not asked while a transaction is open on the group's partition (which is ``hung_transaction``): it may be that of this batch.
    """
    progress, group = recorded.observed.committed.progress, recorded.observed.group
    if progress is None or progress.query_id not in ("", expected.query_id) or expected.whole or group is None:
        return None
    newest = max(expected.finished, default=-1)
    is_open = not group["stable"].equals(group["end"])
    return None if is_open or newest < progress.next_batch else newest


@dataclass(frozen=True, slots=True)
class Polled:
    """Records of the final read, each in a batch that read it."""

    lane: Ints
    offset: Ints
    value: pa.Array
    batch: Ints
    reading: Ints


def polled_by(batches: Batches, final: Sightings) -> Polled:
    """What each batch read of what is visible."""
    order = np.lexsort((final.offset, final.lane))
    places = place(final.lane[order], final.offset[order])
    low = np.searchsorted(places, place(batches.lane, batches.start))
    high = np.searchsorted(places, place(batches.lane, batches.until))
    at, which = expanded(low, np.maximum(high, low), np.arange(len(low)))
    row = order[at]
    return Polled(
        final.lane[row],
        final.offset[row],
        flat(final.value).take(pa.array(row)),
        batches.batch[which],
        batches.reading[which],
    )


def add_batches(book: Book, batches: Batches, polled: Polled, expected: Expected, wrote: Wrote, pipeline: str) -> None:
    """Adds a transaction for each batch: what it polled, then what it sent."""
    sent_batch = plain_numbers(expected.records["batch"])
    odd = np.where(wrote.guessed, _single(wrote), _disordered(expected, wrote))
    batch = np.concatenate([polled.batch, sent_batch])
    # An operation has one process: another reading of a topic and a key in disorder have one of their own.
    actor = np.concatenate([polled.reading, odd])
    kind = np.repeat([Kind.POLL, Kind.SEND], [len(polled.batch), len(sent_batch)]).astype(np.int64)
    lane = np.concatenate([polled.lane, wrote.lane])
    offset = np.concatenate([polled.offset, np.full(len(sent_batch), -1)])
    found = np.where(wrote.offset < 0, np.iinfo(np.int64).max, wrote.offset)
    ordinal = plain_numbers(expected.records["ordinal"])
    within = np.concatenate([polled.offset, np.where(odd > 0, ordinal, found)])
    tie = np.concatenate([np.zeros(len(polled.batch), np.int64), ordinal])
    value = pa.concat_arrays([polled.value, wrote.value])
    order = np.lexsort((tie, within, lane, kind, actor, batch))
    readings = np.concatenate([polled.reading, np.full(len(sent_batch), -1)])
    book.add(
        op=dense(batch * (int(actor.max(initial=0)) + 1) + actor)[order],
        process=choice(actor[order], process_names(pipeline, actor)),
        kind=kind[order],
        status=batches.status_of(batch[order]),
        txn=dense(batch)[order],
        lane=lane[order],
        offset=offset[order],
        value=value.take(pa.array(order)),
        group=choice(readings[order], process_names(pipeline, polled.reading)),
    )


def _disordered(expected: Expected, wrote: Wrote) -> Ints:
    """For each expected record a number from 1 on for its key where the order of that was broken in its batch, else 0."""
    odd = np.zeros(len(expected.records), np.int64)
    if not len(odd):
        return odd
    records = expected.records
    has_order = np.asarray(records["key"].is_valid()) & np.asarray(records["origin"].is_valid())
    has_order &= (wrote.offset >= 0) & (wrote.lane == wrote.own_lane) & ~_is_ambiguous(expected, wrote)
    rows = np.flatnonzero(has_order)
    names = ("batch", "key", "origin", "ordinal")
    batch, key, origin, ordinal = (np.asarray(records[name].fill_null(0))[rows] for name in names)
    order = np.lexsort((ordinal, origin, key, wrote.lane[rows], batch))
    sorted_columns = [each[order] for each in (batch, wrote.lane[rows], key, origin)]
    new = np.ones(len(order), bool)
    new[1:] = np.any([np.diff(each) != 0 for each in sorted_columns], axis=0)
    group = np.cumsum(new) - 1
    back = np.flatnonzero(np.diff(wrote.offset[rows][order]) < 0) + 1
    broken = np.unique(group[back[~new[back]]])
    is_broken = np.isin(group, broken)
    # Above the numbers of readings, which stand for processes too.
    odd[rows[order[is_broken]]] = np.searchsorted(broken, group[is_broken]) + _MOST_READINGS
    return odd


def _is_ambiguous(expected: Expected, wrote: Wrote) -> Mask:
    """Which records may have been taken for one of another origin, of which the order is not known.

    One batch, one key, everything on one partition::

        expected   origin 1: a, x      origin 2: x, b
        seen       x (of 2), b, a, x (of 1)     the first x was taken for that of origin 1, which seems to be before its a
    """
    records = expected.records
    origin, content = (np.asarray(records[name].fill_null(0)) for name in ("origin", "content"))
    return differs_in(np.stack([plain_numbers(records["batch"]), wrote.own_lane, content]), origin)


def _single(wrote: Wrote) -> Ints:
    """A number of its own for each guessed record, above all that ``_disordered`` gives."""
    return np.cumsum(wrote.guessed) + _MOST_READINGS + len(wrote.guessed)


_MOST_READINGS = 64


def process_names(pipeline: str, actor: Ints) -> list[str]:
    """The name of each process, by its number: the pipeline's own, and one for what it did beside."""
    others = [f"{pipeline}#{number}" for number in range(1, int(actor.max(initial=0)) + 1)]
    return [pipeline, *others]
