"""Where a reader begins when Kafka is ahead of the store: effects that were lost with it are never booked as handled."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from confluent_kafka import TopicPartition
from tests.reader.servers import running_redis

from onceflow.errors import StoreLost
from onceflow.reader.assignment import Assignment, _start
from onceflow.reader.lane import Lane
from onceflow.reader.offsets import Committed
from onceflow.reader.patience import Stopped
from onceflow.reader.reader import Reader
from onceflow.reader.stores.interface import EventKey, Ownership, Store
from onceflow.reader.stores.memory import MemoryStore
from onceflow.reader.stores.redis import RedisStore
from onceflow.stop_flag import StopFlag


def start(store: Store, ownership: Ownership, rebuilt: list[Ownership], **options: Any) -> int:
    """Where it begins in a partition of which Kafka knows offset 3."""
    settings = Reader("t", group="g", store=store, **options)._settings
    stop = StopFlag()
    assignment = Assignment(
        settings, store, "reader", lambda owner, *_: rebuilt.append(owner), stop, lambda step: None, lambda lane: None
    )
    told = Committed(3, 3)
    return _start(assignment._begun(ownership, told), told)


def test_effects_in_a_redis_that_forgets_are_not_booked_as_handled() -> None:
    """It loses the effects with its ids: what is right then only the user knows."""
    rebuilt: list[Ownership] = []
    with running_redis("--appendonly", "no") as server, closing(RedisStore(server.url)) as store:
        settings = Reader("t", group="g", store=store)._settings
        store.open("g", settings.retention)
        (owner,) = store.take("t", [0], "reader")
        with store.unit() as unit:
            unit.admit(owner, [EventKey(offset, "s", str(offset)) for offset in range(3)])
            unit.handle.incrby("balance", 3)
        server.kill()
        server.start()
        with closing(redis.Redis.from_url(server.url)) as client:
            assert client.get("balance") is None
        store.open("g", settings.retention)
        (owner,) = store.take("t", [0], "reader")
        assert (owner.next_offset, store.capabilities.durable) == (None, False)
        with pytest.raises(StoreLost, match="before offset 3, the store knows of nothing"):
            start(store, owner, rebuilt)
        assert start(store, owner, rebuilt, lost_store="replay") < 0  # the beginning
        assert not rebuilt
        assert start(store, owner, rebuilt, lost_store="rebuild") == 3
        assert rebuilt == [owner]
        assert store.take("t", [0], "reader")[0].next_offset == 3


def test_a_store_without_effects_is_rebuilt_without_a_word() -> None:
    rebuilt: list[Ownership] = []
    store = MemoryStore()
    (owner,) = store.take("t", [0], "reader")
    assert start(store, owner, rebuilt) == 3
    assert rebuilt == [owner]


def test_behind_its_end_the_callbacks_touch_no_store() -> None:
    """They come on another thread, when a broker wakes that had kept librdkafka from closing; the store is closed by then."""
    settled: list[Lane] = []
    store = MemoryStore()
    settings = Reader("t", group="g", store=store)._settings
    assignment = Assignment(settings, store, "reader", lambda *_: None, StopFlag(), lambda step: None, settled.append)
    nobody: Any = SimpleNamespace()  # and no position that Kafka could be told
    store.open("g", settings.retention)
    places = [("t", 0), ("t", 1)]
    assignment.lanes = {(owner.topic, owner.partition): Lane(owner, None, None) for owner in assignment.take(places)}
    assignment.end()
    assert len(settled) == len(places)
    store.close()
    assignment.revoked(nobody, [TopicPartition("t", 0)])
    assignment.lost(nobody, [TopicPartition("t", 1)])
    with pytest.raises(Stopped):
        assignment.assigned(nobody, [TopicPartition("t", 0)])
    assert len(settled) == len(places)
    assert not assignment.lanes
