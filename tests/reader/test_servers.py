"""The reader on a real PostgreSQL and a real Redis: effects equal the events, through SIGKILL of the server and of the reader."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
import redis
from tests.conftest import Reader as ReadAll
from tests.reader.conftest import Places, soon_missed
from tests.reader.effects import Effects, effects_for, effects_in, effects_of, elsewhere
from tests.reader.servers import Server, running_redis
from tests.reader.stores.cutting_proxy import CuttingProxy
from tests.reader.support import Place, eventually
from tests.reader.test_killed import CLAIM_STEPS, kill_and_finish
from tests.reader.test_killed import job as killed_at
from tests.reader.zombies import AT_EACH, letters, stop_at_each_and_wake

from onceflow.errors import CommitUnknown, EffectRefused
from onceflow.reader.event import Event
from onceflow.reader.inbox import Inbox
from onceflow.reader.lane import Lane
from onceflow.reader.reader import Reader
from onceflow.reader.steps import Step
from onceflow.reader.stores.interface import EventKey, Ownership, Standing, Unit
from onceflow.reader.stores.postgresql import PostgresqlStore

EVENTS = [str(number) for number in range(60)]


@pytest.fixture
def ledger(database: Server) -> Callable[[], list[str]]:
    """An empty ledger; gives what it holds, in order."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS ledger")
        connection.execute("CREATE TABLE ledger (number serial PRIMARY KEY, event text, pid integer)")

    def effects() -> list[str]:
        with psycopg.connect(database.url) as connection:
            return [row[0] for row in connection.execute("SELECT event FROM ledger ORDER BY number")]

    return effects


INSIDE_A_UNIT = [  # step, poison, the group's protocol
    ("admitted", None, "classic"),
    ("handled", None, "classic"),
    ("buried", "15", "classic"),
    ("handled", None, "consumer"),
]
KILLED_AT = [  # step, how often before, poison; taken, begun and witnessed: test_lost_at_once.py
    ("polled", 2, None),
    ("admitted", 2, None),
    ("handled", 2, None),
    ("buried", 0, "15"),
    ("committed", 2, None),
    ("offsets", 0, None),
    ("revoked", 0, None),
]
SERVERS = ["postgresql", "redis"]


def insert(tx: Any, event: Event) -> None:
    tx.execute("INSERT INTO ledger (event, pid) VALUES (%s, 0)", ((event.value or b"").decode(),))


@pytest.mark.parametrize(("step", "before", "poison"), KILLED_AT)
@pytest.mark.in_turn(3)
def test_a_reader_killed_at_a_step(
    place: Place,
    database: Server,
    ledger: Callable[[], list[str]],
    read: ReadAll,
    step: str,
    before: int,
    poison: str | None,
) -> None:
    place.send([*EVENTS, *EVENTS[:10]])
    kill_and_finish(place, killed_at(place, step, before, store=database.url, mark="%s", poison=poison))
    assert ledger() == [text for text in EVENTS if text != poison]
    assert letters(place, read) == ([] if poison is None else [b"15", b"15"])  # the first one's unit was rolled back


@pytest.mark.parametrize(("step", "poison", "protocol"), INSIDE_A_UNIT)
@pytest.mark.in_turn(3)
def test_a_reader_stopped_inside_its_transaction_and_woken_after_its_partition_moved(
    place: Place,
    database: Server,
    ledger: Callable[[], list[str]],
    read: ReadAll,
    step: str,
    poison: str | None,
    protocol: str,
) -> None:
    """It holds the row of the position; the new owner waits for it, ends its session, and handles its events."""
    place.send(EVENTS)
    options = {"batch_size": 10, "retries": 0, "group_protocol": protocol}
    job = place.job(store=database.url, mark="%s", options=options, until_end=False, poison=poison, held_up_s=0.5)
    stopped = place.start(replace(soon_missed(job), interrupt=(step, 1 if poison is None else 0, signal.SIGSTOP)))
    stopped.until_stopped()
    other = place.start(job)
    expected = [text for text in EVENTS if text != poison]
    eventually(ledger, expected.__eq__, "the new owner's effects")
    stopped.signal(signal.SIGCONT)
    place.send(["more"])
    eventually(ledger, lambda effects: "more" in effects, "what came after")
    assert (stopped.stop(), other.stop()) == (0, 0)
    assert ledger() == [*expected, "more"]
    assert letters(place, read) == ([] if poison is None else [b"15", b"15"])  # the first one's unit was rolled back


def test_what_a_deferred_constraint_refuses_is_poison_of_that_event_alone(
    place: Place, database: Server, ledger: Callable[[], list[str]], read: ReadAll
) -> None:
    """Found at the end of a unit of ten events: each of them is tried alone, one of them fails alone."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("ALTER TABLE ledger ADD UNIQUE (event) DEFERRABLE INITIALLY DEFERRED")
    place.send(EVENTS)
    reader = place.reader(store=database.url, batch_size=10, retries=1)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        insert(tx, event)
        if event.value in (b"7", b"33"):
            insert(tx, event)

    reader.run(until_end=True)
    assert ledger() == [text for text in EVENTS if text not in ("7", "33")]
    assert letters(place, read) == [b"7", b"33"]


class BlamesTheEvent(Inbox):
    """The undefended variant: whatever comes out of a handler is a failure of its event."""

    def _run(self, unit: Unit, events: Sequence[Event]) -> None:
        self._handler.run(events, unit.handle)


@pytest.mark.parametrize("mode", [Inbox, BlamesTheEvent], ids=["the savepoint tells", "control: blames the event"])
def test_the_server_is_killed_inside_a_transaction_and_comes_back(
    place: Place,
    database: Server,
    ledger: Callable[[], list[str]],
    read: ReadAll,
    monkeypatch: pytest.MonkeyPatch,
    mode: type[Inbox],
) -> None:
    """No event is guilty of it. Counted as a failure it makes poison of a good one: put aside, and its effect is missing."""
    monkeypatch.setattr("onceflow.reader.reader.Inbox", mode)
    place.send(EVENTS)
    killed: list[int] = []
    reader = place.reader(store=PostgresqlStore(database.url), batch_size=10, backoff_max_s=0.5, retries=0)

    @reader.handler
    def book(event: Event, tx: Any) -> None:
        if event.value == b"25" and not killed:
            killed.append(event.offset)
            insert(tx, event)
            database.kill()
            database.start()
        insert(tx, event)

    reader.run(until_end=True)
    assert killed == [25]
    put_aside = ["25"] if mode is BlamesTheEvent else []
    assert ledger() == [text for text in EVENTS if text not in put_aside]
    assert letters(place, read) == [text.encode() for text in put_aside]


def test_on_redis_the_effects_are_in_the_store_s_transaction(place: Place) -> None:
    with running_redis() as server:
        place.send([*EVENTS, *EVENTS[:10]])
        reader = place.reader(store=server.url, batch_size=10)
        failures = iter(range(2))

        @reader.handler
        def book(event: Event, tx: Any) -> None:
            tx.rpush("ledger", event.value)
            if event.value == b"33" and next(failures, None) is not None:
                raise ValueError("after the effect")

        reader.run(until_end=True)
        client = redis.Redis.from_url(server.url)
        assert [each.decode() for each in client.lrange("ledger", 0, -1)] == EVENTS  # type: ignore[union-attr]
        client.close()


# ----------------------------------------------------------------------------------------------------------------- Redis


def pushed(server: Server, place: Place) -> list[str]:
    with closing(redis.Redis.from_url(server.url, decode_responses=True)) as client:
        return [str(each) for each in client.lrange(place.topic, 0, -1)]


@pytest.mark.parametrize(("step", "before", "poison"), KILLED_AT)
@pytest.mark.in_turn(3)
def test_redis_a_reader_killed_at_a_step(
    place: Place, redis_server: Server, read: ReadAll, step: str, before: int, poison: str | None
) -> None:
    place.send([*EVENTS, *EVENTS[:10]])
    kill_and_finish(place, killed_at(place, step, before, store=redis_server.url, mode="redis", poison=poison))
    assert pushed(redis_server, place) == [text for text in EVENTS if text != poison]
    assert letters(place, read) == ([] if poison is None else [b"15", b"15"])


@pytest.mark.parametrize(("step", "poison", "protocol"), INSIDE_A_UNIT)
def test_redis_a_reader_stopped_inside_its_transaction_and_woken_after_its_partition_moved(
    place: Place, redis_server: Server, read: ReadAll, step: str, poison: str | None, protocol: str
) -> None:
    """Nothing is locked, so the new owner handles all; the one that wakes is refused by the script."""
    place.send(EVENTS)
    options = {"batch_size": 10, "retries": 0, "group_protocol": protocol}
    job = place.job(store=redis_server.url, mode="redis", options=options, until_end=False, poison=poison)
    stopped = place.start(replace(soon_missed(job), interrupt=(step, 1 if poison is None else 0, signal.SIGSTOP)))
    stopped.until_stopped()
    other = place.start(job)
    expected = [text for text in EVENTS if text != poison]
    eventually(lambda: pushed(redis_server, place), expected.__eq__, "the new owner's effects")
    stopped.signal(signal.SIGCONT)
    stopped.until_it_says("is owned under epoch")
    place.send(["more"])
    eventually(lambda: pushed(redis_server, place), lambda found: "more" in found, "what came after")
    assert (stopped.stop(), other.stop()) == (0, 0)
    assert pushed(redis_server, place) == [*expected, "more"]
    assert letters(place, read) == ([] if poison is None else [b"15", b"15"])


@pytest.mark.parametrize(
    ("mode", "number", "protocol"),
    [
        ("inbox", signal.SIGSTOP, "classic"),
        ("inbox", signal.SIGKILL, "classic"),
        ("claims", signal.SIGSTOP, "classic"),
        ("inbox", signal.SIGSTOP, "consumer"),
    ],
)
@pytest.mark.parametrize("store", SERVERS)
@pytest.mark.in_turn(3)
def test_stopped_or_killed_while_a_partition_is_taken_from_it_nothing_repeats(
    places: Places,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    store: str,
    mode: str,
    number: signal.Signals,
    protocol: str,
) -> None:
    """A second reader came. It loses both partitions, and wakes or not.

    It has events of both in hand, with which its handler has failed so far: with none it would have nothing to repeat.
    """
    place = places(2)
    effects = effects_for(mode, store, place, request, tmp_path / "elsewhere")
    options = {"batch_size": 10, "group_protocol": protocol}
    job = place.job(options=options, until_end=False, **effects.job)
    place.send(EVENTS)
    mended = tmp_path / "mended"
    failing = {"retries": 1000, "backoff_s": 0.5, "backoff_max_s": 0.5, **options}
    first = replace(job, options=failing, poison="40", fails_until=str(mended))
    stopped = place.start(replace(soon_missed(first), interrupt=("revoked", 0, number)))
    eventually(lambda: len(effects.texts()), (40).__eq__, "effects of the first")
    other = place.start(job)
    if number is signal.SIGKILL:
        assert stopped.wait() == -signal.SIGKILL
    else:
        stopped.until_stopped()
    place.send(range(60, 80))
    eventually(lambda: len(set(effects.texts())), (80).__eq__, "effects of the second, in both partitions")
    mended.touch()
    if number is signal.SIGSTOP:
        stopped.signal(signal.SIGCONT)
    place.send(range(80, 100))
    eventually(lambda: len(set(effects.texts())), (100).__eq__, "what came after")
    assert other.stop() == 0
    assert number is signal.SIGKILL or stopped.stop() == 0
    assert sorted(map(int, effects.texts())) == list(range(100))


BY_THE_NEW_PROTOCOL = {  # each step once: a group's protocol knows of no store. With one in memory: all (test_own_store.py)
    "postgresql": [
        ("inbox", "taken"),
        ("inbox", "offsets"),
        ("claims", "witnessed"),
        ("claims", "claimed"),
        ("claims", "buried"),
    ],
    "redis": [("inbox", "begun"), ("inbox", "committed"), ("claims", "polled"), ("claims", "handled")],
}


@pytest.mark.parametrize(("protocol", "at"), [("classic", "inbox"), ("classic", "claims"), ("consumer", "both")])
@pytest.mark.parametrize("store", SERVERS)
@pytest.mark.in_turn(3)
def test_stopped_where_it_holds_no_lock_and_woken_after_its_partition_moved(
    places: Places, request: pytest.FixtureRequest, tmp_path: Path, read: ReadAll, store: str, protocol: str, at: str
) -> None:
    def make(mode: str, step: str) -> tuple[Place, Effects]:
        place = places()
        return place, effects_for(mode, store, place, request, tmp_path / step)

    stop_at_each_and_wake(AT_EACH.get(at, BY_THE_NEW_PROTOCOL[store]), make, read, protocol)


def test_redis_is_killed_while_a_handler_works_and_comes_back(place: Place, redis_server: Server) -> None:
    place.send(EVENTS)
    killed: list[int] = []
    reader = place.reader(store=redis_server.url, batch_size=10, backoff_max_s=0.5, retries=0)

    @reader.handler
    def push(event: Event, tx: Any) -> None:
        if event.value == b"25" and not killed:
            killed.append(event.offset)
            redis_server.kill()
            redis_server.start()
        tx.rpush(place.topic, event.value)

    reader.run(until_end=True)
    assert killed == [25]
    assert pushed(redis_server, place) == EVENTS


# ------------------------------------------------------------------------------------------ killed, with effects elsewhere


@pytest.mark.parametrize("step", CLAIM_STEPS)
@pytest.mark.parametrize("store", SERVERS)
@pytest.mark.in_turn(3)
def test_killed_outside_of_the_handler_claims_repeat_nothing(
    place: Place, database: Server, redis_server: Server, tmp_path: Path, store: str, step: str
) -> None:
    place.send(EVENTS)
    url = (database if store == "postgresql" else redis_server).url
    before = 3 if step in ("claimed", "committed") else 0
    kill_and_finish(place, killed_at(place, step, before, mode="claims", ledger=elsewhere(tmp_path), store=url))
    assert effects_in(tmp_path) == EVENTS


@pytest.mark.parametrize("store", SERVERS)
def test_killed_before_the_confirmation_one_effect_repeats_and_no_other(
    place: Place, database: Server, redis_server: Server, tmp_path: Path, store: str
) -> None:
    place.send(EVENTS)
    url = (database if store == "postgresql" else redis_server).url
    kill_and_finish(place, killed_at(place, "handled", 24, mode="claims", ledger=elsewhere(tmp_path), store=url))
    assert effects_in(tmp_path) == [*EVENTS[:25], "24", *EVENTS[25:]]


@pytest.mark.parametrize("store", [None, *SERVERS], ids=["sqlite", *SERVERS])
@pytest.mark.in_turn(3)
def test_killed_before_a_letter_is_confirmed_it_comes_again_with_the_same_id(
    place: Place, request: pytest.FixtureRequest, read: ReadAll, tmp_path: Path, store: str | None
) -> None:
    place.send(EVENTS)
    fixtures = {"postgresql": "database", "redis": "redis_server"}
    url = request.getfixturevalue(fixtures[store]).url if store else place.store
    kill_and_finish(
        place, killed_at(place, "buried", 0, mode="claims", ledger=elsewhere(tmp_path), store=url, poison="15")
    )
    assert effects_in(tmp_path) == [text for text in EVENTS if text != "15"]
    assert letters(place, read) == [b"15", b"15"]


# ---------------------------------------------------------------------------------------------------- the group is rewound


@pytest.mark.parametrize("store", SERVERS)
def test_rewinding_the_group_repeats_nothing(place: Place, request: pytest.FixtureRequest, store: str) -> None:
    """Of events without ids: their position tells."""
    effects = effects_of(store, place, request)
    job = place.job(**effects.job)
    place.send(EVENTS, ids=False)
    place.finish(job)
    assert place.committed() == {0: 60}
    place.set_committed({0: 0})
    place.send(["60"], ids=False)
    place.finish(job)
    assert effects.texts() == [*EVENTS, "60"]
    assert place.committed() == {0: 61}


# ------------------------------------------------------------------------------- the connection is cut after the effect


class TakesUnknownForFailed(Inbox):
    """The undefended variant: a transaction whose commit is not answered is made again, and nobody looks whether it is there."""

    def handle(self, lane: Lane, events: Sequence[Event]) -> None:
        try:
            super().handle(lane, events)
        except CommitUnknown:
            with self._store.unit() as unit:
                unit.admit(lane.ownership, [])
                self._run(unit, events)
            lane.advance(len(events))


LOOKS_OR_NOT = pytest.mark.parametrize(
    "mode", [Inbox, TakesUnknownForFailed], ids=["the position tells", "control: taken for failed"]
)


def check_answers_lost(effects: list[str], mode: type[Inbox]) -> None:
    """Of the commits with 15 and with 44 in them."""
    if mode is Inbox:
        assert effects == EVENTS
    else:
        repeated = {text for text, count in Counter(effects).items() if count > 1}
        assert repeated >= {"15", "44"}
        assert set(effects) == set(EVENTS)


@LOOKS_OR_NOT
def test_the_answer_to_a_commit_of_postgresql_is_lost(
    place: Place,
    database: Server,
    ledger: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    mode: type[Inbox],
) -> None:
    """The effects are there, and the reader does not know: the position tells it. Without that the batch repeats."""
    monkeypatch.setattr("onceflow.reader.reader.Inbox", mode)
    place.send(EVENTS)
    socket = Path(parse_qs(urlsplit(database.url).query)["host"][0]) / ".s.PGSQL.5432"
    with CuttingProxy(socket) as proxy:
        reader = place.reader(store=f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres", batch_size=10)
        uncut = {b"15", b"44"}

        @reader.handler
        def book(event: Event, tx: Any) -> None:
            insert(tx, event)
            if event.value in uncut:
                uncut.remove(event.value)
                proxy.arm(b"COMMIT\0")

        reader.run(until_end=True)
        assert proxy.cut.is_set()
    check_answers_lost(ledger(), mode)


@LOOKS_OR_NOT
def test_the_answer_to_a_commit_of_redis_is_lost(
    place: Place, redis_server: Server, monkeypatch: pytest.MonkeyPatch, mode: type[Inbox]
) -> None:
    monkeypatch.setattr("onceflow.reader.reader.Inbox", mode)
    place.send(EVENTS)
    with CuttingProxy(Path(urlsplit(redis_server.url).path)) as proxy:
        reader = place.reader(store=f"redis://127.0.0.1:{proxy.port}", batch_size=10)
        uncut = {b"15", b"44"}

        @reader.handler
        def push(event: Event, tx: Any) -> None:
            tx.rpush(place.topic, event.value)
            if event.value in uncut:
                uncut.remove(event.value)
                proxy.arm(b"EVALSHA")

        reader.run(until_end=True)
        assert proxy.cut.is_set()
    check_answers_lost(pushed(redis_server, place), mode)


COMMITS = {"postgresql": b"COMMIT\0", "redis": b"EVALSHA"}
"""What is in the request with which a store of that kind writes."""


@pytest.fixture
def servers(database: Server, redis_server: Server) -> dict[str, Server]:
    return dict(zip(SERVERS, (database, redis_server), strict=True))


def proxy_of(store: str, servers: dict[str, Server]) -> CuttingProxy:
    parts = urlsplit(servers[store].url)
    is_redis = store == "redis"
    return CuttingProxy(Path(parts.path) if is_redis else Path(parse_qs(parts.query)["host"][0]) / ".s.PGSQL.5432")


def through(proxy: CuttingProxy, store: str) -> str:
    return (
        f"redis://127.0.0.1:{proxy.port}"
        if store == "redis"
        else f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
    )


@pytest.mark.parametrize("store", SERVERS)
def test_the_answer_to_a_confirmation_is_lost_and_no_effect_elsewhere_repeats(
    place: Place, servers: dict[str, Server], store: str
) -> None:
    """The effect happened: the reader remembers that, and only confirms once more."""
    place.send(EVENTS)
    with proxy_of(store, servers) as proxy:
        reader = place.reader(store=through(proxy, store), batch_size=10)
        seen: list[str] = []

        @reader.handler
        def elsewhere(event: Event) -> None:
            seen.append((event.value or b"").decode())
            if event.value in (b"15", b"44"):
                proxy.arm(COMMITS[store])

        reader.run(until_end=True)
        assert proxy.cut.is_set()
    assert seen == EVENTS


POISON = "15"
CUT_AT = [("inbox", "take"), ("inbox", "letter"), ("claims", "claim"), ("claims", "letter")]


@pytest.mark.parametrize(("mode", "at"), CUT_AT)
@pytest.mark.parametrize("store", SERVERS)
@pytest.mark.in_turn(3)
def test_the_answer_to_another_call_is_lost_and_nothing_repeats(
    place: Place,
    servers: dict[str, Server],
    ledger: Callable[[], list[str]],
    read: ReadAll,
    store: str,
    mode: str,
    at: str,
) -> None:
    """The partition is taken, the batch is claimed, or the letter's event is booked, and the reader does not know."""
    place.send(EVENTS)
    with proxy_of(store, servers) as proxy:
        uncut = iter([at])

        def cut(call: str) -> None:
            if call == at and next(uncut, None):
                proxy.arm(COMMITS[store])

        reader = place.reader(
            store=through(proxy, store),
            batch_size=10,
            retries=0,
            on_step=lambda step: cut("letter") if step is Step.BURIED else None,
        )
        before_its_own_calls(reader, place.topic, cut)
        effects = booking(reader, mode, place, servers[store], ledger if store == "postgresql" else None)
        reader.run(until_end=True)
        assert proxy.cut.is_set()
    assert effects() == [text for text in EVENTS if text != POISON]
    assert letters(place, read) == [POISON.encode()]


@pytest.mark.parametrize("mode", ["inbox", "claims"])
@pytest.mark.parametrize("store", SERVERS)
def test_the_server_is_killed_between_a_letter_and_its_booking(
    place: Place, servers: dict[str, Server], ledger: Callable[[], list[str]], read: ReadAll, store: str, mode: str
) -> None:
    """The letter is there, and nothing says so: it is written again, with the same id, and its event has no effect."""
    place.send(EVENTS)
    server = servers[store]
    killed: list[bool] = []

    def kill(step: Step) -> None:
        if step is Step.BURIED and not killed:
            server.kill()
            killed.append(True)

    def start(call: str) -> None:
        if killed == [True]:  # it has waited, and takes its partition again
            server.start()
            killed.append(False)

    reader = place.reader(store=server.url, batch_size=10, retries=0, on_step=kill)
    before_its_own_calls(reader, place.topic, start)
    effects = booking(reader, mode, place, server, ledger if store == "postgresql" else None)
    try:
        reader.run(until_end=True)
    finally:
        start("the end")  # it is the file's own server
    assert effects() == [text for text in EVENTS if text != POISON]
    assert letters(place, read) == [POISON.encode()] * 2


def before_its_own_calls(reader: Reader, own: str, do: Callable[[str], None]) -> None:
    """Before it takes partitions of its own topic (not what else the store keeps so), and claims a batch with the poison."""
    store = reader._store
    take, claim = store.take, store.claim

    def taking(topic: str, partitions: Sequence[int], owner: str) -> list[Ownership]:
        if topic == own:
            do("take")
        return take(topic, partitions, owner)

    def claiming(ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        if len(keys) > 1 and POISON in {key.id for key in keys}:
            do("claim")
        return claim(ownership, keys, lease_s)

    store.take, store.claim = taking, claiming  # type: ignore[method-assign]


def booking(
    reader: Reader, mode: str, place: Place, server: Server, ledger: Callable[[], list[str]] | None
) -> Callable[[], list[str]]:
    """Gives the reader a handler that fails for the poison. What effects there are, in order; without ``ledger``: in Redis."""
    seen: list[str] = []

    def book(event: Event, tx: Any) -> None:
        text = (event.value or b"").decode()
        if text == POISON:
            raise ValueError("bad")
        if mode == "claims":
            seen.append(text)
        elif ledger:
            insert(tx, event)
        else:
            tx.rpush(place.topic, text)

    reader.handler(book if mode == "inbox" else partial(book, tx=None))
    if mode == "claims":
        return lambda: seen
    return ledger or (lambda: pushed(server, place))


def test_a_command_that_redis_refuses_ends_the_reader_and_its_events_count_as_handled(
    place: Place, redis_server: Server
) -> None:
    place.send(EVENTS)
    with closing(redis.Redis.from_url(redis_server.url)) as client:
        client.set(f"text:{place.topic}", "no list")

    def reader() -> Reader:
        made = place.reader(store=redis_server.url, batch_size=1)

        @made.handler
        def push(event: Event, tx: Any) -> None:
            tx.rpush(place.topic, event.value)
            if event.value == b"7":
                tx.rpush(f"text:{place.topic}", event.value)

        return made

    with pytest.raises(EffectRefused, match=r"(?i)rpush: "):
        reader().run(until_end=True)
    assert pushed(redis_server, place) == EVENTS[:8]
    reader().run(until_end=True)
    assert pushed(redis_server, place) == EVENTS


def test_a_value_that_redis_has_no_kind_for_is_the_failure_of_its_event(
    place: Place, redis_server: Server, read: ReadAll
) -> None:
    """It goes to the dead letters, and the others of its batch are handled."""
    place.send(EVENTS)
    reader = place.reader(store=redis_server.url, batch_size=10, retries=1, backoff_s=0.01)

    @reader.handler
    def push(event: Event, tx: Any) -> None:
        tx.rpush(place.topic, None if event.value == b"7" else event.value)

    reader.run(until_end=True)
    assert pushed(redis_server, place) == [text for text in EVENTS if text != "7"]
    (letter,) = read(f"{place.topic}.dead-letter", on=place.broker)
    assert letter.value() == b"7"
    assert b"NoneType" in dict[str, Any](letter.headers() or ())["onceflow_reason"]
