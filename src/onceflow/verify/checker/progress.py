"""How far all came in the end: a transaction that never ends, records that nobody takes, positions that nobody gave.

A position in a transaction is what that commits for its group; any other one is what was seen committed. What was seen says
something of the end only if nothing went on after it::

    the group's position is seen to be 0
    transaction 1 polls 0 to 3, commits position 4
    log_end and stable_end are seen to be 4             that the position was 0 once says nothing
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.findings import findings, joined
from onceflow.verify.checker.fractured import fractured
from onceflow.verify.checker.positions import first_polled, lanes, seen_positions
from onceflow.verify.history.coding import Ints, among
from onceflow.verify.history.columns import Mask
from onceflow.verify.history.schema import Kind, Status


def hung_transaction(evidence: Evidence) -> pa.Table:
    """At the end of the history a transaction is open: the last stable offset stands below the end of the log."""
    history = evidence.history
    ends, stable = evidence.last_said(Kind.LOG_END), evidence.last_said(Kind.STABLE_END)
    both = (ends >= 0) & (stable >= 0)
    ends, stable = ends[both], stable[both]
    hung = history.offset[stable] < history.offset[ends]
    before, later = _read_behind(evidence, stable)
    hung &= later < 0
    hung[hung] = ~_used_after(evidence, stable[hung]) & ~_written_between(evidence, stable[hung], ends[hung])
    went_back = hung & (before >= 0)
    hung &= ~went_back
    return joined(
        history,
        [
            findings(history, "hung_transaction", stable[hung], ends[hung]),
            findings(
                history,
                "hung_transaction",
                stable[went_back],
                ends[went_back],
                before[went_back],
                detail=_WENT_BACK,
            ),
        ],
    )


_WENT_BACK = "what stands behind it was read before: that was not committed, or the end of its transaction is lost"


def ends_known(evidence: Evidence) -> Mask:
    """For each key whether it is known that no transaction hangs there, or that one does.

    Both ends were asked for when no transaction wrote there any more::

        log_end is seen to be 2
        transaction 1 writes, its outcome is unknown
        stable_end is seen to be 2                              whether it is still open nobody knows
    """
    ends, stable = evidence.last_said(Kind.LOG_END), evidence.last_said(Kind.STABLE_END)
    known: Mask = (ends >= 0) & (stable >= 0)
    for rows in (ends, stable):
        known[known] = ~_used_after(evidence, rows[known])
    known[known] = ~_written_between(evidence, stable[known], ends[known])
    return known & ~evidence.once(read_later)


def read_later(evidence: Evidence) -> Mask:
    """For each key whether somebody read behind its stable end, below its log's end, while that was asked for, or since."""
    stable = evidence.last_said(Kind.STABLE_END)
    keys = np.flatnonzero(stable >= 0)
    later = np.zeros(len(stable), bool)
    later[keys] = _read_behind(evidence, stable[keys])[1] >= 0
    return later


def _read_behind(evidence: Evidence, stable: Ints) -> tuple[Ints, Ints]:
    """For each stable end below the end of its log a row that read behind it before, and one that may have later; -1.

    Since then it did not stay there::

        stable_end is seen to be 0, log_end to be 1             a transaction is open
        a reader reads 0 to 2                                   it has ended

    But it never goes back, so what was read before excuses nothing::

        a reader reads 0                                        transaction 1 was committed, or it reads what was not
        stable_end is seen to be 0, log_end to be 1             and here it is open

    Before is what had ended when the question began. Of what ended in between nobody knows::

        a probe asks for stable_end, which is 0
        the marker of transaction 1 is written
        a reader reads 0, and is done
        the probe asks for log_end, which is 2, and is done     it was read after the answer
    """
    history, polls = evidence.history, evidence.visible
    ends = evidence.last_said(Kind.LOG_END)[history.key[stable]]
    is_open = (ends >= 0) & (history.offset[stable] < history.offset[ends])
    number = np.full(len(history.keys), -1, np.int64)  # of the stable end of each key; hardly any is open
    number[history.key[stable[is_open]]] = np.flatnonzero(is_open)
    windows = history.rows(Kind.WINDOW)
    windows = windows[evidence.happened[windows] & (number[history.key[windows]] >= 0)]
    polls = polls[number[history.key[polls]] >= 0]
    rows = np.concatenate([polls, windows])
    reach = np.concatenate([history.offset[polls] + 1, history.until[windows]])
    rows = rows[reach > history.offset[stable[number[history.key[rows]]]]]
    mine = number[history.key[rows]]
    late = evidence.op_end[history.op[rows]] > evidence.begun_after[history.op[stable[mine]]]
    before, later = np.full((2, len(stable)), -1, np.int64)
    before[mine[~late]] = rows[~late]
    later[mine[late]] = rows[late]
    return before, later


def _written_between(evidence: Evidence, stable: Ints, ends: Ints) -> Mask:
    """For each two ends of a key whether anything was sent there between the questions for them, the stable one first.

    ::

        stable_end is seen to be 1
        a writer without a transaction sends, at offset 1
        log_end is seen to be 2                                 nothing is open, and nothing was
    """
    history, sends = evidence.history, evidence.sends
    asked = np.full(len(history.keys), -1, np.int64)
    asked[history.key[ends]] = evidence.op_end[history.op[ends]]
    before = evidence.unit_end[history.unit[sends]] < asked[history.key[sends]]
    return _sent_after(evidence, sends[before], stable)


def _used_after(evidence: Evidence, rows: Ints) -> Mask:
    """For each row whether a transaction wrote to its key after its operation: then what is open may have been under way."""
    history, sends = evidence.history, evidence.sends
    return _sent_after(evidence, sends[history.in_txn[sends] & among(history.key[sends], history.key[rows])], rows)


def _sent_after(evidence: Evidence, sends: Ints, rows: Ints) -> Mask:
    """For each row whether any of these was sent to its key after its operation."""
    history = evidence.history
    last = np.full(len(history.keys), -1, np.int64)
    np.maximum.at(last, history.key[sends], evidence.unit_end[history.unit[sends]])
    after: Mask = last[history.key[rows]] > evidence.op_end[history.op[rows]]
    return after


def stuck_progress(evidence: Evidence) -> pa.Table:
    """At the end of the history a group's position stands below a committed record that it could have taken."""
    last = evidence.once(LastPositions)
    stuck = last.waiting >= 0
    return findings(evidence.history, "stuck_progress", last.rows[stuck], last.stable[stuck], last.waiting[stuck])


class LastPositions:
    """The last position seen of each group on a key, if it did not go on there, and the key's stable end was asked for.

    ``waiting`` has for each a row that tells of a record between the two, -1 for none, and ``came`` one that tells of such a
    record later: it may have come since, and the group may have gone on. The end of such a position is not known::

        the group's position is seen to be 0
        a writer sends to 0
        transaction 1 polls 0, commits position 1, aborts
        stable_end is seen to be 1                              whether the position stayed at 0 nobody asked
    """

    def __init__(self, evidence: Evidence) -> None:
        history = evidence.history
        positions = seen_positions(history)
        rows = _last_rows(lanes(history, positions), positions)
        rows = rows[~went_on(evidence, rows)]
        stable = evidence.last_said(Kind.STABLE_END)[history.key[rows]]
        self.rows, self.stable = rows[stable >= 0], stable[stable >= 0]
        self.waiting, self.came = _first_waiting(evidence, self.rows, self.stable)

    @property
    def known(self) -> Ints:
        """Those of which the end is known."""
        known: Ints = self.rows[(self.came < 0) | (self.waiting >= 0)]
        return known


def torn_progress(evidence: Evidence) -> pa.Table:
    """A group's position is not what its last committed transaction gave it, or is behind the end of the log.

    Where none was committed, the position is judged if a transaction that failed gave it and took records for it::

        transaction 1 polls 0 to 5, commits position 6, aborts
        the group's position is seen to be 6                        its input is never handled

    Any other position may be from before the history. Behind the end of a log that the group read of nobody can have read::

        transaction 1 polls 0, commits position 50, for what its client counts is not the log's
        the log is seen to end at 1                                 1 to 49 will never be handled

    So is one that was seen in between, after a first one was given, and that nobody gave, nor anybody had seen before::

        transaction 1 commits position 2
        the group's position is seen to be 3
        transaction 2 commits position 4

    The last one is that which was committed last, and not which was answered last::

        transaction 1 of process one commits position 2, the answer is late
        transaction 2 of process two commits position 4, and is answered before that        4 is as it should be

    Nor may a look find one of a transaction beside one from before it (``fractured.py``).
    """
    history, torn = evidence.history, evidence.once(Torn)
    seen, shown, gave = fractured(evidence)
    apart = ~among(seen, np.concatenate([torn.of_transactions, torn.behind_the_end[0]]))
    return joined(
        history,
        [
            findings(history, "torn_progress", *torn.of_another),
            findings(history, "torn_progress", *torn.behind_the_end, detail=_BEHIND_THE_END),
            findings(history, "torn_progress", *torn.by_nobody, detail=_BY_NOBODY),
            findings(history, "torn_progress", seen[apart], shown[apart], gave[apart], detail=_FRACTURED),
        ],
    )


_BEHIND_THE_END = "it is behind the end of the log"
_BY_NOBODY = "it was seen in between, and no transaction gave it that may have been committed"
_FRACTURED = "it was seen together with a position of a transaction that gave it another one"


class Torn:
    """The positions that are not what the transactions of their group gave, each with a row that shows it."""

    def __init__(self, evidence: Evidence) -> None:
        history = evidence.history
        positions = history.rows(Kind.POSITION)
        positions = np.sort(np.concatenate([positions[history.in_txn[positions]], seen_positions(history)]))
        lane = lanes(history, positions)
        said, status = history.in_txn[positions], history.status[positions]
        seen = _last_of_lane(lane, positions, ~said)
        last = _last_of_lane(lane, positions, said & _happened_when(evidence, positions, seen[lane]))
        open_ended = said & (status == Status.INFO)
        settled = _ended_last(evidence, lane, positions, (last[lane] == positions) | open_ended) < seen
        # What a transaction of unknown outcome gave it may be there as well: its marker may come late.
        may_be = place(lane[open_ended], history.offset[positions[open_ended]])
        settled &= ~among(place(np.arange(len(seen)), history.offset[seen]), may_be)
        other = settled & (last >= 0) & (history.offset[seen] != history.offset[last])
        other &= ~_committed_later(evidence, lane[said], positions[said], seen, np.where(other, last, -1))
        unsaid = settled & (last < 0)
        mine = unsaid[lane]
        failed = np.where(unsaid, _applied_though_failed(evidence, lane[mine], positions[mine], seen), -1)
        shown = np.where(other, last, failed)
        ends = np.where(shown < 0, _ends_before(evidence, seen), -1)
        self.of_another = seen[shown >= 0], shown[shown >= 0]
        self.behind_the_end = seen[ends >= 0], ends[ends >= 0]
        self.by_nobody = _given_by_nobody(evidence, lane, positions, seen)

    @property
    def of_transactions(self) -> Ints:
        """Those that are not what a transaction gave, and not only too far."""
        return np.concatenate([self.of_another[0], self.by_nobody[0]])


def _given_by_nobody(evidence: Evidence, lane: Ints, positions: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The positions seen before the last one of their lane that nobody gave, and for each one that was given before."""
    history = evidence.history
    given = history.in_txn[positions] & (history.status[positions] != Status.FAIL)
    places = place(lane, history.offset[positions])
    rows = np.flatnonzero(~history.in_txn[positions] & evidence.happened[positions] & (positions < last[lane]))
    rows = rows[~among(places[rows], places[given])]
    # One of unknown outcome may have been committed late, behind what was seen.
    done = given & (history.status[positions] == Status.OK) & among(lane, lane[rows])
    first = np.full(len(last), -1, np.int64)
    first[lane[done][::-1]] = positions[done][::-1]
    rows = rows[first[lane[rows]] >= 0]
    # Where it had stood before is seen until the marker is written, by whoever does not ask for a stable position.
    saw = ~history.in_txn[positions] & evidence.happened[positions]
    old = saw & (positions < np.where(first >= 0, evidence.unit_end[history.unit[first]], -1)[lane])
    new = np.flatnonzero(saw & ~old & among(places, places[given]) & ~among(places, places[old]))
    is_written = np.full(len(last), len(history.op))
    is_written[lane[new][::-1]] = positions[new][::-1]
    rows = rows[~among(places[rows], places[old]) | (positions[rows] > is_written[lane[rows]])]
    seen, before = positions[rows], first[lane[rows]]
    after = evidence.surely_after(before, seen) if len(seen) else np.zeros(0, bool)
    return seen[after], before[after]


def _happened_when(evidence: Evidence, positions: Ints, seen: Ints) -> Mask:
    """For each position that a transaction gave, whether that was certainly committed before the other row.

    A transaction of unknown outcome may be committed late, so only if what proves it was seen before that.
    """
    history, unit = evidence.history, evidence.history.unit[positions]
    happened: Mask = evidence.happened[positions].copy()
    unknown = np.flatnonzero(happened & (history.status[positions] == Status.INFO) & (seen >= 0))
    happened[unknown] = _proved(evidence, unit[unknown]) <= evidence.op_end[history.op[seen[unknown]]]
    return happened


def _proved(evidence: Evidence, units: Ints) -> Ints:
    """For each unit of unknown outcome the row with which an operation ended that proves that it was committed, else none yet."""
    history = evidence.history
    proofs = np.stack([evidence.sighting[units], evidence.seen_position[units]])
    proved: Ints = np.where(proofs >= 0, evidence.op_end[history.op[proofs]], len(history.op)).min(axis=0)
    return proved


def _committed_later(evidence: Evidence, lane: Ints, positions: Ints, seen: Ints, last: Ints) -> Mask:
    """For each lane whether what was seen is further than its last position, and of one that may have been committed later."""
    history = evidence.history
    further = (last >= 0) & (history.offset[seen] > history.offset[last])
    rows = further[lane] & evidence.happened[positions] & (history.offset[positions] == history.offset[seen[lane]])
    mine, lane = positions[rows], lane[rows]
    later = np.zeros(len(seen), bool)
    if len(mine):
        later[lane[~evidence.surely_after(mine, last[lane])]] = True
    return later


def _ends_before(evidence: Evidence, seen: Ints) -> Ints:
    """For each position that was seen the row that says, not before that, that the log ends before it, -1 for none.

    Only of a group that read there: else its position may be a number of its own kind. And only where no record was known at
    that end or behind it: else the log was cut off, and they are ``lost``.
    """
    history, polls = evidence.history, evidence.polls
    number = np.flatnonzero(seen >= 0)
    rows = seen[number]
    ends = evidence.last_said(Kind.LOG_END)[history.key[rows]]
    before = (ends >= 0) & evidence.happened[rows] & (history.offset[ends] < history.offset[rows])
    before &= evidence.op_end[history.op[ends]] >= evidence.op_end[history.op[rows]]
    records = np.concatenate([evidence.committed, evidence.visible])
    furthest = np.full(len(history.keys), -1, np.int64)
    np.maximum.at(furthest, history.key[records], history.offset[records])
    before &= furthest[history.key[rows]] < history.offset[ends]
    number, rows, ends = number[before], rows[before], ends[before]
    lane = lanes(history, np.concatenate([rows, polls])) if len(rows) else rows
    reads = among(lane[: len(rows)], lane[len(rows) :])
    found = np.full(len(seen), -1, np.int64)
    found[number[reads]] = ends[reads]
    return found


def _applied_though_failed(evidence: Evidence, lane: Ints, positions: Ints, seen: Ints) -> Ints:
    """For each lane the position of a failed transaction that was seen afterwards, -1 for none.

    Only of one that polled records below it for the group: else the group may have stood there before.
    """
    history = evidence.history
    mine = history.in_txn[positions] & (history.status[positions] == Status.FAIL)
    mine &= (positions < seen[lane]) & (history.offset[positions] == history.offset[seen[lane]])
    mine[mine] = history.offset[positions[mine]] > first_polled(history, evidence.polls, positions[mine])
    failed = np.full(len(seen), -1, np.int64)
    failed[lane[mine]] = positions[mine]
    return failed


def _ended_last(evidence: Evidence, lane: Ints, rows: Ints, mask: Mask) -> Ints:
    """For each lane the last row of any unit of the rows that the mask names, -1 for none.

    What a transaction gives is not to be seen before it is committed, though an earlier operation of it says so::

        transaction 1 gives position 1
        the group's position is seen to be 0
        transaction 1 sends, and is committed
    """
    last = np.full(int(lane.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(last, lane[mask], evidence.unit_end[evidence.history.unit[rows[mask]]])
    return last


def _last_of_lane(lane: Ints, rows: Ints, mask: Mask) -> Ints:
    """For each lane the last of the rows that the mask names, -1 for none."""
    last = np.full(int(lane.max(initial=-1)) + 1, -1, np.int64)
    last[lane[mask]] = rows[mask]
    return last


def went_on(evidence: Evidence, seen: Ints) -> Mask:
    """For each position that was seen, whether its group polled there, or a transaction gave it another one, after that."""
    history = evidence.history
    given = history.rows(Kind.POSITION)
    rows = np.concatenate([given[history.in_txn[given]], evidence.polls])
    rows = rows[(history.status[rows] != Status.FAIL) & among(history.group[rows], history.group[seen])]
    lane = lanes(history, np.concatenate([seen, rows]))
    is_theirs = np.arange(len(lane)) >= len(seen)
    last = _ended_last(evidence, lane, np.concatenate([seen, rows]), is_theirs)
    went_on: Mask = last[lane[: len(seen)]] > seen
    return went_on


def _first_waiting(evidence: Evidence, positions: Ints, stable: Ints) -> tuple[Ints, Ints]:
    """For each position a row that tells of a record between it and the stable end, and one that does later; -1 for none.

    Markers do not wait. Where a record stands may be told later. A transaction of unknown outcome may have been committed late,
    so it is told of by what proves that it was.
    """
    history, offset = evidence.history, evidence.sent_offset
    if not len(positions):
        return positions, positions
    rows = np.concatenate([evidence.committed, evidence.visible])
    rows = rows[offset[rows] >= 0]
    rows = rows[~evidence.gone.contain(place(history.key[rows], offset[rows]))]
    rows = rows[np.argsort(place(history.key[rows], offset[rows]), kind="stable")]
    places = place(history.key[rows], offset[rows])
    known_at = evidence.unit_end[history.unit]
    unknown = rows[(history.status[rows] == Status.INFO) & (history.kind[rows] == Kind.SEND)]
    known_at[unknown] = _proved(evidence, history.unit[unknown])
    key = history.key[positions]
    begin = np.searchsorted(places, place(key, history.offset[positions]))
    end = np.searchsorted(places, place(key, history.offset[stable]))
    first, later = np.full((2, len(positions)), -1, np.int64)
    for number in np.flatnonzero(begin < end).tolist():  # of all positions hardly any
        waiting = rows[begin[number] : end[number]]
        told = known_at[waiting] <= evidence.op_end[history.op[positions[number]]]
        first[number] = waiting[np.argmax(told)] if np.any(told) else -1
        later[number] = -1 if np.all(told) else waiting[np.argmin(told)]
    return first, later


def _last_rows(lane: Ints, rows: Ints) -> Ints:
    last = np.empty(int(lane.max(initial=-1)) + 1, np.int64)
    last[lane] = rows
    return last
