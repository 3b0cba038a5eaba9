"""A reader that is stopped (SIGSTOP) and wakes after its partitions moved: fenced in the store, not only in Kafka."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import Reader as ReadAll
from tests.reader.conftest import PROTOCOLS, Places, soon_missed
from tests.reader.effects import Effects, effects_for
from tests.reader.support import Place, eventually, insert
from tests.reader.zombies import AT_EACH, letters, stop_at_each_and_wake

from onceflow.errors import StoreFenced
from onceflow.reader import claims
from onceflow.reader.event import Event
from onceflow.reader.steps import Step
from onceflow.reader.stores.interface import EventKey, Ownership, Retention
from onceflow.reader.stores.sqlite import SqliteStore

EVENTS = [str(number) for number in range(40)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("mode", "step", "repeated"), [("inbox", "polled", 0), ("claims", "claimed", 0), ("claims", "handled", 1)]
)
@pytest.mark.in_turn(3)
def test_a_reader_that_wakes_after_its_partition_moved(
    place: Place, protocol: str, mode: str, step: str, repeated: int
) -> None:
    """It has ten events in hand that the new owner handles. Only the effect that is done and not confirmed repeats."""
    place.send(EVENTS)
    options = {"group_protocol": protocol, "batch_size": 10}
    wanted = place.job(mode=mode, options=options, until_end=False)
    stopped = place.start(replace(soon_missed(wanted), interrupt=(step, 0, signal.SIGSTOP)))
    stopped.until_stopped()
    assert len(place.effects()) == repeated
    other = place.start(wanted)
    eventually(lambda: set(place.effects()), set(EVENTS).__eq__, "the new owner's effects")
    epoch = place.ledger.execute("SELECT epoch FROM onceflow_positions").fetchone()
    stopped.signal(signal.SIGCONT)
    stopped.until_it_says("is owned under epoch", "lost to other readers")  # the store or Kafka, whom it asks first
    place.send(["more"])
    eventually(place.effects, lambda effects: "more" in effects, "what came after")
    assert place.ledger.execute("SELECT epoch FROM onceflow_positions").fetchone() == epoch, "it fenced the new owner"
    assert (stopped.stop(), other.stop()) == (0, 0)
    counts = Counter(place.effects())
    assert set(counts) == {*EVENTS, "more"}
    assert sum(counts.values()) - len(counts) == repeated


@pytest.mark.parametrize("mode", AT_EACH)
@pytest.mark.in_turn(3)
def test_stopped_where_it_holds_no_lock_and_woken_after_its_partition_moved(
    places: Places, request: pytest.FixtureRequest, tmp_path: Path, read: ReadAll, mode: str
) -> None:
    """Inside of a unit: below. With servers: test_servers.py."""

    def make(mode: str, step: str) -> tuple[Place, Effects]:
        place = places()
        return place, effects_for(mode, "sqlite", place, request, tmp_path / step)

    stop_at_each_and_wake(AT_EACH[mode], make, read)


@pytest.mark.parametrize(("protocol", "mode"), [("classic", "inbox"), ("consumer", "claims")])
def test_stopped_while_a_partition_is_taken_from_it_nothing_repeats(places: Places, protocol: str, mode: str) -> None:
    """A second reader comes, so one partition is to go; in the callback it is stopped, and loses both. Then it wakes.

    It has offsets to tell by then, which Kafka refuses: they are behind those of the second reader.
    """
    place = places(2)
    place.send(range(40))
    options = {"batch_size": 10, "group_protocol": protocol}
    wanted = place.job(mode=mode, options=options, until_end=False)
    stopped = place.start(replace(soon_missed(wanted), interrupt=("revoked", 0, signal.SIGSTOP), offsets_every_s=3600))
    eventually(lambda: len(place.effects()), (40).__eq__, "effects of the first")
    other = place.start(wanted)
    stopped.until_stopped()
    place.send(range(40, 80))
    eventually(lambda: len(set(place.effects())), (80).__eq__, "effects of the second, in both partitions")
    stopped.signal(signal.SIGCONT)
    place.send(range(80, 120))
    eventually(lambda: len(set(place.effects())), (120).__eq__, "what came after")
    assert (stopped.stop(), other.stop()) == (0, 0), stopped.said()
    assert sorted(map(int, place.effects())) == list(range(120))
    assert place.committed() == {0: 60, 1: 60}


@pytest.mark.parametrize("step", ["admitted", "handled", "buried"])
def test_stopped_inside_a_unit_of_sqlite_it_holds_the_others_up_and_nothing_repeats(
    place: Place, read: ReadAll, step: str
) -> None:
    """It has the file's lock, so it cannot be fenced: the new owner waits, until it wakes and commits what it has."""
    options = {"batch_size": 10, "retries": 0}
    poison = "7" if step == "buried" else None
    wanted = place.job(options=options, until_end=False, poison=poison, held_up_s=0.1)
    stopped = place.start(replace(soon_missed(wanted), interrupt=(step, 0, signal.SIGSTOP)))
    eventually(place.members, (1).__eq__, "members of the group")
    other = place.start(wanted)
    eventually(place.members, (2).__eq__, "members of the group")
    place.send(EVENTS)
    stopped.until_stopped()
    other.until_it_says("database is locked")  # the partition is its own, for Kafka
    stopped.signal(signal.SIGCONT)
    expected = [text for text in EVENTS if text != poison]
    eventually(place.effects, expected.__eq__, "effects of both")
    place.send(["more"])
    eventually(place.effects, [*expected, "more"].__eq__, "what came after")
    assert (stopped.stop(), other.stop()) == (0, 0), stopped.said()
    assert place.effects() == [*expected, "more"]
    assert letters(place, read) == ([b"7"] if poison else [])


# ---------------------------------------------------------------------------------- the same without signals, and controls


class Rival:
    """Another owner that takes the partition once, behind the reader's back, handles its first events and goes away."""

    def __init__(self, place: Place, at: Step, count: int) -> None:
        self._place = place
        self._at = at
        self._keys = [EventKey(offset, "tests", str(offset)) for offset in range(count)]
        self.taken: list[Ownership] = []

    def __call__(self, step: Step) -> None:
        if step is not self._at or self.taken:
            return
        store = SqliteStore(self._place.file)
        store.open(self._place.group, Retention())
        self.taken = store.take(self._place.topic, [0], "rival")
        with store.unit() as unit:
            unit.admit(self.taken[0], self._keys)
            for key in self._keys:
                unit.handle.execute("INSERT INTO ledger (event, pid) VALUES (?, 1)", (key.id,))
        store.close()


def test_the_older_owner_s_batch_is_refused_and_it_goes_on_where_the_rival_stopped(place: Place) -> None:
    place.send(EVENTS)
    rival = Rival(place, Step.POLLED, 5)
    place.book_all(batch_size=10, on_step=rival)
    assert rival.taken
    assert place.effects() == EVENTS


class NoFence(SqliteStore):
    """The undefended variant: a confirmation under an old epoch passes in silence."""

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        try:
            super().confirm(ownership, keys)
        except StoreFenced:
            return


@pytest.mark.parametrize("make", [SqliteStore, NoFence], ids=["fenced", "control"])
def test_the_fence_ends_an_old_owner_at_its_next_event(
    place: Place, make: Callable[[Path], SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten events are claimed when the rival handles them all: one effect repeats, without the fence they all do."""
    monkeypatch.setattr(claims, "STOOD_STILL_S", 3600.0)
    place.send(EVENTS[:10])
    reader = place.reader(store=make(place.file), on_step=Rival(place, Step.CLAIMED, 10))

    @reader.handler
    def book(event: Event) -> None:
        insert(place.ledger, event)

    reader.run(until_end=True)
    repeated = len(place.effects()) - 10
    assert repeated > 1 if make is NoFence else repeated == 1
    assert set(place.effects()) == set(EVENTS[:10])
