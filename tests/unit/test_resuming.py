"""From which committed offsets a query may go on, and whether it starts at them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onceflow.errors import ProgressConflict
from onceflow.transaction.progress import Progress, SourceOffsets
from onceflow.transaction.resuming import starts_elsewhere
from onceflow.transaction.source_mark import (
    is_of_newest,
    mark_of,
    note_of,
    topics_of,
    why_not_resumed,
    with_topics,
)

PROGRESS = Progress(next_batch=5, query_id="q", instance="i", ends=("a", "b"))
COMMITTED: SourceOffsets = {("a", 0): 7, ("a", 1): 8, ("b", 0): 9}


def elsewhere(initial: SourceOffsets, query_id: str = "another") -> list[str]:
    return starts_elsewhere(PROGRESS, query_id, lambda: initial, COMMITTED)


def test_a_query_that_starts_at_the_committed_offsets_continues_them() -> None:
    assert elsewhere(COMMITTED) == []
    assert elsewhere({**COMMITTED, ("new", 0): 3}) == []


@pytest.mark.parametrize("at", list(COMMITTED))
@pytest.mark.parametrize("offset", [0, 99, None])
def test_every_partition_has_to_start_at_its_committed_offset(at: tuple[str, int], offset: int | None) -> None:
    """Also one that the query does not read at all."""
    initial = {other: found for other, found in {**COMMITTED, at: offset}.items() if found is not None}
    topic, partition = at
    assert elsewhere(initial) == [f"{topic}-{partition} starts at {offset}, committed is {COMMITTED[at]}"]


def test_all_partitions_that_start_elsewhere_are_named_in_order() -> None:
    backwards = dict(reversed(list(COMMITTED.items())))
    told = starts_elsewhere(PROGRESS, "another", dict, backwards)
    assert [line.split()[0] for line in told] == ["a-0", "a-1", "b-0"]


@pytest.mark.parametrize(("progress", "committed"), [(None, {}), (PROGRESS, COMMITTED), (Progress.empty("i"), {})])
def test_who_continues_its_own_progress_or_has_none_is_not_asked_where_it_starts(
    progress: Progress | None, committed: SourceOffsets
) -> None:
    def unasked() -> SourceOffsets:
        raise AssertionError("asked where the query starts")

    assert starts_elsewhere(progress, PROGRESS.query_id, unasked, committed) == []


def test_a_query_whose_beginning_cannot_be_compared_does_not_resume_anothers_progress() -> None:
    """A query of files: nothing of it stands among the committed offsets, and it would begin at its first file."""

    def initial() -> SourceOffsets:
        raise ProgressConflict("sources other than Kafka")

    with pytest.raises(ProgressConflict):
        starts_elsewhere(PROGRESS, "another", initial, {})
    assert starts_elsewhere(PROGRESS, "another", lambda: COMMITTED, {}) == [], "nothing was read of what it reads"


@pytest.mark.parametrize("claim", [Progress.empty("i"), None], ids=["claimed", "the claim is on its way"])
def test_offsets_without_progress_are_those_that_a_resume_starts_at(claim: Progress | None) -> None:
    """The progress is gone, or there was none under at least once: the name is claimed as a new one."""

    def elsewhere(initial: SourceOffsets) -> list[str]:
        return starts_elsewhere(claim, "q", lambda: initial, COMMITTED)

    assert elsewhere(COMMITTED) == []
    assert elsewhere({("a", 0): 7, ("a", 1): 8, ("new", 0): 3}) == [], "b is not read any more"
    assert elsewhere({**COMMITTED, ("a", 1): 0}) == ["a-1 starts at 0, committed is 8"]
    assert [line.split()[0] for line in elsewhere({("misspelt", 0): 0})] == ["a-0", "a-1", "b-0"]
    assert [line.split()[0] for line in elsewhere({})] == ["a-0", "a-1", "b-0"]


def test_what_left_the_plan_binds_only_a_query_that_reads_it_again() -> None:
    newest = {("a", 0), ("a", 1)}
    at_the_newest = {at: COMMITTED[at] for at in newest}

    def elsewhere(initial: SourceOffsets) -> list[str]:
        return starts_elsewhere(PROGRESS, "another", lambda: initial, COMMITTED, newest)

    assert elsewhere(at_the_newest) == []
    assert elsewhere(COMMITTED) == []
    assert elsewhere({**at_the_newest, ("b", 0): 0}) == ["b-0 starts at 0, committed is 9"]
    assert elsewhere({("a", 0): 7}) == ["a-1 starts at None, committed is 8"]


def marked(offsets: SourceOffsets, *, agree: bool = True) -> Progress:
    return replace(PROGRESS, sources=f"{mark_of(offsets, agree=agree)} topics")


def test_offsets_that_are_all_there_are_resumed_whatever_else_is_there() -> None:
    newest = {("a", 0): 7, ("a", 1): 8}
    assert why_not_resumed(marked(newest), newest, set(newest)) == ""
    assert why_not_resumed(marked(newest), COMMITTED, set(newest)) == ""
    assert why_not_resumed(marked({}), {}, set()) == "", "a query without Kafka sources"


@pytest.mark.parametrize("found", [{}, {("a", 0): 7}, {("a", 0): 7, ("a", 1): 9}, COMMITTED])
def test_offsets_that_are_gone_or_others_are_not_resumed(found: SourceOffsets) -> None:
    progress = marked({("a", 0): 7, ("a", 1): 8})
    assert "batches up to 4 are committed, but" in why_not_resumed(progress, found, set(found))


def test_readings_that_disagree_are_not_resumed() -> None:
    assert why_not_resumed(marked(COMMITTED, agree=False), COMMITTED, set(COMMITTED)).startswith("in batch 4, ")


# ------------------------------------------------------------------------------------------------- the progress is gone


def noted(offsets: SourceOffsets, *, agree: bool = True, end: str = "b") -> dict[tuple[str, int], str]:
    """What stands beside the offsets of one batch."""
    return dict.fromkeys(offsets, note_of(replace(PROGRESS, ends=(end,), sources=mark_of(offsets, agree=agree))))


@pytest.mark.parametrize("claim", [Progress.empty("i"), None], ids=["claimed", "the claim is on its way"])
def test_where_the_progress_is_gone_the_notes_beside_the_offsets_vouch_for_them(claim: Progress | None) -> None:
    notes = noted(COMMITTED)
    assert why_not_resumed(claim, COMMITTED, set(), set(), notes) == ""
    left: SourceOffsets = {("left", 0): 3}
    both = {**COMMITTED, **left}
    assert why_not_resumed(claim, both, set(), set(), {**notes, **noted(left, end="a")}) == ""
    assert "two readings" in why_not_resumed(claim, COMMITTED, set(), set(), noted(COMMITTED, agree=False))
    for gone in COMMITTED:
        rest = {at: offset for at, offset in COMMITTED.items() if at != gone}
        told = why_not_resumed(claim, rest, set(), set(), {at: notes[at] for at in rest})
        assert "the progress is gone, and the source offsets that were committed with it are gone, or not all" in told


def test_notes_of_an_older_onceflow_vouch_for_nothing_and_hinder_nobody() -> None:
    plain = dict.fromkeys(COMMITTED, "b")
    assert why_not_resumed(None, COMMITTED, set(), set(), plain) == ""
    assert why_not_resumed(None, COMMITTED, set(), set(COMMITTED), {}) == ""


def test_the_notes_of_the_newest_batch_are_known_with_their_mark_and_without() -> None:
    assert note_of(Progress.empty("i")) == ""
    assert note_of(PROGRESS) == "b"
    assert note_of(marked(COMMITTED)) == f"b {mark_of(COMMITTED, agree=True)}"
    assert is_of_newest(note_of(marked(COMMITTED)), PROGRESS)
    assert is_of_newest("b", marked(COMMITTED)), "an older onceflow has noted it"
    assert not is_of_newest(note_of(replace(PROGRESS, ends=("a",))), PROGRESS)
    assert not is_of_newest("", Progress.empty("i"))
    of_four = replace(PROGRESS, ends=("a", "b", "c", "d"))
    assert [end for end in of_four.ends if is_of_newest(end, of_four)] == ["d"]


def test_what_an_older_onceflow_committed_is_resumed_unless_nothing_is_there() -> None:
    assert why_not_resumed(PROGRESS, COMMITTED, set()) == ""
    assert "are gone" in why_not_resumed(PROGRESS, {}, set())
    for progress in (None, Progress.empty("i")):
        assert why_not_resumed(progress, {}, set()) == ""


@pytest.mark.parametrize("agree", [True, False])
def test_newer_offsets_without_progress_are_told_as_that(agree: bool) -> None:
    """At least once has committed them, under a name that ran exactly once before: none of them is gone."""
    progress = marked(COMMITTED, agree=agree)
    newer = {at: offset + 1 for at, offset in COMMITTED.items()}
    assert "than those of batch 4" in why_not_resumed(progress, newer, set(), set(newer))
    left = {**COMMITTED, ("left", 0): 3}
    told = why_not_resumed(progress, left, set(COMMITTED), {("left", 0)})
    assert told == "" if agree else told.startswith("in batch 4, "), (
        "an older onceflow had committed the one that is read no more"
    )


def test_the_mark_of_the_sources_stands_before_that_of_their_topics() -> None:
    assert mark_of(COMMITTED, agree=True) == mark_of(dict(reversed(list(COMMITTED.items()))), agree=True)
    others: list[SourceOffsets] = [{("a", 0): 8}, {("a", 1): 7}, {("b", 0): 7}, {}]
    assert len({mark_of(each, agree=True) for each in (*others, {("a", 0): 7})}) == 5
    assert mark_of(COMMITTED, agree=False) == "different", "older ones have committed it"
    assert (with_topics("mark", "topics"), with_topics("mark", "")) == ("mark topics", "mark")
    assert (topics_of("mark topics"), topics_of("mark")) == ("topics", "")
    assert topics_of(with_topics(mark_of(COMMITTED, agree=False), "ids")) == "ids"
