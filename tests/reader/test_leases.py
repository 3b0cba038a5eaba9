"""A handler that takes longer than its lease: nobody else gets its event, as long as its process lives."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.reader.conftest import Places
from tests.reader.effects import effects_in, elsewhere
from tests.reader.support import Place, eventually
from tests.reader.test_claims import event_at

from onceflow.errors import HandlerFailed
from onceflow.reader.claims import Claims
from onceflow.reader.event import Event
from onceflow.reader.fence import Fence
from onceflow.reader.handling import Handler
from onceflow.reader.lane import Lane
from onceflow.reader.leases import THREAD_NAME, Leases
from onceflow.reader.loop import ASK_AGAIN_S
from onceflow.reader.stores import open_store
from onceflow.reader.stores.interface import EventKey, Ownership, Retention, Standing, Store
from onceflow.reader.stores.memory import MemoryStore
from onceflow.reader.stores.sqlite import SqliteStore
from onceflow.reader.tally import Tally

LEASE_S = 10.0
CLAIMS = math.ceil(2 * LEASE_S / ASK_AGAIN_S) + 1  # of a reader that waits: more than two leases
KINDS = ["sqlite", "postgresql", "redis"]


@pytest.fixture
def url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    server = request.getfixturevalue("database" if kind == "postgresql" else "redis_server")
    return str(server.url)


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == THREAD_NAME]


# ------------------------------------------------------------------------------------------------------ two live readers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.in_turn(3)
def test_the_same_event_in_two_partitions_has_one_effect(places: Places, tmp_path: Path, url: str) -> None:
    """The reader that waits for it has asked again for more than two leases when the handler ends."""
    place = places(2)
    gate = tmp_path / "gate"
    job = place.job(
        mode="claims",
        store=url,
        ledger=elsewhere(tmp_path),
        interrupt=("claimed", CLAIMS, signal.SIGSTOP),
        until_end=False,
        waits_for=str(gate),
        options={"lease_s": LEASE_S},
    )
    readers = [place.start(job) for _ in range(2)]
    eventually(place.partitions_each, [1, 1].__eq__, "a partition for each")
    place.send(["1"], partition=0)
    eventually(lambda: effects_in(tmp_path), ["1"].__eq__, "the first effect")
    place.send(["1"], partition=1)
    (waits,) = [reader for reader in readers if reader.pid != pid_of_the_effect(tmp_path)]
    eventually(
        lambda: (waits.state(), len(effects_in(tmp_path))), lambda found: found[0] == "T" or found[1] > 1, "asks again"
    )
    assert effects_in(tmp_path) == ["1"]
    gate.touch()
    waits.signal(signal.SIGCONT)
    eventually(place.committed, {0: 1, 1: 1}.__eq__, "both partitions")
    assert [reader.stop() for reader in readers] == [0, 0]
    assert effects_in(tmp_path) == ["1"]


def pid_of_the_effect(directory: Path) -> int:
    with closing(sqlite3.connect(directory / "elsewhere.db")) as connection:
        return int(connection.execute("SELECT pid FROM ledger").fetchone()[0])


# ------------------------------------------------------------------------------------------------- kinds of long handlers


class Rival:
    """Another reader of the same group, with partitions of its own."""

    def __init__(self, store: Store, group: str) -> None:
        self.store = store
        store.open(group, Retention())
        self._owners = store.take("other-topic", [0, 1], "rival")
        self._offset = 0

    def outlasts_a_lease(self) -> None:
        """Two leases that nobody renews run out meanwhile, one after the other."""
        for turn in range(3):
            self._offset += 1
            key = EventKey(self._offset, "rival", "never confirmed")
            claim = [Standing.NEW]
            eventually(lambda: self._claim(self._owners[turn % 2], key), claim.__eq__, "the lease runs out")  # noqa: B023

    def claims(self, event_id: str, source: str = "tests") -> Standing:
        self._offset += 1
        (standing,) = self._claim(self._owners[0], EventKey(self._offset, source, event_id))
        return standing

    def _claim(self, owner: Ownership, key: EventKey) -> list[Standing]:
        return self.store.claim(owner, [key], LEASE_S)


@pytest.fixture
def rival(place: Place) -> Iterator[Rival]:
    found = Rival(SqliteStore(place.file), place.group)
    yield found
    found.store.close()


def long_handlers(work: Callable[[str], None]) -> dict[str, tuple[Callable[..., object], bool]]:
    """Each calls ``work`` with the event's text; whether it takes a batch."""

    def plain(event: Event) -> None:
        work((event.value or b"").decode())

    def batch(events: Sequence[Event]) -> None:
        for event in events:
            plain(event)

    async def waits(event: Event) -> None:
        await asyncio.to_thread(plain, event)

    async def holds_the_loop_up(event: Event) -> None:
        plain(event)

    return {
        "plain": (plain, False),
        "batch": (batch, True),
        "async that waits": (waits, False),
        "async that holds the loop up": (holds_the_loop_up, False),
    }


@pytest.mark.parametrize("on_a_loop", [False, True], ids=["run", "run_async"])
@pytest.mark.parametrize("handler", long_handlers(lambda text: None))
@pytest.mark.in_turn(3)
def test_whatever_the_handler_its_events_are_held(place: Place, rival: Rival, handler: str, on_a_loop: bool) -> None:
    place.send(["1", "2", "3"])
    seen: list[tuple[str, Standing]] = []

    def work(text: str) -> None:
        if text == "2":
            rival.outlasts_a_lease()
        seen.append((text, rival.claims(text)))

    function, is_batch = long_handlers(work)[handler]
    reader = place.reader(lease_s=LEASE_S, retries=0, dead_letters=None)
    reader.handler(batch=is_batch)(function)
    if on_a_loop:
        asyncio.run(reader.run_async(until_end=True))
    else:
        reader.run(until_end=True)
    assert seen == [(text, Standing.HELD) for text in ("1", "2", "3")]
    assert rival.claims("2") is Standing.DUPLICATE
    assert threads() == []


def test_control_without_the_renewal_another_reader_gets_the_event_that_is_being_handled(
    place: Place, rival: Rival, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its effect would happen there too, though nobody has died."""
    monkeypatch.setattr(Leases, "_renew", lambda self, held: None)
    place.send(["1"])
    seen: list[Standing] = []

    def work(event: Event) -> None:
        rival.outlasts_a_lease()
        seen.append(rival.claims((event.value or b"").decode()))

    reader = place.reader(lease_s=LEASE_S, retries=0, dead_letters=None)
    reader.handler(work)
    reader.run(until_end=True)
    assert seen == [Standing.NEW]


def test_a_letter_that_takes_long_to_be_written_is_of_an_event_that_is_held(tmp_path: Path) -> None:
    with opened(tmp_path, "g") as store, Leases(store, LEASE_S) as leases:
        rival = Rival(SqliteStore(tmp_path / "store.db"), "g")
        (ours,) = store.take("t", [0], "reader")
        lane = Lane(ours, None)
        lane.pending = [event_at(0)]
        claims = Claims(store, Handler(lambda event: None), lambda step: None, leases, Tally(), Fence(store))
        found: list[Standing] = []

        def write() -> None:
            rival.outlasts_a_lease()
            found.append(rival.claims("0", source="s"))

        claims.bury(lane, lane.pending[0], write)
        found.append(rival.claims("0", source="s"))
        rival.store.close()
    assert found == [Standing.HELD, Standing.DUPLICATE]


# --------------------------------------------------------------------------------------------- the store while it works


def watched(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[list[Standing]]:
    """The claims that it answers from now on."""
    answers: list[list[Standing]] = []
    claim = store.claim

    def and_remember(*given: Any) -> list[Standing]:
        answers.append(found := claim(*given))
        return found

    monkeypatch.setattr(store, "claim", and_remember)
    return answers


@pytest.mark.parametrize("kind", ["postgresql", "redis"])
def test_a_store_that_is_away_while_the_handler_works_is_asked_again(
    place: Place,
    kind: str,
    url: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler goes on, its lease is renewed when the store is back, and its effect is confirmed."""
    caplog.set_level(logging.WARNING)
    server = request.getfixturevalue("database" if kind == "postgresql" else "redis_server")
    place.send(["1", "2"])
    store = open_store(url)
    answers = watched(store, monkeypatch)
    seen: list[bytes | None] = []
    reader = place.reader(store=store, lease_s=LEASE_S, retries=0, dead_letters=None)

    @reader.handler
    def book(event: Event) -> None:
        seen.append(event.value)
        if event.value == b"1":
            server.kill()
            eventually(lambda: caplog.text, lambda text: "could not be renewed" in text, "a renewal fails")
            server.start()
            count = len(answers)
            eventually(lambda: len(answers), lambda found: found > count, "it is renewed")
            assert answers[-1] == [Standing.NEW]

    reader.run(until_end=True)
    assert seen == [b"1", b"2"]
    assert place.committed() == {0: 2}


def test_a_sqlite_file_that_is_locked_while_the_handler_works(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """By the handler's own transaction, say."""
    caplog.set_level(logging.WARNING)
    place.send(["1", "2"])
    seen: list[bytes | None] = []
    store = SqliteStore(place.file, busy_timeout_s=0.05)
    reader = place.reader(store=store, lease_s=0.3, retries=0, dead_letters=None)

    @reader.handler
    def book(event: Event) -> None:
        place.ledger.execute("BEGIN IMMEDIATE")
        seen.append(event.value)
        if event.value == b"1":
            eventually(lambda: caplog.text, lambda text: "could not be renewed" in text, "a renewal fails")
        place.ledger.execute("COMMIT")

    reader.run(until_end=True)
    assert seen == [b"1", b"2"]
    assert place.committed() == {0: 2}


@contextmanager
def opened(directory: Path, group: str) -> Iterator[SqliteStore]:
    store = SqliteStore(directory / "store.db")
    store.open(group, Retention())
    yield store
    store.close()


def key(offset: int) -> EventKey:
    return EventKey(offset, "tests", str(offset))


def test_what_was_taken_by_another_owner_is_not_claimed_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence says it once; the next handler's claims are renewed as usual."""
    caplog.set_level(logging.WARNING)
    with opened(tmp_path, "g") as store, Leases(store, 0.2) as leases:
        lost, kept = store.take("t", [0, 1], "reader")
        answers = watched(store, monkeypatch)
        leases.claim(lost, [key(0)])
        with opened(tmp_path, "g") as other:
            other.take("t", [0], "other")
        with leases.kept(lost, [key(0)]):
            eventually(lambda: caplog.text, lambda text: "is owned under epoch" in text, "it is refused")
            assert leases._in_hand is None
        leases.claim(kept, [key(1)])
        with leases.kept(kept, [key(1)]):
            eventually(lambda: len(answers), (3).__le__, "renewals")


def test_a_lease_that_ran_out_while_the_process_stood_still_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread has no turn until another reader has claimed the event: as when all of the process is stopped."""
    caplog.set_level(logging.WARNING)
    with opened(tmp_path, "g") as store, opened(tmp_path, "g") as other, Leases(store, 0.2) as leases:
        ours, theirs = store.take("t", [0, 1], "reader")
        leases.claim(ours, [key(0)])
        with leases.kept(ours, [key(0)]):
            with leases._turn:
                again = [key(0)._replace(offset=7)]
                eventually(lambda: other.claim(theirs, again, 3600), [Standing.NEW].__eq__, "the lease runs out")
            eventually(lambda: caplog.text, lambda text: "another reader has claimed it" in text, "it is told")


# ------------------------------------------------------------------------------------------------------------ its end


def test_the_renewal_ends_with_the_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next handler has in hand is renewed alone, however long it takes; and behind the last one every lease runs out."""
    with opened(tmp_path, "g") as store, opened(tmp_path, "g") as other, Leases(store, 0.2) as leases:
        owner, theirs = store.take("t", [0, 1], "reader")
        claimed: list[list[EventKey]] = []
        claim = store.claim

        def and_remember(owner: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
            claimed.append([*keys])
            return claim(owner, keys, lease_s)

        monkeypatch.setattr(store, "claim", and_remember)
        for offset in range(3):
            with leases.kept(owner, [key(offset)]):
                before = len(claimed)
                eventually(lambda: len(claimed), lambda found: found >= before + 2, "renewals")  # noqa: B023
            assert claimed[before:] == [[key(offset)]] * (len(claimed) - before)
        assert len(threads()) == 1
        again = [key(2)._replace(offset=7)]
        eventually(lambda: other.claim(theirs, again, 3600), [Standing.NEW].__eq__, "the last lease runs out")
    assert threads() == []


def test_a_handler_that_ends_the_reader_leaves_no_thread(place: Place) -> None:
    place.send(["1"])
    reader = place.reader(retries=0, dead_letters=None)

    @reader.handler
    def fail(event: Event) -> None:
        assert len(threads()) == 1
        raise ValueError("no")

    with pytest.raises(HandlerFailed):
        reader.run()
    assert threads() == []


@pytest.mark.parametrize("mode", ["memory", "inbox"])
def test_where_nobody_else_can_claim_there_is_no_thread(place: Place, mode: str) -> None:
    """A store in memory is this process's alone, and in the inbox nothing is claimed."""
    place.send(["1"])
    seen: list[int] = []
    if mode == "memory":
        reader = place.reader(store=MemoryStore())
        reader.handler(lambda event: seen.append(len(threads())))
    else:
        reader = place.reader()
        reader.handler(lambda event, tx: seen.append(len(threads())))
    reader.run(until_end=True)
    assert seen == [0]
