"""The store in memory: for tests, and for readers whose topic is short enough to be read again after each start.

What an object keeps of several groups that used it one after the other is kept apart::

    an event fails, and its dead letter is handled later by the same process, under the group of the letters and with the same id
    in one set of ids it would be a duplicate of itself: counted as handled, and handled by nobody

It is bounded: beyond ``limit`` ids the oldest go, also those that the retention would still keep (then it warns once); and beyond
as many sources with sequences those go that were without an event for longest. No other process has it, so it refuses none: Kafka
does (``reader/fence.py``).

A batch of which nothing is known is claimed and confirmed in one piece: the rules would decide the same of each of its events,
and take most of a reader's time for it. What comes in another way (single events, duplicates, sequences, claims of others)
goes by the rules, for which the pieces are first taken apart.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter

from onceflow.reader.stores import rules
from onceflow.reader.stores.epochs import next_epoch
from onceflow.reader.stores.interface import Capabilities, EventKey, Ownership, Retention, Standing, Unit
from onceflow.reader.stores.tables import EventId, Position, event_id

DEFAULT_LIMIT = 1_000_000
_log = logging.getLogger(__name__)

_Partition = tuple[str, int]
_offset: Callable[[EventKey], int] = itemgetter(EventKey._fields.index("offset"))
_sequence: Callable[[EventKey], int | None] = itemgetter(EventKey._fields.index("sequence"))

_Claim = tuple[_Partition, int, float | None]
"""Whose it is, its offset, and its lease (None: confirmed before something older was). Plain tuples of plain values: the
garbage collector leaves them alone, and there are many."""


@dataclass(slots=True)
class _Piece:
    """A batch that was claimed as one. None of its events is in the ids, in the claims or in another piece."""

    keys: list[EventKey]
    events: set[EventId]
    lease_until: float


class MemoryStore:
    """Keeps positions and ids in this process. ``limit`` bounds, of each group, the ids of events without a sequence, and the
    sources of those with one.
    """

    capabilities = Capabilities(transactional=False, durable=False, shared=False)

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._tables = MemoryTables(limit)
        self._of_groups: dict[str, MemoryTables] = {}

    def open(self, group: str, retention: Retention) -> None:
        """Each group has tables of its own: to the reader of the dead letters no event is one that was handled before."""
        if self._of_groups:
            self._tables = self._of_groups.get(group) or MemoryTables(self._limit)
        self._of_groups[group] = self._tables
        self._tables.retention = retention

    def close(self) -> None:
        """Keeps what it has: the memory ends with the object."""

    def take(self, topic: str, partitions: Sequence[int], owner: str) -> list[Ownership]:  # noqa: ARG002
        return [self._tables.take(topic, partition) for partition in partitions]

    def unit(self) -> AbstractContextManager[Unit]:
        raise NotImplementedError("a store in memory has no transactions: use claim and confirm")

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        start = rules.fence(self._tables, ownership)
        if self._tables.claim_piece(ownership, keys, start, lease_s):
            return [Standing.NEW] * len(keys)
        self._tables.take_apart()
        return rules.claim(self._tables, ownership, keys, lease_s)

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        rules.fence(self._tables, ownership)
        if not self._tables.confirm_piece(ownership, keys):
            self._tables.take_apart()
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
        self._sequences: OrderedDict[tuple[_Partition, str], int] = OrderedDict()  # of each source, latest last
        self._ids: set[EventId] = set()
        self._by_age: deque[tuple[float, list[EventId]]] = (
            deque()
        )  # the same, with when they were handled, oldest first
        self._pieces: dict[_Partition, _Piece] = {}
        self._claims: dict[EventId, _Claim] = {}
        self._open: defaultdict[_Partition, dict[int, EventId]] = defaultdict(dict)  # by offset, in their order
        self._early: defaultdict[_Partition, dict[EventId, EventKey]] = defaultdict(dict)

    def take(self, topic: str, partition: int) -> Ownership:
        """Raises the epoch; the claims of the one before are void."""
        before = self._positions.get((topic, partition), Position(0, None))
        position = Position(next_epoch(before.epoch), before.next_offset)
        self._positions[topic, partition] = position
        self._pieces.pop((topic, partition), None)
        for event in self._open.pop((topic, partition), {}).values():
            del self._claims[event]
        return Ownership(topic, partition, position.epoch, position.next_offset)

    def position(self, topic: str, partition: int) -> Position | None:
        return self._positions.get((topic, partition))

    def move(self, ownership: Ownership, next_offset: int) -> None:
        self._positions[_partition(ownership)] = Position(ownership.epoch, next_offset)

    def claim_piece(self, ownership: Ownership, keys: Sequence[EventKey], start: int, lease_s: float) -> bool:
        """Claims a batch as one, if each of its events is new and nothing else of the partition is open."""
        place = _partition(ownership)
        before = self._pieces.get(place)
        if before is not None and before.keys != [*keys]:
            return False
        events = set(map(event_id, keys))
        is_plain = len(events) == len(keys) > 0 and set(map(_sequence, keys)) == {None}
        if not is_plain or min(map(_offset, keys)) < start or self._open[place] or self._early[place]:
            return False
        others = [piece.events for where, piece in self._pieces.items() if where != place]
        if not all(map(events.isdisjoint, (self._ids, self._claims, *others))):
            return False
        self._pieces[place] = _Piece([*keys], events, time.time() + lease_s)
        return True

    def confirm_piece(self, ownership: Ownership, keys: Sequence[EventKey]) -> bool:
        """Books a batch that was claimed as one, if these are its events."""
        piece = self._pieces.get(_partition(ownership))
        if piece is None or piece.keys != [*keys]:
            return False
        del self._pieces[_partition(ownership)]
        self._add(piece.events)
        self.move(ownership, keys[-1].offset + 1)
        return True

    def take_apart(self) -> None:
        """Makes claims of single events of the pieces."""
        for place, piece in self._pieces.items():
            self._claims.update((event_id(key), (place, key.offset, piece.lease_until)) for key in piece.keys)
            self._add_open(place, [key.offset for key in piece.keys], map(event_id, piece.keys))
        self._pieces.clear()

    def sequences(self, ownership: Ownership, sources: Collection[str]) -> dict[str, int]:
        place = _partition(ownership)
        known = [source for source in sources if (place, source) in self._sequences]
        for source in known:
            self._sequences.move_to_end((place, source))
        return {source: self._sequences[place, source] for source in known}

    def raise_sequences(self, ownership: Ownership, sequences: Mapping[str, int]) -> None:
        place = _partition(ownership)
        for source, number in sequences.items():
            self._sequences[place, source] = number
            self._sequences.move_to_end((place, source))
        while len(self._sequences) > self._limit:
            self._warn()
            self._sequences.popitem(last=False)

    def book(self, events: Collection[EventId]) -> set[EventId]:
        fresh = set(events).difference(self.known(events))
        if fresh:
            self._add(fresh)
        return fresh

    def known(self, events: Collection[EventId]) -> set[EventId]:
        return self._ids.intersection(events)

    def confirmed_early(self, events: Collection[EventId]) -> set[EventId]:
        return {event for event in self._claims.keys() & events if self._claims[event][2] is None}

    def put_claims(self, ownership: Ownership, keys: Mapping[EventId, EventKey], lease_s: float) -> set[EventId]:
        now, place = time.time(), _partition(ownership)
        taken = self._claims.keys() & keys.keys()
        refused = {event for event in taken if not self._is_free(place, event, keys[event], now)}
        self._drop(taken - refused)
        free = keys if not refused else {event: key for event, key in keys.items() if event not in refused}
        offsets = [key.offset for key in free.values()]
        self._claims.update(zip(free, zip(repeat(place), offsets, repeat(now + lease_s)), strict=False))
        self._add_open(place, offsets, free)
        return refused

    def _add_open(self, place: _Partition, offsets: Sequence[int], events: Iterable[EventId]) -> None:
        held = self._open[place]
        in_order = not (held and offsets) or next(reversed(held)) < offsets[0]
        held.update(zip(offsets, events, strict=True))
        if not in_order:
            self._open[place] = dict(sorted(held.items()))

    def lowest_open(self, ownership: Ownership) -> int | None:
        return next(iter(self._open[_partition(ownership)]), None)

    def confirm_early(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        place = _partition(ownership)
        events = {event_id(key): key for key in keys}
        self._drop(self._claims.keys() & events.keys())
        self._claims.update((event, (place, key.offset, None)) for event, key in events.items())
        self._early[place].update(events)

    def early_below(self, ownership: Ownership, offset: int) -> list[EventKey]:
        return [key for key in self._early[_partition(ownership)].values() if key.offset < offset]

    def drop_claims(self, ownership: Ownership, events: Collection[EventId]) -> None:
        place = _partition(ownership)
        self._drop(event for event in events if (claim := self._claims.get(event)) and claim[0] == place)

    def forget_expired(self) -> int:
        """Deletes the oldest ids as long as both bounds are exceeded."""
        seconds, count = self.retention.seconds, self.retention.count
        if seconds is None and count is None:
            return 0
        return self._forget(count or 0, float("inf") if seconds is None else time.time() - seconds)

    def _add(self, fresh: Collection[EventId]) -> None:
        self._ids.update(fresh)
        self._by_age.append((time.time(), list(fresh)))
        self._keep_limit()

    def _forget(self, count: int, before: float) -> int:
        """Deletes ids that were handled ``before``, the oldest first, until no more than ``count`` are left; how many."""
        left = len(self._ids)
        while len(self._ids) > count and self._by_age[0][0] < before:
            oldest = self._by_age[0][1]
            gone = oldest[: len(self._ids) - count]
            self._ids.difference_update(gone)
            del oldest[: len(gone)]
            if not oldest:
                self._by_age.popleft()
        return left - len(self._ids)

    def _is_free(self, place: _Partition, event: EventId, key: EventKey, now: float) -> bool:
        holder, offset, lease_until = self._claims[event]
        return lease_until is not None and ((holder, offset) == (place, key.offset) or lease_until <= now)

    def _drop(self, events: Iterable[EventId]) -> None:
        for event in events:
            place, offset, lease_until = self._claims.pop(event)
            if lease_until is None:
                del self._early[place][event]
            else:
                self._open[place].pop(offset, None)

    def _keep_limit(self) -> None:
        if len(self._ids) <= self._limit:
            return
        self.forget_expired()
        if len(self._ids) > self._limit:
            self._warn()
        self._forget(self._limit, float("inf"))

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "more than %d ids, or sources with sequences, within the retention: the oldest are forgotten",
                self._limit,
            )


def _partition(ownership: Ownership) -> _Partition:
    return (ownership.topic, ownership.partition)
