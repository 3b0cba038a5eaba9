"""Redis: lost answers, killed servers, owners overtaken between admit and commit, servers that are not fit for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.reader.servers import Server, running_redis
from tests.reader.stores.compact import WAYS, Way, book_numbered
from tests.reader.stores.cutting_proxy import CuttingProxy

from onceflow.errors import CommitUnknown, EffectRefused, StoreFenced, StoreLost, StoreMismatch, StoreUnavailable
from onceflow.reader.stores.interface import EventKey, Ownership, Retention, Standing
from onceflow.reader.stores.redis import RedisStore
from onceflow.reader.stores.redis_scripts import APPLY

NEW, DUPLICATE = Standing.NEW, Standing.DUPLICATE
_numbers = itertools.count()


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"


@pytest.fixture
def store(redis_server: Server, group: str) -> Iterator[RedisStore]:
    with closing(RedisStore(redis_server.url)) as store:
        store.open(group, Retention())
        yield store


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(redis_server.url, decode_responses=True)) as client:
        yield client


def events(*offsets: int) -> list[EventKey]:
    return [EventKey(offset, "shop", f"event-{offset}") for offset in offsets]


def take(store: RedisStore, partition: int = 0) -> Ownership:
    return store.take("orders", [partition], "reader")[0]


def book(store: RedisStore, owner: Ownership, group: str, *offsets: int) -> list[Standing]:
    """What a reader does: an effect for each event that is new."""
    with store.unit() as unit:
        standings = unit.admit(owner, events(*offsets))
        for standing in standings:
            if standing is NEW:
                unit.handle.incr(f"balance:{group}")
    return standings


def test_answer_to_the_commit_lost(redis_server: Server, group: str, client: redis.Redis) -> None:
    """The script ran, its answer is lost: CommitUnknown, and the position says that it happened."""
    socket = Path(redis_server.url.removeprefix("unix://"))
    with CuttingProxy(socket) as proxy, closing(RedisStore(f"redis://127.0.0.1:{proxy.port}")) as store:
        store.open(group, Retention())
        assert book(store, take(store), group, 0) == [NEW]  # now the server knows the script
        owner = take(store)
        proxy.arm(b"EVALSHA")
        with pytest.raises(CommitUnknown):
            book(store, owner, group, 1, 2)
        assert proxy.cut.is_set()
        again = take(store)
        assert again.next_offset == 3
        assert book(store, again, group, 1, 2) == [DUPLICATE, DUPLICATE]
        assert client.get(f"balance:{group}") == "3"


def test_overtaken_between_admit_and_commit(
    store: RedisStore, redis_server: Server, group: str, client: redis.Redis
) -> None:
    """The owner stands still after admit; the next one handles the same events; the script refuses the first."""
    owner = take(store)
    with closing(RedisStore(redis_server.url)) as other:
        other.open(group, Retention())
        with pytest.raises(StoreFenced), store.unit() as unit:  # noqa: PT012
            assert unit.admit(owner, events(0)) == [NEW]
            unit.handle.incr(f"balance:{group}")
            assert book(other, take(other), group, 0) == [NEW]
    assert client.get(f"balance:{group}") == "1"


def in_two_steps() -> tuple[str, str]:
    """The script that writes, with what it compares apart from what it sets."""
    head, compares, sets = APPLY.split("\n\n", 2)
    return f"{head}\n{compares}\nreturn {{'done', ''}}", f"{head}\n{sets}"


@pytest.mark.parametrize(
    ("scripts", "effects"), [((APPLY,), "1"), (in_two_steps(), "2")], ids=["one script", "control: two steps"]
)
def test_overtaken_before_the_script_that_sets(
    store: RedisStore,
    redis_server: Server,
    group: str,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    scripts: Sequence[str],
    effects: str,
) -> None:
    """The next owner handles the same event right before it. What is compared in a step of its own is not so any more."""
    owner = take(store)
    steps = [client.register_script(script) for script in scripts]
    with closing(RedisStore(redis_server.url)) as other:
        other.open(group, Retention())

        def apply(**given: Any) -> Any:
            for step in steps:
                if step is steps[-1]:
                    assert book(other, take(other), group, 0) == [NEW]
                answer = step(**given)
                if answer[0] != "done":
                    break
            return [word.encode() for word in answer]

        monkeypatch.setattr(store._session, "_apply", apply)
        with suppress(StoreFenced):
            book(store, owner, group, 0)
    assert client.get(f"balance:{group}") == effects


def test_same_id_in_two_open_units(store: RedisStore, redis_server: Server, group: str, client: redis.Redis) -> None:
    """Two partitions admit the same id at once: one commits, the other comes again and finds a duplicate."""
    here, there = store.take("orders", [0, 1], "reader")
    with closing(RedisStore(redis_server.url)) as other:
        other.open(group, Retention())
        with pytest.raises(StoreUnavailable, match="meanwhile"), store.unit() as unit:  # noqa: PT012
            assert unit.admit(here, events(0)) == [NEW]
            unit.handle.incr(f"balance:{group}")
            assert book(other, there, group, 0) == [NEW]
    assert book(store, here, group, 0) == [DUPLICATE]
    assert client.get(f"balance:{group}") == "1"


def test_claimed_and_confirmed_by_another_between_the_look_and_the_script(
    store: RedisStore, redis_server: Server, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim has come and is gone again, so it is as it was when it was read: what tells is the id."""
    here, there = store.take("orders", [0, 1], "reader")
    apply = store._session.apply
    with closing(RedisStore(redis_server.url)) as other:
        other.open(group, Retention())
        repeated = EventKey(1, "shop", "event-0")

        def when_the_other_is_done(request: bytes, values: Sequence[bytes]) -> tuple[str, str]:
            monkeypatch.setattr(store._session, "apply", apply)
            assert other.claim(there, [repeated], 60.0) == [NEW]
            other.confirm(there, [repeated])
            return apply(request, values)

        monkeypatch.setattr(store._session, "apply", when_the_other_is_done)
        assert store.claim(here, events(0), 60.0) == [DUPLICATE]


def test_refused_command(store: RedisStore, group: str, client: redis.Redis) -> None:
    """Redis cannot undo: the others are done, the events are booked, and the error says so."""
    client.set(f"text:{group}", "no list")
    with pytest.raises(EffectRefused, match="WRONGTYPE"), store.unit() as unit:  # noqa: PT012
        unit.admit(take(store), events(0))
        unit.handle.incr(f"balance:{group}")
        unit.handle.rpush(f"text:{group}", "x")
        unit.handle.incr(f"balance:{group}")
    assert client.get(f"balance:{group}") == "2"
    assert take(store).next_offset == 1


def test_commands_carry_any_bytes(store: RedisStore, group: str, redis_server: Server) -> None:
    data = bytes(range(256))
    with store.unit() as unit:
        unit.admit(take(store), events(0))
        unit.handle.set(f"bytes:{group}", data)
        unit.handle.execute_command("RPUSH", f"list:{group}", *range(4_000))
        with pytest.raises(ValueError, match="split"):
            unit.handle.rpush(f"list:{group}", *range(6_000))
    with closing(redis.Redis.from_url(redis_server.url)) as client:
        assert client.get(f"bytes:{group}") == data
        assert client.llen(f"list:{group}") == 4_000


@pytest.mark.parametrize("value", [None, True, Decimal("1.5")])
def test_what_redis_has_no_kind_for_fails_the_handlers_own_call(
    store: RedisStore, group: str, client: redis.Redis, value: object
) -> None:
    """At the unit's end it would be nobody's failure, and come again at every start."""
    with store.unit() as unit:
        unit.admit(take(store), events(0))
        unit.handle.incr(f"balance:{group}")
        with pytest.raises(redis.exceptions.DataError), unit.savepoint():
            unit.handle.set(f"key:{group}", value)  # type: ignore[arg-type]
    assert client.get(f"balance:{group}") == "1"
    assert client.get(f"key:{group}") is None


@pytest.mark.parametrize(
    "command",
    [("EVAL", "return redis.call('INCR', KEYS[1])", 1, "key"), ("multi",), ("SUBSCRIBE", "news"), ("NO-SUCH",)],
)
def test_what_no_script_can_run_fails_the_handlers_own_call(
    store: RedisStore, group: str, client: redis.Redis, command: tuple[str | int, ...]
) -> None:
    """At the unit's end the other commands would be done, and the event count as handled."""
    with pytest.raises(ValueError, match="does not run it in a script"), store.unit() as unit:  # noqa: PT012
        unit.admit(take(store), events(0))
        unit.handle.incr(f"balance:{group}")
        unit.handle.execute_command(*command)
    assert client.get(f"balance:{group}") is None
    assert take(store).next_offset is None


def test_a_server_that_tells_of_its_commands_as_no_client_reads_it(
    store: RedisStore, client: redis.Redis, group: str
) -> None:
    """Compatible ones may tell less: that is no failure of the event whose handler gives the first command."""
    asked = store._session.client
    read = asked.response_callbacks["COMMAND"]
    asked.set_response_callback("COMMAND", lambda rows, **options: read([row[:3] for row in rows], **options))
    assert book(store, take(store), group, 0) == [NEW]
    assert client.get(f"balance:{group}") == "1"


def test_the_second_word_of_a_command_tells_whether_it_only_reads(
    store: RedisStore, client: redis.Redis, group: str
) -> None:
    """Redis 7 says so: its XINFO neither reads nor writes, and has sub-commands with flags of their own."""
    asked = store._session.client
    read = asked.response_callbacks["COMMAND"]
    rows = {
        "XINFO": [[b"xinfo|stream", -3, [b"readonly"], 2, 2, 1]],
        "XGROUP": [[b"xgroup|create", -5, [b"write"], 2, 2, 1]],
        "CONFIG": [[b"config|get", -3, [b"noscript"], 0, 0, 0]],
    }

    def as_redis_7(found: list[Any], **options: Any) -> Any:
        told = read(found, **options)
        for name, its in rows.items():
            told[name.lower()] = {"name": name.lower(), "flags": [], "subcommands": its}
        return told

    asked.set_response_callback("COMMAND", as_redis_7)
    with store.unit() as unit:
        unit.admit(take(store), events(0))
        with pytest.raises(ValueError, match="XINFO STREAM: it only reads"):
            unit.handle.xinfo_stream(f"stream:{group}")
        with pytest.raises(ValueError, match="CONFIG GET: this Redis does not run it in a script"):
            unit.handle.execute_command("CONFIG", "get", "maxmemory")
        unit.handle.xgroup_create(f"stream:{group}", "readers", mkstream=True)
    assert [found["name"] for found in client.xinfo_groups(f"stream:{group}")] == ["readers"]


def test_a_command_of_two_words_is_sent_as_two(store: RedisStore, group: str, client: redis.Redis) -> None:
    """redis-py gives them as one."""
    with store.unit() as unit:
        unit.admit(take(store), events(0))
        unit.handle.xgroup_create(f"stream:{group}", "readers", mkstream=True)
    assert [found["name"] for found in client.xinfo_groups(f"stream:{group}")] == ["readers"]


def test_who_looks_at_an_answer_is_told_that_there_is_none(store: RedisStore, group: str) -> None:
    """It would be true for every event, and ``if tx.sadd(key, value): return`` leave out all effects."""
    with store.unit() as unit:
        unit.admit(take(store), events(0))
        answer: Any = unit.handle.set(f"key:{group}", 1, nx=True)
        for look in (bool, list, lambda found: found == 1, str, "{}".format, "%s".__mod__):
            with pytest.raises(TypeError, match="no answer to look at"):
                look(answer)
        assert "no answer yet" in repr(answer)  # for a debugger, and for pytest


@pytest.mark.parametrize(
    "command", [("GET", "key"), ("exists", "key"), ("HGETALL", "key"), ("ZSCORE", "key", "member")]
)
def test_what_only_reads_fails_the_handler_s_own_call(
    store: RedisStore, group: str, client: redis.Redis, command: tuple[str, ...]
) -> None:
    """``if tx.get(key) is None: tx.set(key, 0)`` would never be entered, and the event count as handled without its effect."""
    with pytest.raises(ValueError, match="only reads"), store.unit() as unit:  # noqa: PT012
        unit.admit(take(store), events(0))
        unit.handle.execute_command(*command)
    assert take(store).next_offset is None


def test_emptied_inside_a_unit(store: RedisStore, group: str, client: redis.Redis) -> None:
    owner = take(store)
    with pytest.raises(StoreLost), store.unit() as unit:  # noqa: PT012
        unit.admit(owner, events(0))
        unit.handle.incr(f"balance:{group}")
        client.delete(f"onceflow:{{{group}}}:positions")
    assert client.get(f"balance:{group}") is None


@pytest.mark.faults
def test_server_killed_inside_units(group: str) -> None:
    """SIGKILL before admit, after it and before the commit: after the restart every effect is there once."""
    with running_redis() as server:
        for offset, moment in enumerate(["before", "admitted", "leaving"]):
            with closing(RedisStore(server.url)) as store:
                store.open(group, Retention())
                owner = take(store)
                with pytest.raises((StoreUnavailable, CommitUnknown)), store.unit() as unit:  # noqa: PT012
                    _kill_if(server, moment == "before")
                    unit.admit(owner, events(offset))
                    _kill_if(server, moment == "admitted")
                    unit.handle.incr("balance")
                    _kill_if(server, moment == "leaving")
                server.start()
                again = take(store)
                assert (again.next_offset or 0) == offset
                with store.unit() as unit:
                    assert unit.admit(again, events(offset)) == [NEW]
                    unit.handle.incr("balance")
        with closing(redis.Redis.from_url(server.url)) as client:
            assert client.get("balance") == b"3"


def _kill_if(server: Server, now: bool) -> None:
    if now:
        server.kill()


def test_no_memory_left(group: str) -> None:
    """Redis refuses the script at its first write: nothing of the unit is there, and it can come again."""
    with (
        running_redis() as server,
        closing(redis.Redis.from_url(server.url)) as client,
        closing(RedisStore(server.url)) as store,
    ):
        store.open(group, Retention())
        owner = take(store)
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            book(store, owner, group, 0)
        client.config_set("maxmemory", 0)
        assert client.get(f"balance:{group}") is None
        assert book(store, owner, group, 0) == [NEW]


def test_eviction_is_refused(group: str) -> None:
    with (
        running_redis("--maxmemory-policy", "allkeys-lru") as server,
        pytest.raises(StoreMismatch, match="allkeys-lru"),
    ):
        RedisStore(server.url).open(group, Retention())


def test_a_cluster_is_refused(group: str) -> None:
    with running_redis("--cluster-enabled", "yes") as server, pytest.raises(StoreMismatch, match="Redis Cluster"):
        RedisStore(server.url).open(group, Retention())


@pytest.mark.parametrize(
    ("settings", "durable"),
    [
        (("--appendonly", "no"), False),
        (("--appendfsync", "no"), False),
        (("--appendfsync", "everysec"), True),
        ((), True),
    ],
)
def test_durable_is_what_the_server_says(settings: tuple[str, ...], durable: bool, group: str) -> None:
    with running_redis(*settings) as server, closing(RedisStore(server.url)) as store:
        store.open(group, Retention())
        assert store.capabilities.durable is durable


def test_newer_layout(store: RedisStore, group: str, redis_server: Server, client: redis.Redis) -> None:
    client.set(f"onceflow:{{{group}}}:layout", 99)
    with pytest.raises(StoreMismatch, match="layout 99"):
        RedisStore(redis_server.url).open(group, Retention())


def test_unreachable() -> None:
    with pytest.raises(StoreUnavailable):
        RedisStore("redis://127.0.0.1:1").open("group", Retention())


@pytest.mark.parametrize("way", WAYS)
def test_compact_form_does_not_grow(store: RedisStore, group: str, client: redis.Redis, way: Way) -> None:
    book_numbered(store, take(store), way, 10_000)
    names = {str(name) for name in client.scan_iter(f"onceflow:{{{group}}}:*")}
    assert names == {f"onceflow:{{{group}}}:{name}" for name in ("layout", "positions", "sequences:orders-0")}
    assert client.hlen(f"onceflow:{{{group}}}:sequences:orders-0") == 1


def test_claims_leave_no_keys(store: RedisStore, group: str, client: redis.Redis) -> None:
    """What was claimed, confirmed and expired is gone without a trace."""
    owner = take(store)
    store.claim(owner, events(0, 1, 2), 60.0)
    store.confirm(owner, events(2))
    store.confirm(owner, events(0, 1))
    store.confirm(owner, events(2, 3))
    names = {str(name).rpartition("}:")[2] for name in client.scan_iter(f"onceflow:{{{group}}}:*")}
    assert names == {"layout", "positions", "ids"}
