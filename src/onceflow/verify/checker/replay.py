"""Output that is not f(committed input).

``f`` is given as a function from the committed input to the output that it must lead to, both in columns: all input records
in the order of partition and offset, and for each expected output record the number of the input record that it comes from.

Per input and output partition the output must be what ``f`` says, in that order, up to a place in the input; and that place
must be one and the same for all output partitions: the output of an input record is visible wholly or not at all. Where the
history says how far a group has committed (a ``position`` row on the input partition), it must be that place; and the
transaction that consumed an input record for the group must be the one that wrote its output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.checker.evidence import NOBODY, Evidence, place
from onceflow.verify.checker.findings import findings, joined
from onceflow.verify.checker.missing import Missing
from onceflow.verify.checker.missing_output import looked_for
from onceflow.verify.history.coding import Ints
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import MAX_OFFSET, Kind, Status

Replay = Callable[[pa.Table], pa.Table]
"""From (key, offset, value) of the input to (input, key, value) of the output; ``input`` is the row of the input table."""

ANOMALY = "diverged_output"


def per_record(f: Callable[[str, int, object], Iterable[tuple[str, object]]]) -> Replay:
    """A replay by a function of one record (key, offset, value) that gives the (key, value) pairs it leads to."""

    def replay(records: pa.Table) -> pa.Table:
        rows = [
            (number, key, value)
            for number, record in enumerate(records.to_pylist())
            for key, value in f(record["key"], record["offset"], record["value"])
        ]
        numbers, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
        return pa.table({"input": pa.array(numbers, pa.int64()), "key": pa.array(keys, pa.string()), "value": values})

    return replay


def expand(targets: Mapping[str, str], times: int = 1) -> Replay:
    """Each record of an input key leads to ``times`` records of the output key that ``targets`` names.

    With ``times`` 1 the values stay (the identity). Else they must be numbers, and v becomes v * times, v * times + 1, …
    """

    def replay(records: pa.Table) -> pa.Table:
        numbers = np.repeat(np.arange(len(records)), times)
        keys = records["key"].combine_chunks()
        names = pa.array([targets.get(name) for name in keys.dictionary.to_pylist()], pa.string())
        key = pa.DictionaryArray.from_arrays(keys.indices, names).take(pa.array(numbers))
        values = records["value"].combine_chunks().take(pa.array(numbers))
        if times > 1:
            values = pc.add(pc.multiply(values, times), pa.array(np.arange(len(numbers)) % times))
        return pa.table({"input": numbers, "key": key, "value": values})

    return replay


def diverged_output(
    evidence: Evidence, replay: Replay, inputs: Collection[str], outputs: Collection[str], group: str | None = None
) -> pa.Table:
    """The committed output is not what the function makes of the committed input, up to one place, in order.

    The place is the position of ``group`` where one is named and recorded, else that of the last output visible. That nothing
    is found proves nothing where nobody looked: ``unproved_output``.
    """
    given = Log.of(evidence, inputs, acknowledged=True)
    expected = _Expected.of(evidence, output_of(replay, given.table(evidence)))
    seen = Log.of(evidence, outputs, acknowledged=False)
    match, extra = _matched(evidence, seen, expected)
    extra &= not _has_other_input(evidence, inputs)
    required = _required(evidence, given, expected, match >= 0, group)
    source, found = given.rows[expected.source], np.append(seen.rows, -1)[match]
    early, missing = ~required & (match >= 0), required & (match < 0)
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


def output_of(replay: Replay, records: pa.Table) -> pa.Table:
    """What the function makes of these records of the input. Raises ValueError if that is no output (see ``Replay``)."""
    given = replay(records)
    if not isinstance(given, pa.Table) or not {"input", "key", "value"} <= set(given.column_names):
        raise ValueError("a replay gives a table with the columns input, key and value")
    if any(given[name].null_count for name in ("input", "key", "value")):
        raise ValueError(
            "a replay gives an input, a key and a value for each record of the output, and none of them is None"
        )
    if len(given) and not pa.types.is_integer(given["input"].type):
        raise ValueError(f"the input of a replay's output is the number of a row, not {given['input'].type}")
    source = np.asarray(given["input"], np.int64)
    if len(source) and (source.min() < 0 or source.max() >= len(records) or np.any(source[1:] < source[:-1])):
        raise ValueError("a replay gives its output in the order of the input, and names the row of each")
    key = given["key"].cast(records["key"].type.value_type)
    return pa.table({"input": source, "key": key, "value": given["value"].cast(records["value"].type)})


def without_position(evidence: Evidence, inputs: Collection[str], group: str | None) -> list[str]:
    """Those of the inputs of which nobody saw the position of ``group``."""
    history, positions = evidence.history, _positions(evidence, group)
    return [str(history.keys[code]) for code in history.codes(inputs) if positions[code] < 0]


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

    def lane(self, given: Log) -> Ints:
        """A number for each pair of input and output key; inside of it the order must be kept."""
        return given.key[self.source] * (int(self.key.max(initial=0)) + 2) + self.key + 1


def _codes(column: pa.ChunkedArray, names: pa.Array) -> Ints:
    return np.asarray(pc.index_in(column, names).cast(pa.int64()).fill_null(-1))


def _matched(evidence: Evidence, seen: Log, expected: _Expected) -> tuple[Ints, Mask]:
    """For each expected record the number of the seen one, -1 for none; and which seen ones nothing leads to.

    A value that is expected several times on a partition is matched in order, first with first.
    """
    values = len(evidence.history.values)
    possible = np.flatnonzero((expected.key >= 0) & (expected.value >= 0))
    wanted = expected.key[possible] * values + expected.value[possible]
    found = seen.key * values + evidence.history.value[seen.rows]
    nth_wanted, nth_found = _occurrence(wanted), _occurrence(found)
    times = int(max(nth_wanted.max(initial=0), nth_found.max(initial=0))) + 1
    at = pc.index_in(pa.array(wanted * times + nth_wanted), pa.array(found * times + nth_found))
    match = np.full(len(expected.source), -1, np.int64)
    match[possible] = np.asarray(at.cast(pa.int64()).fill_null(-1))
    extra = np.ones(len(seen.rows), bool)
    extra[match[match >= 0]] = False
    return match, extra


def _has_other_input(evidence: Evidence, inputs: Iterable[str]) -> bool:
    """Whether there may be input that f was not given, so that output of it is nothing to wonder about.

    Sent, perhaps committed, where is not known; and nobody looked whether it is there. Or of a key of which no sends are known,
    before the place where the first look began.
    """
    history, sends = evidence.history, evidence.sends
    if _begins_late(evidence, inputs):
        return True
    sends = sends[_named(evidence, inputs)[history.key[sends]] & (history.status[sends] != Status.FAIL)]
    sends = sends[~evidence.happened[sends] | (history.offset[sends] < 0)]
    missing = Missing(evidence, sends)
    may_be_gone = len(missing.unread) < np.count_nonzero(~evidence.read[sends])
    return bool(may_be_gone or np.any(~missing.drained))


def _begins_late(evidence: Evidence, inputs: Iterable[str]) -> bool:
    history, windows = evidence.history, evidence.history.rows(Kind.WINDOW)
    first = np.full(len(history.keys), MAX_OFFSET)
    np.minimum.at(first, history.key[windows], history.offset[windows])
    first[history.key[evidence.sends]] = MAX_OFFSET
    codes = history.codes(inputs)
    return bool(np.any((first[codes] > 0) & (first[codes] < MAX_OFFSET)))


def _named(evidence: Evidence, names: Iterable[str]) -> Mask:
    """For each key whether it is one of these; and for no key at all."""
    named = np.zeros(len(evidence.history.keys) + 1, bool)
    named[evidence.history.codes(names)] = True
    return named


def _occurrence(groups: Ints) -> Ints:
    """For each element how many equal ones stand before it."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    sizes = np.diff(np.append(starts, len(groups)))
    nth = np.empty(len(groups), np.int64)
    nth[order] = np.arange(len(groups)) - np.repeat(starts, sizes)
    return nth


def _required(evidence: Evidence, given: Log, expected: _Expected, matched: Mask, group: str | None) -> Mask:
    """For each expected record, whether it lies before the place up to which the input was processed."""
    key = given.key[expected.source]
    place_of = np.full(len(evidence.history.keys), -1, np.int64)
    np.maximum.at(place_of, key[matched], expected.source[matched])
    required = expected.source <= place_of[key]
    position = _positions(evidence, group)[key]
    return np.where(position >= 0, given.offset[expected.source] < position, required)


def _positions(evidence: Evidence, group: str | None) -> Ints:
    """For each key the last position of the group that was seen, -1 for none."""
    history = evidence.history
    rows = history.rows(Kind.POSITION)
    rows = rows[~history.in_txn[rows]]
    rows = rows[_is_of_group(evidence, rows, group)]
    positions = np.full(len(history.keys), -1, np.int64)
    positions[history.key[rows]] = history.offset[rows]
    return positions


def _is_of_group(evidence: Evidence, rows: Ints, group: str | None) -> Mask:
    groups = evidence.history.table["group"].combine_chunks().take(pa.array(rows))
    return np.asarray(pc.equal(groups, group).fill_null(False), bool)


def _of_other_transactions(evidence: Evidence, found: Ints, source: Ints, group: str | None) -> tuple[Ints, Ints]:
    """The output that another transaction wrote than consumed its input, and for each a poll that consumed that.

    Where both are known: committed transactions consumed the input for the group, and it is known of the writer as well.
    """
    history, polls = evidence.history, evidence.polls
    polls = polls[history.in_txn[polls] & evidence.happened[polls] & (history.group[polls] >= 0)]
    polls = polls[_is_of_group(evidence, polls, group)]
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
