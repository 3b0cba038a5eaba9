"""Claims under the same id in two partitions: one of them waits for the other, and none is handled twice."""

from __future__ import annotations

from typing import Any

from tests.reader.conftest import Places

from onceflow.reader.event import Event
from onceflow.reader.stores.interface import EventKey, Retention
from onceflow.reader.stores.sqlite import SqliteStore


def test_an_id_that_another_reader_has_claimed_is_waited_for(places: Places) -> None:
    """The other reader confirms it while this one waits: here it is a duplicate then."""
    place = places(2)
    place.send(["1", "2", "3"], partition=0)
    rival = SqliteStore(place.file)
    rival.open(place.group, Retention())
    (theirs,) = rival.take("other-topic", [0], "rival")
    claimed = [EventKey(0, "tests", "2")]
    rival.claim(theirs, claimed, 3600)
    seen: list[str] = []
    reader = place.reader()

    @reader.handler
    def book(event: Event) -> None:
        seen.append((event.value or b"").decode())
        rival.confirm(theirs, claimed)

    reader.run(until_end=True)
    rival.close()
    assert seen == ["1", "3"]


def test_the_claim_of_a_reader_that_died_ends_with_its_lease(places: Places) -> None:
    place = places(1)
    place.send(["1", "2"])
    rival = SqliteStore(place.file)
    rival.open(place.group, Retention())
    (theirs,) = rival.take("other-topic", [0], "rival")
    rival.claim(theirs, [EventKey(0, "tests", "2")], 0.5)
    rival.close()
    seen: list[Any] = []
    reader = place.reader()
    reader.handler(lambda event: seen.append(event.value))
    reader.run(until_end=True)
    assert seen == [b"1", b"2"]
