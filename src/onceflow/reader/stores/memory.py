"""The store in memory: for tests, and for readers whose topic is short enough to be read again after each start.

It is bounded: beyond ``limit`` ids the oldest go, also those that the retention would still keep (then it warns once).
"""

from __future__ import annotations

import bisect
import logging
import time
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from onceflow.reader.stores import rules
from onceflow.reader.stores.epochs import next_epoch
from onceflow.reader.stores.interface import Capabilities, EventKey, Ownership, Retention, Standing, Unit
from onceflow.reader.stores.tables import EventId, Position, event_id

DEFAULT_LIMIT = 1_000_000
_log = logging.getLogger(__name__)

_Partition = tuple[str, int]


@dataclass(slots=True)
class _Claim:
    partition: _Partition
    key: EventKey
    lease_until: float | None  # None: confirmed before something older was


class MemoryStore:
    """Keeps positions and ids in this process. ``limit`` bounds the ids of events without a sequence."""

    capabilities = Capabilities(transactional=False, durable=False, shared=False)

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._tables = MemoryTables(limit)

    def open(self, group: str, retention: Retention) -> None:  # noqa: ARG002 (one object is one group)
        self._tables.retention = retention

    def close(self) -> None:
        """Keeps what it has: the memory ends with the object."""

    def take(self, topic: str, partitions: Sequence[int], owner: str) -> list[Ownership]:  # noqa: ARG002
        return [self._tables.take(topic, partition) for partition in partitions]

    def unit(self) -> AbstractContextManager[Unit]:
        raise NotImplementedError("a store in memory has no transactions: use claim and confirm")

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        return rules.claim(self._tables, ownership, keys, lease_s)

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        rules.confirm(self._tables, ownership, keys)

    def forget_expired(self) -> int:
        return self._tables.forget_expired()


class MemoryTables:
    """The tables as dictionaries. Nothing in the rules fails between two writes, so there is nothing to roll back."""

    def __init__(self, limit: int) -> None:
        self.retention = Retention()
        self._limit = limit
        self._warned = False
        self._positions: dict[_Partition, Position] = {}
        self._sequences: defaultdict[_Partition, dict[str, int]] = defaultdict(dict)
        self._ids: OrderedDict[EventId, float] = OrderedDict()  # when it was handled, oldest first
        self._claims: dict[EventId, _Claim] = {}
        self._open: defaultdict[_Partition, list[tuple[int, EventId]]] = defaultdict(list)  # sorted
        self._early: defaultdict[_Partition, dict[EventId, EventKey]] = defaultdict(dict)

    def take(self, topic: str, partition: int) -> Ownership:
        """Raises the epoch; the claims of the one before are void."""
        before = self._positions.get((topic, partition), Position(0, None))
        position = Position(next_epoch(before.epoch), before.next_offset)
        self._positions[topic, partition] = position
        for _, event in self._open.pop((topic, partition), []):
            del self._claims[event]
        return Ownership(topic, partition, position.epoch, position.next_offset)

    def position(self, topic: str, partition: int) -> Position | None:
        return self._positions.get((topic, partition))

    def move(self, ownership: Ownership, next_offset: int) -> None:
        self._positions[_partition(ownership)] = Position(ownership.epoch, next_offset)

    def sequences(self, ownership: Ownership, sources: Collection[str]) -> dict[str, int]:
        numbers = self._sequences[_partition(ownership)]
        return {source: numbers[source] for source in sources if source in numbers}

    def raise_sequences(self, ownership: Ownership, sequences: Mapping[str, int]) -> None:
        self._sequences[_partition(ownership)].update(sequences)

    def book(self, events: Collection[EventId]) -> set[EventId]:
        fresh = {event for event in events if event not in self._ids}
        self._ids.update(dict.fromkeys(fresh, time.time()))
        self._keep_limit()
        return fresh

    def known(self, events: Collection[EventId]) -> set[EventId]:
        return {event for event in events if event in self._ids}

    def confirmed_early(self, events: Collection[EventId]) -> set[EventId]:
        found = ((event, self._claims.get(event)) for event in events)
        return {event for event, claim in found if claim is not None and claim.lease_until is None}

    def put_claims(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> set[EventId]:
        now = time.time()
        free = [key for key in keys if self._is_free(ownership, key, now)]
        for key in free:
            self._drop(event_id(key))
            self._claims[event_id(key)] = _Claim(_partition(ownership), key, now + lease_s)
            bisect.insort(self._open[_partition(ownership)], (key.offset, event_id(key)))
        return {event_id(key) for key in free}

    def open_claims(self, ownership: Ownership, limit: int) -> list[tuple[int, EventId]]:
        return self._open[_partition(ownership)][:limit]

    def confirm_early(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        for key in keys:
            self._drop(event_id(key))
            self._claims[event_id(key)] = _Claim(_partition(ownership), key, None)
            self._early[_partition(ownership)][event_id(key)] = key

    def early_below(self, ownership: Ownership, offset: int) -> list[EventKey]:
        return [key for key in self._early[_partition(ownership)].values() if key.offset < offset]

    def drop_claims(self, ownership: Ownership, events: Collection[EventId]) -> None:
        for event in events:
            if (claim := self._claims.get(event)) and claim.partition == _partition(ownership):
                self._drop(event)

    def forget_expired(self) -> int:
        """Deletes the oldest ids as long as both bounds are exceeded."""
        seconds, count = self.retention.seconds, self.retention.count
        if seconds is None and count is None:
            return 0
        newest = float("inf") if seconds is None else time.time() - seconds
        before = len(self._ids)
        while len(self._ids) > (count or 0) and next(iter(self._ids.values())) < newest:
            self._ids.popitem(last=False)
        return before - len(self._ids)

    def _is_free(self, ownership: Ownership, key: EventKey, now: float) -> bool:
        claim = self._claims.get(event_id(key))
        if claim is None:
            return True
        is_same = claim.partition == _partition(ownership) and claim.key.offset == key.offset
        return claim.lease_until is not None and (is_same or claim.lease_until <= now)

    def _drop(self, event: EventId) -> None:
        claim = self._claims.pop(event, None)
        if claim is None:
            return
        if claim.lease_until is None:
            del self._early[claim.partition][event]
        else:
            held = self._open[claim.partition]
            del held[bisect.bisect_left(held, (claim.key.offset, event))]

    def _keep_limit(self) -> None:
        if len(self._ids) > self._limit:
            self.forget_expired()
        if len(self._ids) > self._limit and not self._warned:
            self._warned = True
            _log.warning("more than %d ids within the retention: the oldest are forgotten", self._limit)
        while len(self._ids) > self._limit:
            self._ids.popitem(last=False)


def _partition(ownership: Ownership) -> _Partition:
    return (ownership.topic, ownership.partition)
