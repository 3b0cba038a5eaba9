"""Whether a query that begins has to go on from what is committed under its name, and whether it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.errors import ProgressConflict
from onceflow.transaction.going_on import (
    check_beginning,
    may_be_committed,
    must_begin_at_offsets,
    offsets_tell_of_a_commit,
    planned_again_error,
)
from onceflow.transaction.progress import OnMismatch, Progress, SourceOffsets
from onceflow.transaction.questions import Committed
from onceflow.transaction.source_mark import NOT_RESUMED, mark_of, note_of

OFFSETS: SourceOffsets = {("in", 0): 7, ("in", 1): 8}
PROGRESS = Progress(next_batch=5, query_id="q", instance="i", ends=("a", "b"), sources=mark_of(OFFSETS, agree=True))
NEWEST = frozenset(OFFSETS)
NOTED = Committed(PROGRESS, OFFSETS, NEWEST, notes=dict.fromkeys(OFFSETS, note_of(PROGRESS)))
PLAIN = Committed(None, OFFSETS, plain=NEWEST)
"""At least once has committed them."""


def unasked() -> float:
    raise AssertionError("asked")


def not_read() -> Committed:
    raise AssertionError("read")


# ------------------------------------------------------------------------------------------- whether something is committed


def test_a_note_beside_source_offsets_tells_of_a_commit() -> None:
    assert offsets_tell_of_a_commit(OnMismatch.REFUSE, lambda: NOTED)
    one_of_two = Committed(None, OFFSETS, plain=frozenset({("in", 0)}))
    assert offsets_tell_of_a_commit(OnMismatch.REFUSE, lambda: one_of_two)


@pytest.mark.parametrize("found", [PLAIN, Committed(None, {}), Committed(PROGRESS, {})])
def test_offsets_without_a_note_tell_of_none(found: Committed) -> None:
    assert not offsets_tell_of_a_commit(OnMismatch.REFUSE, lambda: found)


@pytest.mark.parametrize("mode", [OnMismatch.RESUME, OnMismatch.RESTART])
def test_who_resumes_or_restarts_is_not_kept_from_it_by_offsets(mode: OnMismatch) -> None:
    assert offsets_tell_of_a_commit(mode, not_read) is False


def test_behind_the_first_batch_something_may_be_committed_whatever_its_age() -> None:
    assert may_be_committed(1, unasked, 60, unasked)


@pytest.mark.parametrize(("age_s", "kept_s", "expected"), [(101, 100, True), (100, 100, False), (61, 100, False)])
def test_a_first_batch_that_is_older_than_what_the_cluster_keeps_may_be(
    age_s: float, kept_s: float, expected: bool
) -> None:
    assert may_be_committed(0, lambda: age_s, 60, lambda: kept_s) is expected


@pytest.mark.parametrize("age_s", [0, 60])
def test_for_a_young_one_the_cluster_is_not_asked_how_long_it_keeps_it(age_s: float) -> None:
    assert not may_be_committed(0, lambda: age_s, 60, unasked)


# ---------------------------------------------------------------------------------------------------- whether it must go on


def progress_unasked() -> Progress:
    raise AssertionError("asked for the progress")


@pytest.mark.parametrize("batch_id", [0, 1])
def test_who_asks_to_resume_must(batch_id: int) -> None:
    assert must_begin_at_offsets(OnMismatch.RESUME, batch_id, progress_unasked)


@pytest.mark.parametrize("batch_id", [0, 1])
def test_who_restarts_need_not(batch_id: int) -> None:
    assert not must_begin_at_offsets(OnMismatch.RESTART, batch_id, progress_unasked)


def test_behind_the_first_batch_the_progress_decides_alone() -> None:
    assert must_begin_at_offsets(OnMismatch.REFUSE, 1, progress_unasked) is False


@pytest.mark.parametrize(("progress", "expected"), [(None, True), (Progress.empty("i"), True), (PROGRESS, False)])
def test_a_first_batch_must_where_no_progress_tells_of_a_checkpoint(progress: Progress | None, expected: bool) -> None:
    assert must_begin_at_offsets(OnMismatch.REFUSE, 0, lambda: progress) is expected


# --------------------------------------------------------------------------------------------------------- whether it does


def first_unasked() -> SourceOffsets:
    raise AssertionError("asked where it begins")


@pytest.mark.parametrize("mode", [OnMismatch.REFUSE, OnMismatch.RESUME])
@pytest.mark.parametrize("found", [NOTED, PLAIN])
def test_a_query_that_begins_at_the_committed_offsets_goes_on(mode: OnMismatch, found: Committed) -> None:
    check_beginning("orders", mode, "another", found, lambda: OFFSETS)


def test_where_nothing_is_committed_it_may_begin_anywhere() -> None:
    check_beginning("orders", OnMismatch.REFUSE, "q", Committed(None, {}), first_unasked)


def test_a_query_that_goes_on_with_its_own_progress_is_not_asked_where_it_began() -> None:
    """Nor does it need offsets that tell where the output ends: its checkpoint does."""
    check_beginning("orders", OnMismatch.RESUME, "q", NOTED, first_unasked)
    gone = Committed(PROGRESS, {})
    check_beginning("orders", OnMismatch.RESUME, "q", gone, first_unasked)


HALF = Committed(None, {("in", 0): 7}, notes={("in", 0): note_of(PROGRESS)})
"""The progress is gone, and one of the two offsets that were committed with it."""


def refused(mode: OnMismatch, found: Committed, first: Callable[[], SourceOffsets]) -> ProgressConflict:
    with pytest.raises(ProgressConflict) as conflict:
        check_beginning("orders", mode, "another", found, first)
    return conflict.value


@pytest.mark.parametrize("found", [Committed(PROGRESS, {}), HALF])
def test_offsets_that_do_not_tell_where_the_output_ends_refuse_a_resume(found: Committed) -> None:
    conflict = refused(OnMismatch.RESUME, found, first_unasked)
    assert conflict.message.startswith("pipeline 'orders' cannot resume: ")
    assert conflict.action == NOT_RESUMED


def test_a_query_that_nobody_has_resumed_is_not_told_how_to_resume() -> None:
    conflict = refused(OnMismatch.REFUSE, HALF, first_unasked)
    assert conflict.message.startswith("pipeline 'orders' has committed source offsets, and does not go on from them: ")
    assert conflict.action is not None
    assert conflict.action.endswith("a new pipeline needs a new name")


def test_a_resumed_query_that_begins_elsewhere_is_told_to_resume_once_more() -> None:
    conflict = refused(OnMismatch.RESUME, NOTED, lambda: dict.fromkeys(OFFSETS, 0))
    assert conflict.message == (
        "pipeline 'orders' cannot resume: the new checkpoint does not start at the committed offsets: "
        "in-0 starts at 0, committed is 7; in-1 starts at 0, committed is 8"
    )
    assert conflict.action == (
        "resume once more: a new checkpoint that starts at the committed offsets "
        "(startingOffsets = onceflow.committed_offsets(…))"
    )


def test_a_query_that_nobody_has_resumed_and_begins_elsewhere_is_told_that_its_name_is_not_new() -> None:
    conflict = refused(OnMismatch.REFUSE, PLAIN, dict)
    assert conflict.message == (
        "pipeline 'orders' has committed source offsets, and does not go on from them: the new checkpoint does not start at the "
        "committed offsets: in-0 starts at None, committed is 7; in-1 starts at None, committed is 8"
    )
    assert conflict.action == (
        "source offsets are committed under this name, and no progress (it ran at_least_once, or a resume did not get as far as "
        "its first batch). Begin a new checkpoint at them (startingOffsets = onceflow.committed_offsets(…)), or restart, which "
        "writes again what was written; a new pipeline needs a new name"
    )


def test_of_many_partitions_the_first_five_are_told() -> None:
    many = {("in", number): 7 for number in range(9)}
    conflict = refused(OnMismatch.RESUME, Committed(None, many, plain=frozenset(many)), dict)
    assert conflict.message.count("committed is 7") == 5


def test_a_batch_that_was_planned_again_is_told_with_every_way_out() -> None:
    conflict = planned_again_error("orders", 7)
    assert isinstance(conflict, ProgressConflict)
    assert conflict.message.startswith(
        "pipeline 'orders', batch 7: it is committed already, and Spark has lost its plan"
    )
    for way_out in ("restore the whole checkpoint", "resume (--resume): a new checkpoint", 'on_mismatch="restart"'):
        assert way_out in conflict.action
