"""A group that begins, or looks so: what nobody can know is said once, and is not said where there is nothing to say."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest
from tests.reader.conftest import Places
from tests.reader.support import TIMEOUT_S, Place
from tests.reader.test_positions import lose_the_store

from onceflow.errors import BrokerUnreachable
from onceflow.reader import nothing_known
from onceflow.reader.stores.memory import MemoryStore

EVENTS = ["1", "2", "3"]
BEGINS = "That is right for a new group"
WAS_RESET = "was reset to offset 0"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "onceflow.reader")
    return caplog


def said(warnings: pytest.LogCaptureFixture) -> list[str]:
    """Of the two warnings those that came since the last look."""
    found = [text for record in warnings.records for text in (BEGINS, WAS_RESET) if text in record.getMessage()]
    warnings.clear()
    return found


def handled(place: Place, **options: Any) -> list[str]:
    """What a reader with a store of its own handles, up to the end: its process goes with it."""
    seen: list[str] = []
    reader = place.reader(**{"store": MemoryStore(), **options})
    reader.handler(lambda event: seen.append((event.value or b"").decode()))
    reader.run(until_end=True)
    return seen


def forget(place: Place) -> None:
    """As Kafka does with the offsets of a group that has rested for too long."""
    asked = place.admin.delete_consumer_groups([place.group])
    asked[place.group].result(TIMEOUT_S)


@pytest.mark.parametrize(
    ("start", "again", "what"),
    [("earliest", EVENTS, "effects repeat"), ("latest", [], "what came meanwhile is not handled")],
)
def test_a_group_that_kafka_has_forgotten_is_told_of_with_a_store_that_goes_with_its_process(
    place: Place, warnings: pytest.LogCaptureFixture, start: str, again: Sequence[str], what: str
) -> None:
    place.send(EVENTS)
    assert handled(place) == EVENTS
    assert said(warnings) == [BEGINS], "which it cannot tell apart"
    assert handled(place) == []
    assert said(warnings) == []
    forget(place)
    assert handled(place, start=start) == again
    assert what in warnings.text
    assert said(warnings) == [BEGINS]


def test_where_kafka_does_not_tell_the_events_are_read_and_it_is_asked_again(
    place: Place, warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition without a leader, say: nothing but a line of the log depends on it."""

    def no_leader(*_: Any) -> NoReturn:
        raise BrokerUnreachable("a partition has no leader")

    place.send(EVENTS)
    with pytest.MonkeyPatch.context() as away:
        away.setattr(nothing_known, "ends_of", no_leader)
        assert handled(place) == EVENTS
    assert said(warnings) == []
    forget(place)
    assert handled(place) == EVENTS
    assert said(warnings) == [BEGINS]


def test_a_store_that_lasts_is_told_of_where_it_knows_nothing_and_not_where_it_knows_the_group(
    place: Place, warnings: pytest.LogCaptureFixture
) -> None:
    place.send(EVENTS)
    place.book_all()
    assert said(warnings) == [BEGINS], "it cannot be told from the last of these"
    forget(place)
    place.book_all()
    assert said(warnings) == []
    assert place.effects() == EVENTS
    forget(place)
    lose_the_store(place)
    place.book_all()
    assert "if its store was lost too" in warnings.text
    assert said(warnings) == [BEGINS]
    assert place.effects() == EVENTS * 2


def test_a_topic_without_events_is_not_told_of(place: Place, warnings: pytest.LogCaptureFixture) -> None:
    assert handled(place) == []
    assert said(warnings) == []


def test_a_partition_with_its_first_event_is_not_told_of_where_the_group_has_begun(
    places: Places, warnings: pytest.LogCaptureFixture
) -> None:
    """Nor are several of one topic told of one by one."""
    place = places(3)
    place.send(EVENTS[:2])
    assert sorted(handled(place)) == EVENTS[:2]
    assert said(warnings) == [BEGINS]
    place.send(EVENTS[2:], partition=2)
    assert handled(place) == EVENTS[2:]
    assert said(warnings) == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_group_that_was_reset_to_0_is_told_of_where_its_store_was_lost_as_well(
    place: Place, warnings: pytest.LogCaptureFixture, lost: bool
) -> None:
    """Kafka has an offset, so the group is not new; a lasting store that is there repeats nothing."""
    place.send(EVENTS)
    place.book_all()
    assert said(warnings) == [BEGINS]
    place.set_committed({0: 0})
    if lost:
        lose_the_store(place)
    place.book_all()
    assert said(warnings) == ([WAS_RESET] if lost else [])
    assert place.effects() == (EVENTS * 2 if lost else EVENTS)
