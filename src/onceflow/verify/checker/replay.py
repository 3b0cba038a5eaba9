"""Output that is not f(committed input).

``f`` is given as a function from the committed input to the output that it must lead to, both in columns: all input records
in the order of partition and offset, and for each expected output record the number of the input record that it comes from.

Per input and output partition the output must be what ``f`` says, in that order, up to a place in the input; and that place
must be one and the same for all output partitions: the output of an input record is visible wholly or not at all. Where the
history says how far a group has committed in the end (a ``position`` row on the input partition), it must be that place; and the
transaction that consumed an input record for the group must be the one that wrote its output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.checker.doubtful import Doubts, doubts_of, record_codes
from onceflow.verify.checker.evidence import NOBODY, Evidence, place
from onceflow.verify.checker.findings import findings, joined
from onceflow.verify.checker.missing_output import looked_for
from onceflow.verify.checker.processed import final_positions, is_of_group
from onceflow.verify.checker.replays import Replay, output_of
from onceflow.verify.checker.unproved import keys_text
from onceflow.verify.history.coding import Ints, occurrence
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import Kind

ANOMALY = "diverged_output"


def diverged_output(
    evidence: Evidence,
    replay: Replay,
    inputs: Collection[str],
    outputs: Collection[str],
    group: str | None = None,
    doubts: Doubts | None = None,
) -> pa.Table:
    """The committed output is not what the function makes of the committed input, up to one place, in order.

    The place is the position of ``group`` where one is named and recorded, else that of the last output visible. That nothing
    is found proves nothing where nobody looked: ``unproved_output``. ``doubts`` are what input that nobody knows of may have
    led to, if that was found out already.
    """
    doubts = doubts_of(evidence, replay, inputs) if doubts is None else doubts
    given = Log.of(evidence, inputs, acknowledged=True)
    expected = _Expected.of(evidence, output_of(replay, given.table(evidence)))
    seen = Log.of(evidence, outputs, acknowledged=False)
    match, extra = _matched(evidence, seen, expected)
    extra &= ~doubts.excused(seen.key, seen.records(evidence), extra)
    there = match >= 0
    match = np.where(doubts.may_give(expected.records(evidence)), -1, match)  # which of the two was seen, nobody knows
    required = _required(evidence, given, expected, match >= 0, group)
    source, found = given.rows[expected.source], np.append(seen.rows, -1)[match]
    early, missing = ~required & (match >= 0), required & ~there
    offset = np.append(seen.offset, -1)[match]
    if np.any(missing):
        missing &= looked_for(evidence, expected.lane(given), expected.key, offset)
    late, before = _disordered(expected.lane(given), offset)
    elsewhere, consumer = _of_other_transactions(evidence, found, source, group)
    history = evidence.history
    tables = [
        findings(history, ANOMALY, seen.rows[extra], detail="nothing in the input leads to this record"),
        findings(history, ANOMALY, source[missing], detail="output of this record is missing"),
        findings(history, ANOMALY, found[early], source[early], detail="its input is not committed as processed"),
        findings(history, ANOMALY, found[late], found[before], detail="it stands before output of an earlier record"),
        findings(
            history,
            ANOMALY,
            found[elsewhere],
            evidence.writer[found[elsewhere]],
            consumer,
            detail="another transaction wrote it than consumed its input",
        ),
    ]
    return joined(history, tables)


def excused_output(
    evidence: Evidence, replay: Replay, inputs: Collection[str], outputs: Collection[str], doubts: Doubts
) -> Iterator[str]:
    """Of which output nobody knows what it comes from, for it may be of doubtful input."""
    if not doubts.inputs:
        return
    given = Log.of(evidence, inputs, acknowledged=True)
    expected = _Expected.of(evidence, output_of(replay, given.table(evidence)))
    seen = Log.of(evidence, outputs, acknowledged=False)
    records = seen.records(evidence)
    _, extra = _matched(evidence, seen, expected)
    rows = seen.rows[doubts.excused(seen.key, records, extra) | (~extra & doubts.may_give(records))]
    if len(rows):
        yield doubts.sentence(len(rows), keys_text(evidence, rows))


def without_position(evidence: Evidence, inputs: Collection[str], group: str | None) -> list[str]:
    """Those of the inputs of which nobody saw the position of ``group`` in the end."""
    history, final = evidence.history, final_positions(evidence, group)
    return [str(history.keys[code]) for code in history.codes(inputs) if final[code] < 0]


def unproved_output(evidence: Evidence, outputs: Iterable[str]) -> str:
    """Why it proves nothing of the output that ``diverged_output`` finds nothing; empty if it proves something."""
    history = evidence.history
    windows = history.rows(Kind.WINDOW)
    looks = history.keys.take(
        pa.array(np.unique(history.key[np.concatenate([windows[evidence.happened[windows]], evidence.polls])]))
    )
    unseen = sorted(set(outputs) - set(looks.to_pylist()))
    return f"nobody looked at {', '.join(unseen)}" if unseen else ""


@dataclass(frozen=True, slots=True)
class Log:
    """The committed records of some keys, in the order of key and offset; a row of the history for each."""

    rows: Ints
    key: Ints
    offset: Ints

    @classmethod
    def of(cls, evidence: Evidence, names: Iterable[str], *, acknowledged: bool) -> Log:
        history = evidence.history
        wanted = _named(evidence, names)
        rows = np.concatenate([evidence.visible, evidence.committed if acknowledged else evidence.visible[:0]])
        rows = rows[wanted[history.key[rows]]]
        offset = _offsets(evidence, rows)
        rows, offset = rows[offset >= 0], offset[offset >= 0]
        _, first = np.unique(place(history.key[rows], offset), return_index=True)
        return cls(rows[first], history.key[rows[first]], offset[first])

    def records(self, evidence: Evidence) -> Ints:
        """A number for key and value of each."""
        return record_codes(evidence, self.key, evidence.history.value[self.rows])

    def table(self, evidence: Evidence) -> pa.Table:
        history = evidence.history
        keys = pa.DictionaryArray.from_arrays(pa.array(self.key), history.keys)
        return pa.table(
            {"key": keys, "offset": self.offset, "value": history.values.take(pa.array(history.value[self.rows]))}
        )


def _offsets(evidence: Evidence, rows: Ints) -> Ints:
    """Where the record of each row stands, -1 where that is not known."""
    history = evidence.history
    return np.where(history.kind[rows] == Kind.SEND, evidence.sent_offset[rows], history.offset[rows])


@dataclass(frozen=True, slots=True)
class _Expected:
    """What the function says: for each output record the input record behind it, and key and value, -1 if never seen."""

    source: Ints
    key: Ints
    value: Ints

    @classmethod
    def of(cls, evidence: Evidence, output: pa.Table) -> _Expected:
        history = evidence.history
        source = np.asarray(output["input"], np.int64)
        return cls(source, _codes(output["key"], history.keys), _codes(output["value"], history.values))

    def records(self, evidence: Evidence) -> Ints:
        """A number for key and value of each, -1 where nobody can have seen it."""
        possible = (self.key >= 0) & (self.value >= 0)
        return np.where(possible, record_codes(evidence, self.key, self.value), -1)

    def lane(self, given: Log) -> Ints:
        """A number for each pair of input and output key; inside of it the order must be kept."""
        return given.key[self.source] * (int(self.key.max(initial=0)) + 2) + self.key + 1


def _codes(column: pa.ChunkedArray, names: pa.Array) -> Ints:
    return np.asarray(pc.index_in(column, names).cast(pa.int64()).fill_null(-1))


def _matched(evidence: Evidence, seen: Log, expected: _Expected) -> tuple[Ints, Mask]:
    """For each expected record the number of the seen one, -1 for none; and which seen ones nothing leads to.

    A value that is expected several times on a partition is matched in order, first with first.
    """
    wanted, found = expected.records(evidence), seen.records(evidence)
    possible = np.flatnonzero(wanted >= 0)
    wanted = wanted[possible]
    nth_wanted, nth_found = occurrence(wanted), occurrence(found)
    times = int(max(nth_wanted.max(initial=0), nth_found.max(initial=0))) + 1
    at = pc.index_in(pa.array(wanted * times + nth_wanted), pa.array(found * times + nth_found))
    match = np.full(len(expected.source), -1, np.int64)
    match[possible] = np.asarray(at.cast(pa.int64()).fill_null(-1))
    extra = np.ones(len(seen.rows), bool)
    extra[match[match >= 0]] = False
    return match, extra


def _named(evidence: Evidence, names: Iterable[str]) -> Mask:
    """For each key whether it is one of these; and for no key at all."""
    named = np.zeros(len(evidence.history.keys) + 1, bool)
    named[evidence.history.codes(names)] = True
    return named


def _required(evidence: Evidence, given: Log, expected: _Expected, matched: Mask, group: str | None) -> Mask:
    """For each expected record, whether it lies before the place up to which the input was processed."""
    key = given.key[expected.source]
    place_of = np.full(len(evidence.history.keys), -1, np.int64)
    np.maximum.at(place_of, key[matched], expected.source[matched])
    required = expected.source <= place_of[key]
    final = final_positions(evidence, group)[key]
    return np.where(final >= 0, given.offset[expected.source] < evidence.history.offset[final], required)


def _of_other_transactions(evidence: Evidence, found: Ints, source: Ints, group: str | None) -> tuple[Ints, Ints]:
    """The output that another transaction wrote than consumed its input, and for each a poll that consumed that.

    Where both are known: committed transactions consumed the input for the group, and it is known of the writer as well.
    """
    history, polls = evidence.history, evidence.polls
    polls = polls[history.in_txn[polls] & evidence.happened[polls] & (history.group[polls] >= 0)]
    polls = polls[is_of_group(evidence, polls, group)]
    writer = np.where(found >= 0, evidence.writer[found], NOBODY)
    at = np.flatnonzero((writer != NOBODY) & history.in_txn[writer] & evidence.happened[writer])
    places = place(history.key[source[at]], _offsets(evidence, source[at]))
    units = len(evidence.unit_end)
    consumed, number = np.unique(place(history.key[polls], history.offset[polls]), return_inverse=True)
    known = np.searchsorted(consumed, places)
    is_known = np.append(consumed, -1)[known] == places
    at, known = at[is_known], known[is_known]
    other = ~np.isin(known * units + history.unit[writer[at]], number * units + history.unit[polls])
    first = np.full(len(consumed), -1, np.int64)
    first[number[::-1]] = polls[::-1]
    return at[other], first[known[other]]


def _disordered(lane: Ints, offset: Ints) -> tuple[Ints, Ints]:
    """The expected records that stand before one of the same input and output partition that comes first."""
    seen = np.flatnonzero(offset >= 0)
    order = seen[np.argsort(lane[seen], kind="stable")]
    lane = lane[order]
    back = (lane[1:] == lane[:-1]) & (offset[order[1:]] < offset[order[:-1]])
    return order[1:][back], order[:-1][back]
