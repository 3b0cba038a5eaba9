"""A store that is lost in the first moments of its group, before Kafka has heard of a position: told if anything was handled."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from confluent_kafka import Consumer
from tests.reader.conftest import PROTOCOLS, Places, soon_missed
from tests.reader.effects import effects_in, elsewhere
from tests.reader.light import Job
from tests.reader.support import Place, eventually
from tests.reader.test_beginnings import HISTORY
from tests.reader.test_made_anew import OTHERS, handle_all, make_anew, told_of
from tests.reader.test_positions import forget_offsets, lose_the_store

from onceflow.errors import StoreLost
from onceflow.reader.offsets import Committed

EVENTS = [str(number) for number in range(20)]
KINDS = ["sqlite", "postgresql", "redis"]


@dataclass
class World:
    """A store that can be lost without the effects. ``effects`` gives those, in order."""

    job: Job
    lose: Callable[[], None]
    effects: Callable[[], list[str]]


@pytest.fixture
def worlds(place: Place, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str, str], World]:
    """Makes one for a kind of store and a mode."""

    def make(kind: str, mode: str) -> World:
        world: World
        if kind == "sqlite":
            world = in_sqlite(place, mode, tmp_path)
        elif kind == "postgresql":
            world = in_postgresql(place, mode, request.getfixturevalue("database").url)
        else:
            world = in_redis(place, mode, request.getfixturevalue("redis_server").url)
        if mode == "claims":
            world.job = replace(world.job, ledger=elsewhere(tmp_path))
            world.effects = lambda: effects_in(tmp_path)
        options = {"batch_size": 5, "group_instance_id": "one"}
        world.job = replace(world.job, options=options)
        return world

    return make


def in_sqlite(place: Place, mode: str, directory: Path) -> World:
    """With effects elsewhere the whole file goes, otherwise the tables beside them."""
    if mode == "inbox":
        return World(place.job(), lambda: lose_the_store(place), place.effects)
    path = directory / "store.db"

    def lose() -> None:
        for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            name.unlink(missing_ok=name != path)

    return World(place.job(mode=mode, store=f"sqlite:///{path}"), lose, list)


def in_postgresql(place: Place, mode: str, url: str) -> World:
    def execute(statement: str) -> list[Any]:
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def lose() -> None:
        for (name,) in execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'onceflow%'"):
            execute(f'DROP TABLE "{name}"')

    execute("DROP TABLE IF EXISTS ledger")
    execute("CREATE TABLE ledger (number serial PRIMARY KEY, event text, pid integer)")
    job = place.job(mode=mode, store=url, mark="%s" if mode == "inbox" else "?")
    return World(job, lose, lambda: [row[0] for row in execute("SELECT event FROM ledger ORDER BY number")])


def in_redis(place: Place, mode: str, url: str) -> World:
    def lose() -> None:
        with closing(redis.Redis.from_url(url)) as client:
            kept = client.lrange(place.topic, 0, -1)
            client.flushall()
            if kept:
                client.rpush(place.topic, *kept)

    def effects() -> list[str]:
        with closing(redis.Redis.from_url(url, decode_responses=True)) as client:
            return [str(each) for each in client.lrange(place.topic, 0, -1)]

    return World(place.job(mode="redis" if mode == "inbox" else mode, store=url), lose, effects)


def kill_at(place: Place, job: Job, step: str, before: int = 0) -> None:
    killed = place.start(replace(job, interrupt=(step, before, signal.SIGKILL)))
    assert killed.wait() == -signal.SIGKILL, killed.said()


def refuses(place: Place, job: Job, code: str = "STORE_LOST") -> None:
    """It ends with that error, twice: the first start has changed nothing about it."""
    for _ in range(2):
        refused = place.start(job)
        assert refused.wait() == 1
        assert f'"{code}"' in refused.said()


# Each with the number of times that it has come before, and how many effects there are by then.
BEFORE_THE_NOTE = [("taken", 0), ("begun", 0)]
BEHIND_IT = {
    "inbox": [("witnessed", 0, 0), ("handled", 0, 0), ("committed", 0, 5)],
    "claims": [("witnessed", 0, 0), ("handled", 0, 1), ("committed", 4, 5)],
}
AT = [(mode, *at) for mode, ats in BEHIND_IT.items() for at in ats]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("mode", "step", "before", "done"), AT)
@pytest.mark.in_turn(3)
def test_killed_behind_the_note_and_the_store_is_lost(
    place: Place, worlds: Callable[[str, str], World], kind: str, mode: str, step: str, before: int, done: int
) -> None:
    place.send(EVENTS)
    world = worlds(kind, mode)
    kill_at(place, world.job, step, before)
    world.lose()
    refuses(place, world.job)
    assert world.effects() == EVENTS[:done]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("mode", "step", "before", "done"), AT)
@pytest.mark.in_turn(3)
def test_killed_behind_the_note_and_the_store_is_kept(
    place: Place, worlds: Callable[[str, str], World], kind: str, mode: str, step: str, before: int, done: int
) -> None:
    """Of claims the event in hand repeats, as everywhere."""
    place.send(EVENTS)
    world = worlds(kind, mode)
    kill_at(place, world.job, step, before)
    place.finish(world.job)
    in_hand = (mode, step) == ("claims", "handled")
    assert world.effects() == [*EVENTS[:done], *EVENTS[done - in_hand :]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["inbox", "claims"])
@pytest.mark.parametrize(("step", "before"), BEFORE_THE_NOTE)
@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "kept"])
@pytest.mark.in_turn(3)
def test_killed_before_the_note_nothing_was_handled_and_the_group_begins(
    place: Place, worlds: Callable[[str, str], World], kind: str, mode: str, step: str, before: int, is_lost: bool
) -> None:
    place.send(EVENTS)
    world = worlds(kind, mode)
    kill_at(place, world.job, step, before)
    if is_lost:
        world.lose()
    place.finish(world.job)
    assert world.effects() == EVENTS


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mode", ["inbox", "claims"])
def test_with_both_protocols_and_partitions_of_which_one_has_begun(
    places: Places, tmp_path: Path, protocol: str, mode: str
) -> None:
    place = places(3)
    place.send(EVENTS, partition=1)
    options = {"batch_size": 5, "group_protocol": protocol}
    job = place.job(mode=mode, options=options, ledger=elsewhere(tmp_path) if mode == "claims" else str(place.file))
    kill_at(place, soon_missed(job), "committed")
    lose_the_store(place)
    place.send(EVENTS, partition=2)
    refused = place.start(job)
    assert refused.wait() == 1
    assert f"{place.topic}-1: the group handles events from offset 0 on, the store knows of nothing" in refused.said()


def test_a_group_that_begins_at_the_end(place: Place) -> None:
    """What it noted of its beginning says that nothing was handled, until there is something to handle."""
    place.send(HISTORY)
    place.book_all(start="latest")
    lose_the_store(place)
    place.book_all(start="latest")
    place.send(EVENTS)
    job = place.job(options={"start": "latest", "batch_size": 5, "group_instance_id": "one"})
    kill_at(place, job, "committed")
    lose_the_store(place)
    refuses(place, job)
    assert place.effects() == EVENTS[:5]


def test_a_partition_that_was_added_later(place: Place) -> None:
    """The rows of that one alone are lost: what is known of the other one says nothing."""
    place.send(EVENTS)
    place.book_all()
    place.add_partition()
    place.send(["20", "21"], partition=1)
    job = place.job(options={"batch_size": 1, "group_instance_id": "one"})
    kill_at(place, job, "committed")
    place.ledger.execute("DELETE FROM onceflow_positions WHERE partition = 1")
    refuses(place, job)
    assert place.effects() == [*EVENTS, "20"]


def test_the_note_of_a_topic_that_was_made_anew_is_none(place: Place) -> None:
    """A reader that ended late commits it once more behind the deletion."""
    place.send(EVENTS)
    kill_at(place, soon_missed(place.job(options={"batch_size": 5})), "committed")
    told = told_of(place)
    assert "handles-from-here" in str(told.metadata)
    eventually(place.members, (0).__eq__, "the group has put it out")
    make_anew(place)
    lose_the_store(place)
    with closing(Consumer({"bootstrap.servers": place.servers, "group.id": place.group})) as late:
        late.commit(offsets=[told], asynchronous=False)
    assert handle_all(place, place.store) == OTHERS


@pytest.mark.parametrize("what", ["expired", "reset"])
def test_a_group_whose_offsets_are_gone_tells_its_position_before_it_goes_on(place: Place, what: str) -> None:
    """The store alone knew of the first events: if it is lost then, everything would be handled again."""
    place.send(EVENTS)
    place.book_all()
    if what == "expired":
        forget_offsets(place)
    else:
        place.set_committed({0: 0})
    place.send(["20", "21"])
    job = place.job(options={"batch_size": 1, "group_instance_id": "one"})
    kill_at(place, job, "committed")
    lose_the_store(place)
    refuses(place, job)
    assert place.effects() == [*EVENTS, "20"]


@pytest.mark.parametrize("choice", ["rebuild", "accept", "replay"])
def test_how_to_go_on_is_said_as_with_any_lost_store(place: Place, tmp_path: Path, choice: str) -> None:
    """What was handled and not told to Kafka is handled again, as documented."""
    place.send(EVENTS)
    job = place.job(mode="claims", ledger=elsewhere(tmp_path), options={"group_instance_id": "one"})
    kill_at(place, job, "committed", 4)
    lose_the_store(place)
    place.finish(replace(job, options={**job.options, "lost_store": choice}))
    place.finish(job)
    assert effects_in(tmp_path) == [*EVENTS[:5], *EVENTS]


def test_a_store_in_memory_begins_anew_without_a_word(place: Place, tmp_path: Path) -> None:
    """It says itself that it forgets."""
    place.send(EVENTS)
    job = place.job(mode="claims", store="memory:", ledger=elsewhere(tmp_path), options={"group_instance_id": "one"})
    kill_at(place, job, "committed", 4)
    place.finish(job)
    assert effects_in(tmp_path) == [*EVENTS[:5], *EVENTS]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_reader_that_is_put_out_of_its_group_before_the_note_handles_nothing_until_it_is_in_it_again(
    place: Place, protocol: str
) -> None:
    """Another one handles everything meanwhile; a note that was written all the same would take its offset back."""
    place.send(EVENTS)
    options = {"batch_size": 5, "group_protocol": protocol}
    job = place.job(options=options, until_end=False)
    stopped = place.start(replace(soon_missed(job), interrupt=("begun", 0, signal.SIGSTOP)))
    stopped.until_stopped()
    other = place.start(job)
    eventually(place.committed, {0: 20}.__eq__, "the other one has handled all")
    stopped.signal(signal.SIGCONT)
    stopped.until_it_says("put out of the group", "lost to other readers")  # the note's answer, or librdkafka before it
    place.send(["more"])
    eventually(lambda: len(place.effects()), (21).__le__, "what came after")
    assert (stopped.stop(), other.stop()) == (0, 0)
    assert place.effects() == [*EVENTS, "more"]
    assert place.committed() == {0: 21}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_reader_that_loses_its_group_before_the_note_goes_on_when_it_is_in_it_again(
    place: Place, protocol: str
) -> None:
    place.send(EVENTS)
    options = {"batch_size": 5, "group_protocol": protocol}
    job = place.job(options=options, until_end=False, interrupt=("begun", 0, signal.SIGSTOP))
    stopped = place.start(soon_missed(job))
    stopped.until_stopped()
    eventually(place.members, (0).__eq__, "the group has put it out")
    stopped.signal(signal.SIGCONT)
    eventually(lambda: len(place.effects()), (20).__le__, "effects")
    assert stopped.stop() == 0, stopped.said()
    assert place.effects() == EVENTS


def test_a_group_without_events_is_not_held_for_one_that_lost_its_store(place: Place) -> None:
    for _ in range(2):
        place.book_all()
        lose_the_store(place)
    place.send(EVENTS)
    place.book_all()
    assert place.effects() == EVENTS


def test_a_member_s_store_that_was_never_used_by_the_group_is_a_lost_one(place: Place) -> None:
    """Two stores under one group: each knows nothing of what the other one has handled."""
    place.send(EVENTS)
    job = place.job(options={"batch_size": 5, "group_instance_id": "one"})
    kill_at(place, job, "witnessed")
    with pytest.raises(StoreLost) as raised:
        place.book_all(store=f"sqlite:///{place.file}-other", group_instance_id="one")
    assert (raised.value.fields["committed"], raised.value.fields["position"]) == (0, None)


@pytest.mark.parametrize(
    ("told", "tells"),
    [
        (Committed(0, 0), False),
        (Committed(3, 3), True),
        (Committed(3, 3, is_beginning=True), False),
        (Committed(0, 0, handles=True), True),
        (Committed(3, 3, handles=True), True),
    ],
)
def test_which_offsets_tell_of_a_lost_store(told: Committed, tells: bool) -> None:
    assert told.is_witness is tells
