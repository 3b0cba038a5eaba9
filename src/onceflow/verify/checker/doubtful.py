"""Input of which nobody knows whether it is there, or where; and the output that it may have led to.

::

    a writer sends "late" to sales-1 and gets no answer; nobody reads sales-1
    LATE on paid-1 is nothing to wonder about, if f makes that of it; anything else that nothing leads to is

Where f cannot tell without what nobody knows, any output may be of such a record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.bounds import lowest_offsets
from onceflow.verify.checker.evidence import NOBODY, Evidence, offset_of, place
from onceflow.verify.checker.looks import Looks
from onceflow.verify.checker.passed_over import passed_over
from onceflow.verify.checker.replays import Replay, misfit
from onceflow.verify.checker.unknown import Unknown, was_used
from onceflow.verify.checker.unproved import listed
from onceflow.verify.history.coding import Ints, among, distinct, numbered, occurrence
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import MAX_OFFSET, OFFSET_BITS, Kind, Status

_AT_ONCE = "the function takes all of the input at once, and not one record"
_GIVES_NOTHING = "the function makes nothing of a value that nobody knows, and what it would make of one is not known"


@dataclass(frozen=True, slots=True)
class Doubts:
    """The output that doubtful input may have led to: records, each as often as it stands in ``records``, or any of a key.

    Or any at all: then ``unclear`` says why.
    """

    inputs: Collection[str]
    records: Ints  # key and value of each in one number, see ``record_codes``
    keys: Mask
    unclear: str = ""

    def excused(self, key: Ints, record: Ints, extra: Mask) -> Mask:
        """Which of the ``extra`` records may be output of doubtful input: of equal ones the first."""
        rows = np.flatnonzero(extra)
        excused = np.zeros(len(extra), bool)
        codes, times = np.unique(self.records, return_counts=True)
        at = np.searchsorted(codes, record[rows])
        allowed = np.where(np.append(codes, -1)[at] == record[rows], np.append(times, 0)[at], 0)
        excused[rows] = bool(self.unclear) | self.keys[key[rows]] | (occurrence(record[rows]) < allowed)
        return excused

    def may_give(self, record: Ints) -> Mask:
        """For each record whether a doubtful one may have led to the same."""
        found: Mask = among(record, self.records)
        return found

    def sentence(self, count: int, where: str) -> str:
        """What is not judged of so many records of the output."""
        records, come = (f"{count:,} records", "come") if count > 1 else ("1 record", "comes")
        unclear = f", and may lead to any output: {self.unclear}" if self.unclear else ""
        return (
            f"what {records} on {where} {come} from: it may be input on {listed(list(self.inputs))} of which nobody knows "
            f"whether it is there, or where{unclear}"
        )


def doubts_of(evidence: Evidence, replay: Replay, inputs: Iterable[str]) -> Doubts:
    """What input that f was not given may have led to."""
    history = evidence.history
    codes = history.codes(inputs)
    sends, late = _sends(evidence, codes), _begins_late(evidence, codes)
    names = [str(history.keys[code]) for code in distinct(np.append(history.key[sends], late))]
    given: list[tuple[str, Any]] = []
    unclear = ""
    for key, offset, value in (*_records(evidence, sends), *((str(history.keys[code]), None, None) for code in late)):
        answer = _answer(replay, key, offset, value, history.values.type)
        if isinstance(answer, str):
            unclear = answer
            break
        given += answer
    return _coded(evidence, names, given, unclear)


def record_codes(evidence: Evidence, key: Ints, value: Ints) -> Ints:
    """One number for key and value, both as the history numbers them."""
    return key * len(evidence.history.values) + value


def _records(evidence: Evidence, rows: Ints) -> Iterator[tuple[str, int | None, Any]]:
    history = evidence.history
    for row in rows.tolist():
        offset = int(history.offset[row])
        yield (
            str(history.keys[history.key[row]]),
            None if offset < 0 else offset,
            history.values[history.value[row]].as_py(),
        )


def _answer(replay: Replay, key: str, offset: int | None, value: Any, kind: pa.DataType) -> list[tuple[str, Any]] | str:
    """The output of one record of which offset or value may be unknown (None); or why nobody can tell. No value is any value.

    What the function does with such a record is no mistake of its own: the record may not be there at all.
    """
    of_record = getattr(replay, "of_record", None)
    if of_record is None:
        return _AT_ONCE
    unknown = Unknown()
    needs = f"the function needs its {'offset' if value is not None else 'value or offset'}"
    try:
        pairs = [
            (name, None if given is unknown else _scalar(given, kind))
            for name, given in of_record(
                key, unknown if offset is None else offset, unknown if value is None else value
            )
        ]
        pa.array([name for name, _ in pairs], pa.string())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a user's function ends with
        return needs if was_used(unknown) else f"the function fails on it: {type(error).__name__}: {error}"
    if was_used(unknown):
        return needs
    return (
        pairs if pairs or value is not None else _GIVES_NOTHING
    )  # it may have asked for the type, which is not noticed


def _scalar(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        raise ValueError("a record of the output has a value, and None is none")
    if reason := misfit(value, kind):
        raise TypeError(f"it gives {reason}, as in the history")
    return pa.scalar(value, kind).as_py()


def _coded(evidence: Evidence, names: Collection[str], given: list[tuple[str, Any]], unclear: str) -> Doubts:
    """What is of no key or no value of the history nobody can have seen."""
    history = evidence.history
    any_value = np.zeros(len(history.keys) + 1, bool)
    any_value[history.codes(name for name, value in given if value is None)] = True
    certain = [(name, value) for name, value in given if value is not None]
    key = numbered(pa.array([name for name, _ in certain], pa.string()), history.keys)
    value = numbered(pa.array([value for _, value in certain], history.values.type), history.values)
    seen = (key >= 0) & (value >= 0)
    return Doubts(names, record_codes(evidence, key[seen], value[seen]), any_value, unclear)


def _sends(evidence: Evidence, codes: Ints) -> Ints:
    """Sent, perhaps committed, where is not known; and nobody who looked afterwards tells whether it is there."""
    history, sends = evidence.history, evidence.sends
    rows = sends[among(history.key[sends], codes) & (history.status[sends] != Status.FAIL)]
    rows = rows[(history.offset[rows] < 0) | ~(evidence.happened[rows] | evidence.read[rows])]
    open_ones = _is_open(evidence, rows)
    found = _times_found(evidence)[evidence.record[rows]]
    told = np.bincount(evidence.record[rows[~open_ones]], minlength=int(evidence.record.max(initial=-1)) + 1)
    rows, found = rows[open_ones], found[open_ones]
    doubtful: Ints = rows[occurrence(evidence.record[rows]) >= found - told[evidence.record[rows]]]
    return doubtful


def _is_open(evidence: Evidence, rows: Ints) -> Mask:
    """For each of these sends, whether its record can stand where nobody looked afterwards, or where it was dropped."""
    history, looks, ranges = evidence.history, evidence.once(Looks), evidence.gone
    key, is_known = history.key[rows], history.offset[rows] >= 0
    places = place(key, lowest_offsets(evidence, rows))
    look = np.where(is_known, looks.last_at(places), looks.last_from_here_to_end(places))
    dropped = np.where(is_known, ranges.contain(places), ranges.overlap(places, place(key, MAX_OFFSET)))
    is_open: Mask = dropped | (looks.ended(look) <= evidence.unit_end[history.unit[rows]])
    return is_open


def _times_found(evidence: Evidence) -> Ints:
    """For each record at how many places it was read that no acknowledgement explains."""
    history, polls = evidence.history, evidence.polls
    writer = evidence.writer[polls]
    polls = polls[(writer != NOBODY) & (history.offset[writer] != history.offset[polls])]
    _, first = np.unique(place(history.key[polls], history.offset[polls]), return_index=True)
    return np.bincount(evidence.record[polls[first]], minlength=int(evidence.record.max(initial=-1)) + 1)


def _begins_late(evidence: Evidence, codes: Ints) -> Ints:
    """The keys of which no sends are known, and the first look began behind their beginning, or nobody looked.

    Who began before the first that he was given looked there as well; who was given nothing may have asked for nothing.
    """
    history, polls, windows = evidence.history, evidence.polls, evidence.history.rows(Kind.WINDOW)
    looks, begins = np.concatenate([windows[evidence.happened[windows]], polls]), evidence.once(passed_over).low
    first = np.full(len(history.keys), MAX_OFFSET)
    np.minimum.at(first, history.key[looks], history.offset[looks])
    np.minimum.at(first, begins >> OFFSET_BITS, offset_of(begins))
    first[history.key[evidence.sends]] = 0
    return codes[first[codes] > 0]
