"""Input that a group went past without handling it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.findings import findings
from onceflow.verify.checker.missing import Missing
from onceflow.verify.checker.positions import given_positions, lanes, seen_positions
from onceflow.verify.checker.progress import Torn
from onceflow.verify.history.coding import Ints, among, distinct
from onceflow.verify.history.columns import Columns, Mask
from onceflow.verify.history.schema import Kind, Status


def consumed_never(evidence: Evidence) -> pa.Table:
    """A group's position went past a record that was never consumed for the group.

    Whoever reads for it next begins behind the record, so that no process skips anything::

        transaction 1 of process one polls 0 and 1, commits position 2
        transaction 2 of process two polls 3, commits position 4            2 is never handled

    The position is what a committed transaction gave; or one that was seen later, unless ``torn_progress`` tells of it, or one of
    unknown outcome gave it::

        a consumer polls 0 and 1
        it commits position 4 by a timer, with what it has fetched, and dies
        the group's position is seen to be 4                                2 and 3 are never handled

        transaction 1 polls 0 and 1, commits position 2, aborts
        the consumer commits position 4 by its timer all the same
        the group's position is seen to be 4                                0 to 3 are never handled

    What stands before the first record that the group polled was before its time, unless the group was seen at a position
    below it before; also on a partition of which it consumed nothing at all::

        the group's position is seen to be 0
        transaction 1 of process one polls 0 and 1, aborts
        transaction 2 of process two polls 2, commits position 3            0 and 1 are never handled

    Of a group that consumes nowhere nobody wrote down what it polls. What an operation polled that failed was not consumed; that
    the group stood there it shows all the same.
    A transaction of unknown outcome may have consumed what it polled, unless what it sent is not there.
    """
    history = evidence.history
    polls = evidence.polls[history.group[evidence.polls] >= 0]
    positions = history.rows(Kind.POSITION)
    positions = positions[history.in_txn[positions]]
    seen = seen_positions(history)
    lane = lanes(history, np.concatenate([polls, positions, seen]))
    taken, given, stood = np.split(lane, [len(polls), len(polls) + len(positions)])
    committed = evidence.happened[positions]
    others = np.concatenate([np.ones(len(polls), bool), committed])
    begins = _before_all_others(lane[: len(others)][others], np.concatenate([polls, positions])[others], stood, seen)
    counts = _after_another(taken, polls, stood, seen) & ~among(seen, given_elsewhere(history))
    counts &= ~among(seen, evidence.once(Torn).of_transactions)
    in_doubt = history.status[positions] == Status.INFO
    counts &= ~among(place(stood, history.offset[seen]), place(given, history.offset[positions])[in_doubt])
    begun = _Lanes(taken, polls, stood[begins], seen[begins])
    went = _Lanes(given[committed], positions[committed], stood[counts], seen[counts])
    number, lane_of = _passed(evidence, begun, went)
    shown = evidence.known_poll[number]
    return findings(history, "consumed_never", shown, _first_behind(history, went, lane_of, shown))


def given_elsewhere(history: Columns) -> Ints:
    """The positions seen of groups to which transactions give positions, but none on this key: these are held against nothing."""
    given, seen = history.rows(Kind.POSITION), seen_positions(history)
    given = given[history.in_txn[given]]
    lane = lanes(history, np.concatenate([seen, given]))
    transactional = among(history.group[seen], history.group[given_positions(history)])
    elsewhere: Ints = seen[transactional & ~among(lane[: len(seen)], lane[len(seen) :])]
    return elsewhere


def only_in_doubt(evidence: Evidence) -> Ints:
    """The polls that nobody knows to have been kept, of records that the group's position passed and no other poll consumed.

    Without those of transactions that sent: what they sent tells of them, or it is said of that that nobody looked.
    """
    history = evidence.history
    polls = evidence.polls[history.group[evidence.polls] >= 0]
    polls = polls[(history.status[polls] != Status.FAIL) & ~evidence.once(_undone)[history.unit[polls]]]
    positions = history.rows(Kind.POSITION)
    positions = positions[evidence.happened[positions]]
    lane = lanes(history, np.concatenate([polls, positions]))
    taken, went = np.split(lane, [len(polls)])
    furthest = np.full(int(lane.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(furthest, went, history.offset[positions])
    places = place(taken, history.offset[polls])
    kept = evidence.happened[polls]
    told = history.in_txn[polls] & among(history.unit[polls], history.unit[evidence.sends])
    alone = ~kept & ~told & (history.offset[polls] < furthest[taken]) & ~among(places, places[kept | told])
    rows: Ints = polls[alone]
    return rows


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Rows and the lanes (a group on a partition) that they are of, and the positions that were seen, with theirs."""

    lane: Ints
    rows: Ints
    stood: Ints
    seen: Ints

    @property
    def all_lanes(self) -> Ints:
        return np.concatenate([self.lane, self.stood])

    @property
    def all_rows(self) -> Ints:
        return np.concatenate([self.rows, self.seen])


def _undone(evidence: Evidence) -> Mask:
    """For each unit of unknown outcome whether it was not committed, for what it sent was looked for and is not there."""
    history, sends = evidence.history, evidence.sends
    unknown = sends[(history.status[sends] == Status.INFO) & history.in_txn[sends] & ~evidence.happened[sends]]
    missing = Missing(evidence, unknown)
    undone = np.zeros(int(history.unit.max(initial=-1)) + 1, bool)
    undone[history.unit[missing.unread[missing.passed | missing.drained]]] = True
    return undone


def _before_all_others(lane: Ints, others: Ints, stood: Ints, seen: Ints) -> Mask:
    """For each position that was seen, whether no poll and no transaction of its lane was before.

    A later one may be what somebody set the group back to: other checks tell of that.
    """
    before: Mask = seen < _first_of(lane, others, stood)
    return before


def _after_another(taken: Ints, polls: Ints, stood: Ints, seen: Ints) -> Mask:
    """For each position that was seen, whether its group had polled or was seen there before: else it may be older than that."""
    after: Mask = _first_of(np.concatenate([taken, stood]), np.concatenate([polls, seen]), stood) < seen
    return after


def _first_of(lane: Ints, rows: Ints, wanted: Ints) -> Ints:
    """For each of the lanes wanted the first of the rows that are of it, or one behind all."""
    first = np.full(int(max(lane.max(initial=-1), wanted.max(initial=-1))) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, lane, rows)
    return first[wanted]


def _passed(evidence: Evidence, begun: _Lanes, went: _Lanes) -> tuple[Ints, Ints]:
    """The numbers of known records between a lane's beginning and its furthest position that it did not consume; and the lanes.

    It begins at its first poll, or where it was seen to stand before that.
    """
    history, known = evidence.history, evidence.known
    taken, polls = begun.lane, begun.rows
    polled = place(history.key[polls], history.offset[polls])
    number = np.searchsorted(known, polled)
    ends = np.searchsorted(known, place(history.key[went.all_rows], history.offset[went.all_rows]))
    count = int(max(begun.all_lanes.max(initial=-1), went.all_lanes.max(initial=-1))) + 1
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(low, taken, number)
    polls_at_all = among(history.group[begun.seen], history.group[polls])
    stands = np.searchsorted(known, place(history.key[begun.seen], history.offset[begun.seen]))
    np.minimum.at(low, begun.stood[polls_at_all], stands[polls_at_all])
    np.maximum.at(high, went.all_lanes, ends)
    inside = (np.append(known, -1)[number] == polled) & (number < high[taken])
    inside &= (history.status[polls] != Status.FAIL) & ~evidence.once(_undone)[history.unit[polls]]
    consumed = distinct(_pairs(evidence, taken[inside], number[inside]))
    sizes = np.bincount(consumed // (len(known) + 1), minlength=count)
    short = np.flatnonzero((low < high) & (sizes < high - low))  # of all lanes hardly any
    lane = np.repeat(short, high[short] - low[short])
    all_of_them = np.concatenate([np.arange(0), *(np.arange(low[each], high[each]) for each in short.tolist())])
    never = ~among(_pairs(evidence, lane, all_of_them), consumed)
    return all_of_them[never], lane[never]


def _pairs(evidence: Evidence, lane: Ints, number: Ints) -> Ints:
    return lane * (len(evidence.known) + 1) + number


def _first_behind(history: Columns, went: _Lanes, lane: Ints, rows: Ints) -> Ints:
    """For each row and its lane the lowest position behind it that the lane went to."""
    places = place(went.all_lanes, history.offset[went.all_rows])
    order = np.argsort(places, kind="stable")
    found: Ints = went.all_rows[order[np.searchsorted(places[order], place(lane, history.offset[rows] + 1))]]
    return found
