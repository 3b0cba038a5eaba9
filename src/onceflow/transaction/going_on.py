"""What a query owes to what is committed under its name: whether it must go on from it, and whether it does. Pure."""

from __future__ import annotations

from collections.abc import Callable

from onceflow.errors import ProgressConflict
from onceflow.transaction.progress import OnMismatch, Progress, SourceOffsets
from onceflow.transaction.questions import Committed
from onceflow.transaction.resuming import starts_elsewhere
from onceflow.transaction.source_mark import NOT_RESUMED

_MOST_TOLD = 5  # partitions, in one error
_RESUME_ONCE_MORE = (
    "resume once more: a new checkpoint that starts at the committed offsets (startingOffsets = "
    "onceflow.committed_offsets(…))"
)
_NOT_NEW = (
    "source offsets are committed under this name, and no progress (it ran at_least_once, or a resume did not get as far as its "
    "first batch). Begin a new checkpoint at them (startingOffsets = onceflow.committed_offsets(…)), or restart, which writes "
    "again what was written; a new pipeline needs a new name"
)


def offsets_tell_of_a_commit(mode: OnMismatch, committed: Callable[[], Committed]) -> bool:
    """Whether source offsets prove that a batch was committed: a note beside them comes with progress alone (questions.py).

    Not where a new checkpoint is to begin at them::

        somebody deletes the topic of the progress, which holds no record, and the checkpoint is lost as well
        taken for a new name, all would be written a second time
    """
    if mode is not OnMismatch.REFUSE:
        return False
    found = committed()
    return bool(found.offsets.keys() - found.plain)


def may_be_committed(batch_id: int, age_s: Callable[[], float], least_s: float, kept_s: Callable[[], float]) -> bool:
    """Whether the batch may have been committed, or one before it, although no progress tells so: the name is none that is new.

    ``age_s``: how long ago the batch was planned; ``kept_s``: for how long the cluster keeps progress, at least ``least_s``. A
    first batch that is younger has failed before the name was claimed. Each is asked where it decides.
    """
    if batch_id > 0:
        return True
    age = age_s()
    return age > least_s and age > kept_s()


def must_begin_at_offsets(mode: OnMismatch, batch_id: int, progress: Callable[[], Progress | None]) -> bool:
    """Whether a query that begins with this batch has to begin at the committed source offsets, if there are any.

    Also where nobody has asked to resume, and no progress tells of the checkpoint before::

        a name runs at_least_once, and commits source offsets alone; its guarantee and its checkpoint are changed at once
        by its progress the name is new, and all would be written a second time without a word
    """
    if mode is not OnMismatch.REFUSE:
        return mode is OnMismatch.RESUME
    if batch_id > 0:  # it is refused without progress
        return False
    known = progress()
    return known is None or not known.query_id


def check_beginning(
    name: str, mode: OnMismatch, query_id: str, found: Committed, first: Callable[[], SourceOffsets]
) -> None:
    """Raises ProgressConflict unless the query begins exactly where what is committed ended. ``first``: its first offsets."""
    is_asked = mode is OnMismatch.RESUME
    said = "cannot resume" if is_asked else "has committed source offsets, and does not go on from them"
    goes_on = found.progress is not None and found.progress.query_id == query_id
    why_not = found.why_not_resumed
    if why_not and not goes_on:
        action = NOT_RESUMED if is_asked else _NOT_NEW
        raise ProgressConflict(f"pipeline {name!r} {said}: {why_not}", action=action)
    wrong = starts_elsewhere(found.progress, query_id, first, found.offsets, found.newest)
    if wrong:
        raise ProgressConflict(
            f"pipeline {name!r} {said}: the new checkpoint does not start at the committed "
            f"offsets: {'; '.join(wrong[:_MOST_TOLD])}",
            action=_RESUME_ONCE_MORE if is_asked else _NOT_NEW,
        )


def planned_again_error(name: str, batch_id: int) -> ProgressConflict:
    """Of a batch that Spark has planned once more, of a query whose state depends on the time at which it did."""
    return ProgressConflict(
        f"pipeline {name!r}, batch {batch_id}: it is committed already, and Spark has lost its plan and made another, of the "
        "same records at another time. The query keeps state that may depend on the time (current_timestamp, a function with "
        "state), which would not be the state that the committed output was made of",
        action="restore the whole checkpoint as it was, or resume (--resume): a new checkpoint, and empty state. In PySpark, if "
        'the state does not depend on the time after all, run once on this checkpoint with on_mismatch="restart": it goes on',
    )
