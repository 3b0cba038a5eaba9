"""Ids expire through the Reader as stated, and no offset that may still come again is ever let through twice."""

from __future__ import annotations

from typing import Any

import pytest
from tests.reader.support import Place, eventually

from onceflow.reader import loop

EVENTS = [str(number) for number in range(20)]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets after each round, not once a minute."""
    monkeypatch.setattr(loop, "FORGET_EVERY_S", 0.0)


def ids_in(place: Place) -> int:
    return int(place.ledger.execute("SELECT count(*) FROM onceflow_ids").fetchone()[0])


@pytest.mark.parametrize("kept", [{"keep_ids": 5, "keep_ids_s": None}, {"keep_ids_s": 0.0}], ids=["number", "time"])
def test_what_its_source_sends_again_after_its_id_expired_is_another_event(place: Place, kept: dict[str, Any]) -> None:
    """That is what was stated; what it sends again within the number or time is not."""
    options = {"batch_size": 1, **kept}
    place.send(EVENTS)
    place.book_all(**options)
    expected = kept.get("keep_ids", 0)
    if expected:
        assert ids_in(place) <= expected + 1  # the last event may have come after the last look
    place.send(EVENTS[-2:])
    place.send(EVENTS[:2])
    place.book_all(**options)
    again = EVENTS[:2] if expected else [*EVENTS[-2:], *EVENTS[:2]]
    assert place.effects() == [*EVENTS, *again]


def test_a_reader_that_never_lives_for_long_forgets_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is run every now and then, until the end: what the run before kept too many of, this one forgets as it begins."""
    monkeypatch.setattr(loop, "FORGET_EVERY_S", 3600.0)
    place.send(EVENTS)
    for _ in range(2):
        place.book_all(batch_size=1, keep_ids=5, keep_ids_s=None)
    assert ids_in(place) <= 5
    assert place.effects() == EVENTS


def test_within_the_time_nothing_is_let_through(place: Place) -> None:
    place.send([*EVENTS, *EVENTS])
    place.book_all(batch_size=1, keep_ids=2, keep_ids_s=3600.0)  # whichever keeps more
    assert place.effects() == EVENTS
    assert ids_in(place) == len(EVENTS)


@pytest.mark.parametrize("mode", ["inbox", "claims"])
@pytest.mark.parametrize("ids", [True, False], ids=["ids", "positions"])
def test_an_offset_that_comes_again_is_handled_once_though_its_id_expired(place: Place, mode: str, ids: bool) -> None:
    """The group is rewound, and no id is left: the position alone knows."""
    place.send(EVENTS, ids=ids)
    job = place.job(mode=mode, options={"batch_size": 3, "keep_ids": 0, "keep_ids_s": None})
    place.finish(job)
    place.ledger.execute("DELETE FROM onceflow_ids")  # the extreme: all of them expired
    place.set_committed({0: 0})
    place.finish(job)
    assert place.effects() == EVENTS


def test_an_event_that_was_confirmed_before_an_older_one_outlives_the_retention(place: Place) -> None:
    """Its offset comes again: the older one failed, and the reader was stopped before it succeeded."""
    place.send(EVENTS)
    reader = place.reader(keep_ids=0, keep_ids_s=None, retries=0, dead_letters=None)
    store = reader._store
    seen: list[Any] = []

    def confirm_the_later_first(event: Any) -> None:
        if event.value == b"0" and not seen:
            ownership = store.take(place.topic, [0], "tests")[0]  # as another process would find it after a crash
            later = event.entry._replace(offset=1, id="1")
            store.claim(ownership, [event.entry, later], 3600)
            store.confirm(ownership, [later])
            store.forget_expired()
        seen.append(event.value)

    reader.handler(confirm_the_later_first)
    reader.run(until_end=True)
    eventually(lambda: seen.count(b"1"), (0).__eq__, "effects of what was confirmed early")
    assert [value.decode() for value in seen if value != b"0"] == EVENTS[2:]
