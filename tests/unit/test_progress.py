"""What the committed progress says about an offered batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.transaction.progress import (
    DIGESTS_KEPT,
    Batch,
    OnMismatch,
    Progress,
    ProgressUnreadable,
    Verdict,
    decide,
    differ,
    digest_of,
)

REFUSE, RESUME, RESTART = OnMismatch.REFUSE, OnMismatch.RESUME, OnMismatch.RESTART
DONE = Progress(3, "q", "me", ("d0", "d1", "d2"))  # batches 0, 1, 2


def batch(number: int, query: str = "q", end: str | None = None, start: str | None = None) -> Batch:
    before = f"d{number - 1}" if number else ""
    return Batch(number, query, before if start is None else start, f"d{number}" if end is None else end)


@pytest.mark.parametrize(
    ("progress", "offered", "verdict", "reason"),
    [
        (Progress.empty("me"), batch(0), Verdict.WRITE, ""),
        (Progress.empty("me"), batch(4), Verdict.REFUSE, "no progress is committed under this name"),
        (DONE, batch(3), Verdict.WRITE, ""),
        (DONE, batch(3, start="other"), Verdict.REFUSE, "does not start where committed batch 2 ended"),
        (DONE, batch(2), Verdict.SKIP, ""),
        (DONE, batch(0), Verdict.SKIP, ""),
        (
            DONE,
            batch(2, end="other"),
            Verdict.REFUSE,
            "committed already, but the checkpoint now gives it other source",
        ),
        (DONE, batch(5), Verdict.REFUSE, "only batches up to 2 are committed: 2 in between would be lost"),
        (DONE, batch(0, "new"), Verdict.REFUSE, "query new offers batch 0, but query q has committed batches up to 2"),
        (DONE, batch(3, "new"), Verdict.REFUSE, "the checkpoint was deleted or replaced"),
    ],
)
def test_what_is_decided(progress: Progress, offered: Batch, verdict: Verdict, reason: str) -> None:
    decision = decide(progress, offered, REFUSE)
    assert decision.verdict is verdict
    assert reason in decision.reason


PLANNED = replace(DONE, planned_ms=(80, 100))
"""An older onceflow has committed the first of its batches."""


@pytest.mark.parametrize(
    ("progress", "offered", "again"),
    [
        (PLANNED, replace(batch(2), planned_ms=100), False),
        (PLANNED, replace(batch(2), planned_ms=99), True),
        (PLANNED, replace(batch(2), planned_ms=101), True),
        (PLANNED, replace(batch(1), planned_ms=80), False),
        (PLANNED, replace(batch(1), planned_ms=100), True),
        (PLANNED, batch(2), False),  # nobody knows
        (PLANNED, replace(batch(0), planned_ms=100), False),
        (DONE, replace(batch(2), planned_ms=100), False),
        (PLANNED, replace(batch(3), planned_ms=101), False),
        (PLANNED, replace(batch(2, end="other"), planned_ms=99), False),
        (PLANNED, replace(batch(2, "new"), planned_ms=99), False),
    ],
)
def test_a_committed_batch_is_known_from_one_that_is_planned_again(
    progress: Progress, offered: Batch, *, again: bool
) -> None:
    assert progress.is_planned_again(offered) == again


def test_the_time_at_which_a_batch_was_planned_is_kept() -> None:
    claimed = DONE.advanced(replace(batch(3), planned_ms=7), "me").claimed_by("another")
    assert [claimed.planned_at(number) for number in range(6)] == [0, 0, 0, 7, 0, 0]
    offset, metadata = claimed.encode()
    assert metadata == '{"v":1,"query":"q","instance":"another","ends":["d0","d1","d2","d3"],"planned":[7]}'
    assert Progress.decode(offset, metadata) == claimed
    assert Progress.decode(offset, metadata.replace("[7]", '["7"]')) == claimed
    assert claimed.advanced(batch(4), "another").planned_ms == ()
    assert claimed.advanced(replace(batch(4), planned_ms=8), "another").planned_ms == (7, 8)
    assert claimed.advanced(replace(batch(5), planned_ms=9), "another").planned_ms == (9,)
    assert claimed.advanced(replace(batch(4, "new"), planned_ms=9), "another").planned_ms == (9,)


def test_the_times_of_as_many_batches_are_kept_as_digests() -> None:
    progress = Progress.empty("me")
    for number in range(DIGESTS_KEPT + 2):
        progress = progress.advanced(replace(batch(number), planned_ms=1000 + number), "me")
    assert progress.planned_ms == tuple(range(1002, 1002 + DIGESTS_KEPT))
    assert (progress.planned_at(1), progress.planned_at(2), progress.planned_at(DIGESTS_KEPT + 2)) == (0, 1002, 0)


@pytest.mark.parametrize(
    ("offered", "resume", "restart"),
    [
        (batch(0, "new"), Verdict.WRITE, Verdict.WRITE),
        (batch(1, "new"), Verdict.REFUSE, Verdict.WRITE),
        (batch(2, end="other"), Verdict.REFUSE, Verdict.WRITE),
        (batch(0, end="other"), Verdict.REFUSE, Verdict.WRITE),
        (batch(3, start="other"), Verdict.REFUSE, Verdict.WRITE),
        (batch(5), Verdict.REFUSE, Verdict.WRITE),
        (batch(2), Verdict.SKIP, Verdict.SKIP),
        (batch(3), Verdict.WRITE, Verdict.WRITE),
    ],
)
def test_what_the_user_may_allow(offered: Batch, resume: Verdict, restart: Verdict) -> None:
    assert decide(DONE, offered, RESUME).verdict is resume
    assert decide(DONE, offered, RESTART).verdict is restart


def test_what_is_allowed_keeps_its_reason() -> None:
    assert "query new offers batch 0" in decide(DONE, batch(0, "new"), RESUME).reason
    assert "in between would be lost" in decide(DONE, batch(5), RESTART).reason
    assert decide(DONE, batch(3), RESTART).reason == ""


def test_a_batch_too_old_to_be_known_is_refused_and_not_skipped() -> None:
    progress = Progress.empty("me")
    for number in range(DIGESTS_KEPT + 2):
        progress = progress.advanced(batch(number), "me")
    assert progress.end_of(1) is None
    assert decide(progress, batch(1), REFUSE).verdict is Verdict.REFUSE
    assert decide(progress, batch(2), REFUSE).verdict is Verdict.SKIP


def test_progress_of_another_query_or_after_a_gap_forgets_the_digests_before() -> None:
    assert DONE.advanced(batch(0, "new"), "me").ends == ("d0",)
    assert DONE.advanced(batch(3, "new"), "me").ends == ("d3",)
    assert DONE.advanced(batch(5), "me").ends == ("d5",)
    assert DONE.advanced(batch(3), "me").ends == ("d0", "d1", "d2", "d3")


def test_a_claim_changes_the_owner_alone() -> None:
    assert DONE.claimed_by("you") == replace(DONE, instance="you")


@given(st.integers(1, 200))
def test_whatever_was_committed_is_skipped_and_what_follows_is_written(batches: int) -> None:
    progress = Progress.empty("me")
    for number in range(batches):
        assert decide(progress, batch(number), REFUSE).verdict is Verdict.WRITE
        progress = progress.advanced(batch(number), "me")
        assert decide(progress, batch(number), REFUSE).verdict is Verdict.SKIP


@given(st.integers(0, 2**40), st.text(), st.text(), st.lists(st.text(max_size=16), max_size=DIGESTS_KEPT))
def test_the_committed_form_reads_back(next_batch: int, query: str, instance: str, ends: list[str]) -> None:
    for sources in ("", "a mark"):
        progress = Progress(next_batch, query, instance, tuple(ends), sources)
        assert Progress.decode(*progress.encode()) == progress


def test_a_mark_of_the_sources_is_a_text_whatever_it_was_written_as() -> None:
    """It is compared with a text, and nothing else may come out of what a cluster keeps."""
    assert Progress.decode(1, '{"v":1,"query":"q","instance":"me","ends":["d0"],"sources":7}').sources == "7"


def test_what_is_known_of_the_sources_is_of_the_newest_batch_and_stays_through_a_claim() -> None:
    marked = DONE.advanced(Batch(3, "q", "d2", "d3", "mark"), "me")
    assert marked == Progress(4, "q", "me", ("d0", "d1", "d2", "d3"), "mark")
    assert marked.claimed_by("other") == Progress(4, "q", "other", ("d0", "d1", "d2", "d3"), "mark")
    assert marked.advanced(Batch(4, "q", "d3", "d4"), "me").sources == ""
    assert marked.encode() == (
        4,
        '{"v":1,"query":"q","instance":"me","ends":["d0","d1","d2","d3"],"sources":"mark"}',
    )


def test_the_committed_form_is_what_earlier_versions_wrote() -> None:
    assert DONE.encode() == (3, '{"v":1,"query":"q","instance":"me","ends":["d0","d1","d2"]}')


def test_the_committed_form_fits_the_brokers_limit() -> None:
    full = Progress(2**40, "0" * 36, "0" * 12, tuple("f" * 16 for _ in range(DIGESTS_KEPT)), "f" * 33)
    full = replace(full, planned_ms=tuple(9_999_999_999_999 for _ in range(DIGESTS_KEPT)))
    assert len(full.encode()[1].encode()) < 4096  # offset.metadata.max.bytes


@pytest.mark.parametrize(
    "metadata", ["", "x", "[]", "{}", '{"v":1}', '{"v":1,"query":"q","instance":"i","ends":3}', '{"v":2}']
)
def test_other_metadata_is_refused(metadata: str) -> None:
    with pytest.raises(ProgressUnreadable):
        Progress.decode(0, metadata)


def test_a_digest_does_not_depend_on_order_or_spacing() -> None:
    assert digest_of({"t": {"0": 1, "1": 2}}) == digest_of({"t": {"1": 2, "0": 1}})
    assert digest_of({"t": {"0": 1}}) != digest_of({"t": {"0": 2}})
    assert digest_of([{"t": {"0": 1}}]) != digest_of([{"t": {"0": 1}}, None])
    assert len(digest_of(None)) == 16


def test_what_a_user_may_allow_is_named_in_a_pipeline_file() -> None:
    assert {each.value: each for each in OnMismatch} == {"refuse": REFUSE, "resume": RESUME, "restart": RESTART}


def test_another_format_is_refused_whatever_it_holds() -> None:
    with pytest.raises(ProgressUnreadable, match="format version 2, this onceflow reads 1"):
        Progress.decode(0, '{"v":2,"query":"q","instance":"i","ends":[]}')


def test_a_digest_stays_what_it_was() -> None:
    """Committed digests were made by earlier versions."""
    assert digest_of({"t": {"1": 2, "0": 1}}) == "93268b5a989296af"


def test_what_is_contained() -> None:
    assert DONE.contains(batch(2))
    assert not DONE.contains(batch(2, "new"))
    assert not DONE.contains(batch(2, end="other"))
    assert [DONE.end_of(number) for number in range(-1, 5)] == [None, "d0", "d1", "d2", None, None]


def test_whatever_a_record_holds_is_read_as_text() -> None:
    assert Progress.decode(3, '{"v":1,"query":4,"instance":5,"ends":[6]}') == Progress(3, "4", "5", ("6",))


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [("a", "b", True), ("a", "a", False), (None, "b", False), ("a", "", False), ("", "b", False)],
)
def test_what_is_not_known_does_not_differ(before: str | None, now: str | None, expected: bool) -> None:
    assert differ(before, now) is expected
