"""One target partition of a producer: how many batches are in flight, which numbers they have, and what an answer means."""

from __future__ import annotations

import pytest

from onceflow.transaction.lane import SEQUENCE_SPACE, Lane, Meaning, Sealed
from onceflow.transaction.talk import Pace

OUT_OF_ORDER = 45
FIRST, LONGEST = 1.0, 4.0


def lane_of(batches: int, next_sequence: int = 0) -> Lane:
    """A lane in which batches of one record wait."""
    lane = Lane("out", 0, 1, Pace(lambda: 0.0, 60.0, FIRST, LONGEST), next_sequence)
    for _ in range(batches):
        lane.append(1, b"")
    return lane


def taken(lane: Lane, now: float = 0.0) -> list[Sealed]:
    """All that may be sent now."""
    found = []
    while lane.ready(now):
        found.append(lane.take())
    return found


def test_a_partition_is_not_ready_for_a_sixth_whatever_its_broker_takes() -> None:
    """The broker remembers the last five batches of a producer (KIP-98): a sixth would hide a repetition of the first."""
    assert len(taken(lane_of(6))) == 5


def test_sequences_wrap() -> None:
    lane = lane_of(0, next_sequence=SEQUENCE_SPACE - 1)
    assert lane.base_sequence == SEQUENCE_SPACE - 1
    lane.append(2, b"")
    assert lane.base_sequence == 1


def test_sequences_have_31_bits() -> None:
    assert SEQUENCE_SPACE - 1 == 2_147_483_647


def test_every_meaning_is_that_of_some_code() -> None:
    lane = lane_of(2)
    oldest, newest = taken(lane)
    met = {lane.meaning(oldest, code) for code in range(-1, 140)} | {lane.meaning(newest, OUT_OF_ORDER)}
    assert met == set(Meaning)


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (0, Meaning.ACKNOWLEDGED),
        (19, Meaning.LATER),  # NOT_ENOUGH_REPLICAS
        (20, Meaning.LATER),  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
        (7, Meaning.LATER),  # REQUEST_TIMED_OUT
        (OUT_OF_ORDER, Meaning.AFTER_GAP),
        (47, Meaning.REFUSED),
        (29, Meaning.DENIED),
        (10, Meaning.UNWRITABLE),
        (120, Meaning.LOST),
    ],
)
def test_only_a_gap_is_excused_by_an_older_batch_that_is_still_on_its_way(code: int, wanted: Meaning) -> None:
    lane = lane_of(2)
    _, newest = taken(lane)
    assert lane.meaning(newest, code) is wanted


def test_what_follows_a_failed_batch_waits_until_it_is_acknowledged() -> None:
    """However few: the first batch alone is one to repair too, and more of them would come after a gap again."""
    lane = lane_of(1)
    (first,) = taken(lane)
    lane.retry_later(first, "gone")
    lane.append(1, b"")
    assert lane.broken
    assert taken(lane) == []
    lane.repair(leader=2, now=10.0)
    assert taken(lane, 10.0 + FIRST) == [first]
    assert taken(lane, 100.0) == []
    lane.acknowledge(first)
    assert [sealed.sequence for sealed in taken(lane, 100.0)] == [1]


def test_a_lane_is_unfinished_while_a_batch_waits_is_in_flight_or_failed() -> None:
    lane = lane_of(1)
    found = [lane.unfinished]
    (only,) = taken(lane)
    found.append(lane.unfinished)
    lane.retry_later(only, "gone")
    found.append(lane.unfinished)
    lane.repair(leader=1, now=0.0)
    found.append(lane.unfinished)
    (only,) = taken(lane, FIRST)
    lane.acknowledge(only)
    assert found == [True] * 4
    assert not lane.unfinished
    assert lane.acknowledged == 1
