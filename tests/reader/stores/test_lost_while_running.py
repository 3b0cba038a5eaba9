"""A SQLite file that is removed or replaced while a reader runs: the reader ends, and tells Kafka nothing of what is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.reader.support import Place, insert

from onceflow.errors import StoreLost
from onceflow.reader.event import Event

EVENTS = [str(number) for number in range(100)]
LOST_AT, BATCH = 35, 10


def remove(path: Path) -> None:
    """With its logs, as whoever wants to begin anew does it."""
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def put_a_backup_there(path: Path) -> None:
    """Of the file as it is, so that the partition's epoch in it is the reader's own."""
    backup = path.with_name("backup.db")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    remove(path)
    backup.rename(path)


goes_away = pytest.mark.parametrize("go_away", [remove, put_a_backup_there])


@goes_away
def test_in_the_inbox(place: Place, go_away: Callable[[Path], None]) -> None:
    place.send(EVENTS)
    reader = place.reader(batch_size=BATCH)
    handled: list[Event] = []

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        insert(tx, event)
        handled.append(event)
        if len(handled) == LOST_AT:
            go_away(place.file)

    with pytest.raises(StoreLost, match="replaced or removed"):
        reader.run(until_end=True)
    assert len(handled) < LOST_AT + BATCH, "a unit was begun in a file that is not there any more"
    assert place.committed().get(0, 0) < LOST_AT, "Kafka was told of events whose effects are gone"


@goes_away
def test_with_effects_elsewhere(place: Place, go_away: Callable[[Path], None]) -> None:
    place.send(EVENTS)
    reader = place.reader(batch_size=BATCH)
    handled: list[Event] = []

    @reader.handler
    def book(event: Event) -> None:
        handled.append(event)
        if len(handled) == LOST_AT:
            go_away(place.file)

    with pytest.raises(StoreLost, match="replaced or removed"):
        reader.run(until_end=True)
    assert len(handled) < LOST_AT + BATCH, "events were handled though nobody could book them"
    assert place.committed().get(0, 0) < LOST_AT


def test_the_next_start_is_refused_as_well(place: Place) -> None:
    """Kafka has been told that there were effects: a new file in that place is a store that was lost."""
    place.send(EVENTS)
    reader = place.reader(batch_size=BATCH)
    reader.handler(lambda event: remove(place.file) if event.value == b"35" else None)
    with pytest.raises(StoreLost, match="replaced or removed"):
        reader.run(until_end=True)
    again = place.reader(batch_size=BATCH)
    handled: list[Event] = []
    again.handler(handled.append)
    with pytest.raises(StoreLost, match="lost_store='rebuild'"):
        again.run(until_end=True)
    assert handled == []
