"""What of a history could not be judged, so that it proves nothing there that nothing was found.

Each part is one sentence, which says where, and what would have had to be recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.checker.ends import stable_behind_the_end, went_back
from onceflow.verify.checker.evidence import Evidence, place
from onceflow.verify.checker.missing import Missing
from onceflow.verify.checker.passing import given_elsewhere, only_in_doubt
from onceflow.verify.checker.positions import lanes, seen_positions
from onceflow.verify.checker.progress import LastPositions, ends_known, read_later
from onceflow.verify.checker.repetitions import repetitions
from onceflow.verify.checker.unanswered import Unanswered
from onceflow.verify.checker.unproved import keys_text, listed
from onceflow.verify.checker.vanished import Vanished
from onceflow.verify.history.coding import Ints, among
from onceflow.verify.history.columns import Columns
from onceflow.verify.history.schema import Kind, Status


def not_judged(evidence: Evidence, held: Collection[str] = ()) -> tuple[str, ...]:
    """The sentences, none if all was judged. What stands on the keys ``held`` was held against a function."""
    strange = partial(_strange, held=held)
    parts = (
        _unlooked_for,
        _dropped,
        _undecided,
        strange,
        _targets,
        _effects_apart,
        _ends,
        _ends_apart,
        _positions,
        _unconsumed,
        _in_doubt,
        _elsewhere,
        _older,
        _consumed_again,
        _late_sends,
    )
    return tuple(sentence for part in parts for sentence in part(evidence))


def _unlooked_for(evidence: Evidence) -> Iterator[str]:
    missing = evidence.once(Missing)
    rows = missing.unread[~(missing.passed | missing.drained | (missing.log_end >= 0))]
    if len(rows):
        placeless = np.any(evidence.history.offset[rows] < 0)
        yield (
            f"{_records(rows)} that {_were(rows)} committed on {keys_text(evidence, rows)}: nobody read {_them(rows)}, and no "
            f"window that was asked for later reaches there{_TO_THE_END if placeless else ''}"
        )


_TO_THE_END = " (where an offset is not known: windows from 0 up to a log_end that was asked later as well)"


def _dropped(evidence: Evidence) -> Iterator[str]:
    rows = np.setdiff1d(evidence.committed[~evidence.read[evidence.committed]], evidence.once(Missing).unread)
    if len(rows):
        where = keys_text(evidence, rows)
        yield f"{_records(rows)} that {_were(rows)} committed on {where}: nobody read {_them(rows)} before a range was gone"


def _undecided(evidence: Evidence) -> Iterator[str]:
    history, sends = evidence.history, evidence.sends
    unknown = sends[(history.status[sends] == Status.INFO) & ~evidence.happened[sends] & ~evidence.read[sends]]
    missing = Missing(evidence, unknown)
    rows = missing.unread[~(missing.passed | missing.drained)]
    if len(rows):
        yield f"{_records(rows)} of unknown outcome on {keys_text(evidence, rows)}: nobody looked whether {_they(rows)} there"


def _strange(evidence: Evidence, held: Collection[str]) -> Iterator[str]:
    """Nobody's, so far as the history knows."""
    history = evidence.history
    told = np.append(history.key[evidence.sends], history.codes(held))
    rows = evidence.polls[~among(history.key[evidence.polls], told)]
    if len(rows):
        where = keys_text(evidence, rows)
        yield f"what should be on {where}: no send to it is in the history, so nothing can be missing or invented"


def _targets(evidence: Evidence) -> Iterator[str]:
    effects = evidence.history.rows(Kind.EFFECT)
    rows = effects[~evidence.is_target[evidence.history.key[effects]]]
    if len(rows):
        where = keys_text(evidence, rows)
        yield f"which effects {where} should have: no send tells of them (without an offset), so only repetitions were looked for"


def _effects_apart(evidence: Evidence) -> Iterator[str]:
    rows = evidence.once(Vanished).doubtful
    if len(rows):
        yield (
            f"whether {len(rows):,} effect{'s' if len(rows) > 1 else ''} on {keys_text(evidence, rows)} {_were(rows)} there "
            f"in the end: the look that ended last did not find {_them(rows)}, and may have looked before another one that did"
        )


def _ends(evidence: Evidence) -> Iterator[str]:
    """Any transaction may be left open, also one that failed."""
    history, sends = evidence.history, evidence.sends
    rows = sends[history.in_txn[sends] & ~evidence.is_target[history.key[sends]]]
    rows = rows[~ends_known(evidence)[history.key[rows]]]
    later = evidence.once(read_later)[history.key[rows]]
    if np.any(~later):
        yield (
            f"whether a transaction hangs on {keys_text(evidence, rows[~later])}: no log_end and stable_end are in the history "
            "that were asked for behind all that transactions wrote there"
        )
    if np.any(later):
        yield (
            f"whether a transaction hangs on {keys_text(evidence, rows[later])}: somebody read behind its stable_end while that "
            "was asked for, or since, so it was not asked for at the end"
        )


def _ends_apart(evidence: Evidence) -> Iterator[str]:
    rows = went_back(evidence)
    if len(rows):
        yield f"what was at the end of {keys_text(evidence, rows)}: it was seen further on before, only known records are missed"
    rows = stable_behind_the_end(evidence)
    if len(rows):
        yield (
            f"whether a transaction hangs on {keys_text(evidence, rows)}: its stable_end was seen behind its log_end, so both "
            "were not asked of one log"
        )


def _positions(evidence: Evidence) -> Iterator[str]:
    """Where a group went on after its position was seen last, or that was never seen, nobody knows how far it came.

    Nor where what it could have taken came after that: it may have gone on with a transaction that failed, or unseen.
    """
    history = evidence.history
    known = evidence.once(LastPositions).known
    rows = np.concatenate([history.rows(Kind.POSITION), evidence.polls[history.group[evidence.polls] >= 0]])
    lane = lanes(history, np.concatenate([known, rows]))
    rows = rows[~among(lane[len(known) :], lane[: len(known)])]
    if len(rows):
        yield (
            f"how far {_groups(evidence, rows)} came on {keys_text(evidence, rows)}: its position and the stable_end were not "
            "both seen at the end"
        )


def _unconsumed(evidence: Evidence) -> Iterator[str]:
    history, polls = evidence.history, evidence.polls
    positions = history.rows(Kind.POSITION)
    positions = positions[history.in_txn[positions] & evidence.happened[positions]]
    rows = np.concatenate([positions, _moved(history)])
    rows = rows[~among(history.group[rows], history.group[polls]) & (history.group[rows] >= 0)]
    if len(rows):
        yield f"whether {_groups(evidence, rows)} consumed all that it went past: no poll in the history names the group"


def _moved(history: Columns) -> Ints:
    """The positions that were seen behind where the group was seen first on the partition."""
    seen = seen_positions(history)
    lane = lanes(history, seen)
    first = np.full(int(lane.max(initial=-1)) + 1, -1, np.int64)
    first[lane[::-1]] = seen[::-1]
    moved: Ints = seen[history.offset[seen] > history.offset[first[lane]]]
    return moved


def _in_doubt(evidence: Evidence) -> Iterator[str]:
    rows = only_in_doubt(evidence)
    if len(rows):
        yield (
            f"whether {_groups(evidence, rows)} consumed {_records(rows)} on {keys_text(evidence, rows)} that its position went "
            "past: what polled them is of unknown outcome"
        )


def _elsewhere(evidence: Evidence) -> Iterator[str]:
    """Of a group with transactions only what they give is held against what it polled."""
    history, polls = evidence.history, evidence.polls
    seen = given_elsewhere(history)
    seen = seen[history.group[seen] >= 0]
    lane = lanes(history, np.concatenate([seen, polls]))
    rows = seen[among(lane[: len(seen)], lane[len(seen) :])]
    if len(rows):
        yield (
            f"whether {_groups(evidence, rows)} consumed all that it went past on {keys_text(evidence, rows)}: its transactions "
            "give it positions on other keys only"
        )


def _older(evidence: Evidence) -> Iterator[str]:
    """A position that is all there is of a group on a partition: what is before it may have been handled before the history."""
    history, polls = evidence.history, evidence.polls
    positions, seen = history.rows(Kind.POSITION), seen_positions(history)
    seen = seen[among(history.group[seen], history.group[polls]) & (history.group[seen] >= 0)]
    others = np.concatenate([polls, positions[history.in_txn[positions]]])
    lane = lanes(history, np.concatenate([seen, others]))
    alone = ~among(lane[: len(seen)], lane[len(seen) :])
    alone &= np.bincount(lane[: len(seen)], minlength=1)[lane[: len(seen)]] == 1
    key, offset = history.key[seen], history.offset[seen]
    rows = seen[alone & (evidence.records_between(place(key, 0), place(key, offset)) > 0)]
    if len(rows):
        yield (
            f"whether {_groups(evidence, rows)} consumed what stands before its position on {keys_text(evidence, rows)}: no poll "
            "in the history is of the group there, and no earlier position"
        )


def _consumed_again(evidence: Evidence) -> Iterator[str]:
    """A group that goes back to its position (a rebalance, a restart) polls records again, and may know them for handled."""
    for rows, reason in repetitions(evidence):
        where = keys_text(evidence, rows)
        yield f"whether {_groups(evidence, rows)} handled what it polled more than once on {where}: {reason}"


def _late_sends(evidence: Evidence) -> Iterator[str]:
    rows = evidence.once(Unanswered).undecided
    if len(rows):
        yield (
            f"the order of {_records(rows)} on {keys_text(evidence, rows)}, before what the same process had sent before: one of "
            "the two sends got no answer, and may have taken effect later"
        )


def _groups(evidence: Evidence, rows: Ints) -> str:
    names = pc.unique(evidence.history.table["group"].take(pa.array(rows))).to_pylist()
    return "group " + listed([name or "without a name" for name in names])


def _records(rows: Ints) -> str:
    return f"{len(rows):,} record{'s' if len(rows) > 1 else ''}"


def _were(rows: Ints) -> str:
    return "were" if len(rows) > 1 else "was"


def _them(rows: Ints) -> str:
    return "them" if len(rows) > 1 else "it"


def _they(rows: Ints) -> str:
    return "they are" if len(rows) > 1 else "it is"
