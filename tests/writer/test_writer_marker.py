"""The marker tells of every transaction whether it was committed, or says that it cannot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import ProgressConflict
from onceflow.writer.marker import CLAIMS_KEPT, PROGRESS_BYTES, Claim, Marker


def test_the_owner_s_own_transactions_are_told_by_their_number() -> None:
    marker = Marker().claimed_by("a").advanced("x").advanced(None)
    assert (marker.number, marker.owner, marker.progress) == (2, "a", "x")
    assert [marker.tells("a", number) for number in (1, 2, 3)] == [True, True, False]


def test_a_successor_tells_what_became_of_the_last_transaction_before_it() -> None:
    committed = Marker().claimed_by("a").advanced(None).claimed_by("b").advanced(None).advanced(None)
    assert committed.tells("a", 1) is True
    aborted = Marker().claimed_by("a").claimed_by("b").advanced(None).advanced(None)
    assert aborted.tells("a", 1) is False


def test_what_it_does_not_know_it_does_not_tell() -> None:
    assert Marker().tells("a", 1) is None
    marker = Marker().claimed_by("a")
    for number in range(CLAIMS_KEPT):
        marker = marker.claimed_by(str(number))
    assert marker.tells("a", 1) is None


def test_a_claim_behind_one_s_own_is_a_later_one_and_any_other_may_be_an_earlier_one() -> None:
    before = Marker().claimed_by("before").advanced(None)
    own = before.claimed_by("a")
    later = own.claimed_by("b")
    assert [marker.is_taken_from("a", 1) for marker in (Marker(), before, own, later)] == [False, False, False, True]


def test_more_transactions_than_one_knows_of_are_later_though_one_s_own_claim_is_not_kept_any_more() -> None:
    own = Marker().claimed_by("a").advanced(None)
    marker = own.advanced(None)
    for number in range(CLAIMS_KEPT):
        marker = marker.claimed_by(str(number))
    assert (own.advanced(None).is_taken_from("a", 1), marker.is_taken_from("a", 1)) == (False, True)


@given(st.lists(st.sampled_from(["claim", "commit", "abort"]), max_size=40))
def test_it_agrees_with_the_history(steps: list[str]) -> None:
    marker, owner, truth = Marker().claimed_by("w0"), 0, {}
    for step in steps:
        if step == "claim":
            owner += 1
            marker = marker.claimed_by(f"w{owner}")
        else:
            truth[f"w{owner}", marker.number + 1] = step == "commit"
            marker = marker.advanced(None) if step == "commit" else marker
    for (instance, number), committed in truth.items():
        assert marker.tells(instance, number) in (committed, None)


@given(st.integers(0, 2**40), st.lists(st.tuples(st.text(max_size=12), st.integers(0, 99)), max_size=9), st.text())
def test_it_survives_being_committed(number: int, claims: list[tuple[str, int]], progress: str) -> None:
    marker = Marker(number, tuple(Claim(*claim) for claim in claims), progress)
    assert Marker.decode(*marker.encode()) == marker


def test_it_fits_into_the_broker_s_default_of_4096_bytes() -> None:
    marker = Marker(number=10**12)
    for number in range(CLAIMS_KEPT + 1):
        marker = marker.claimed_by(f"{number:012x}")
    assert len(marker.advanced("ü" * (PROGRESS_BYTES // 2)).encode()[1].encode()) < 4096


@pytest.mark.parametrize("metadata", ["", "[]", '{"v":2,"claims":[],"progress":""}', '{"v":1}', "nonsense"])
def test_what_it_cannot_read_it_refuses(metadata: str) -> None:
    with pytest.raises(ProgressConflict):
        Marker.decode(1, metadata)


def test_the_owner_claims_once() -> None:
    """A second claim of its own would look like a successor's, and what came between the two like nobody's."""
    claimed = Marker(3).claimed_by("a").advanced("x")
    assert claimed.claimed_by("a") == claimed
    assert claimed.claimed_by("a").advanced("y").tells("a", 5)
