"""What admit, claim and confirm do, written once for all stores over ``tables.py``.

Hazards, as sequences of events::

    A's unit reads its epoch, A stops; B takes the partition; A goes on and writes
    the row with the epoch is locked by the read and stays locked until the end of the unit (or is compared once more then)

    readers of two partitions meet the same id at once (a source repeated itself to another partition)
    ``book`` and ``put_claims`` answer what *this* transaction added: one of the two adds it, the other sees a duplicate

    two readers: A claims an id, confirms it, and its claim row goes away; B looked into ``ids`` before that, and claims after
    ``claim`` writes its claims first and looks into ``ids`` then: what A confirmed is seen, and the new claim taken back

    offsets 10 and 11 are claimed, 11 is confirmed first, the process dies
    the position stays at 10, and 11 stays a confirmed claim: 10 comes again, 11 is a duplicate
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onceflow.errors import StoreFenced, StoreLost
from onceflow.reader.stores.interface import EventKey, Ownership, Standing
from onceflow.reader.stores.tables import EventId, Position, Tables, event_id, storable

NEW, DUPLICATE, HELD = Standing.NEW, Standing.DUPLICATE, Standing.HELD


def admit(tables: Tables, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
    """Books events as handled and moves the position behind the last."""
    start = fence(tables, ownership)
    keys = storable(keys)
    pending = [key for key in keys if key.offset >= start]
    if not pending:
        return [DUPLICATE] * len(keys)
    handled = tables.confirmed_early([event_id(key) for key in pending])
    plain = {event_id(key) for key in pending if key.sequence is None} - handled
    sequences = _sequences(tables, ownership, pending)
    memory = _Memory(start, handled | (plain - tables.book(plain)), dict(sequences))
    standings = [NEW if memory.is_new(key) else DUPLICATE for key in keys]
    _raise_sequences(tables, ownership, sequences, memory.sequences)
    tables.move(ownership, pending[-1].offset + 1)
    return standings


def claim(tables: Tables, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
    """Books events as being handled.

    The same event twice in one call: the second is a DUPLICATE, because the position cannot pass the first unconfirmed.
    """
    keys = storable(keys)
    memory = _Memory(fence(tables, ownership), set(), _sequences(tables, ownership, keys))
    candidates = [key for key in keys if memory.is_new(key)]
    claimed = tables.put_claims(ownership, candidates, lease_s)
    known = tables.known([event_id(key) for key in candidates if key.sequence is None])
    tables.drop_claims(ownership, claimed & known)
    refused = [event for key in candidates if (event := event_id(key)) not in claimed]
    settled = known | tables.confirmed_early(refused)
    answers = {key.offset: _standing(event_id(key), claimed, settled) for key in candidates}
    return [answers.get(key.offset, DUPLICATE) for key in keys]


def confirm(tables: Tables, ownership: Ownership, keys: Sequence[EventKey]) -> None:
    """Books events as handled, claimed or not, and moves the position behind the last, but never past an open claim."""
    start = fence(tables, ownership)
    pending = [key for key in storable(keys) if key.offset >= start]
    horizon = _lowest_open(tables, ownership, {event_id(key) for key in pending})
    done = [key for key in pending if horizon is None or key.offset < horizon]
    early = pending[len(done) :]
    if early:
        tables.confirm_early(ownership, early)
    if done:
        _settle(tables, ownership, done)


def fence(tables: Tables, ownership: Ownership) -> int:
    """The partition's position. Raises StoreFenced if its epoch is not the caller's, StoreLost if there is none."""
    position = tables.position(ownership.topic, ownership.partition)
    if position is None:
        raise lost(ownership)
    if position.epoch != ownership.epoch:
        raise fenced(ownership, position)
    return position.next_offset or 0


def fenced(ownership: Ownership, position: Position) -> StoreFenced:
    """The error of a reader whose partition has moved."""
    return StoreFenced(
        f"{ownership.topic}-{ownership.partition} is owned under epoch {position.epoch}, not {ownership.epoch} any more",
        action="nothing: another reader handles its events",
        topic=ownership.topic,
        partition=ownership.partition,
        epoch=ownership.epoch,
        current_epoch=position.epoch,
    )


def lost(ownership: Ownership) -> StoreLost:
    """The error of a store that was emptied under a running reader."""
    return StoreLost(
        f"the store does not know {ownership.topic}-{ownership.partition}, though epoch {ownership.epoch} was taken in it",
        action="restore the store, or start again and say how to go on",
        topic=ownership.topic,
        partition=ownership.partition,
        epoch=ownership.epoch,
    )


@dataclass(slots=True)
class _Memory:
    """What is known before the first key of a call, and remembers each key for those after it."""

    start: int
    events: set[EventId]
    sequences: dict[str, int]

    def is_new(self, key: EventKey) -> bool:
        event = (key.source, key.id)
        if key.offset < self.start or event in self.events:
            return False
        self.events.add(event)
        if key.sequence is None:
            return True
        highest = self.sequences.get(key.source)
        if highest is not None and key.sequence <= highest:
            return False
        self.sequences[key.source] = key.sequence
        return True


def _settle(tables: Tables, ownership: Ownership, done: Sequence[EventKey]) -> None:
    """Moves handled events out of the claims, and the position behind the last.

    What was confirmed early and lies below goes with them; what lies above waits: a reader that took the partition after a
    crash has perhaps not read yet what stands in between.
    """
    last = done[-1].offset
    settled = [*done, *tables.early_below(ownership, last)]
    tables.book({event_id(key) for key in settled if key.sequence is None})
    before = _sequences(tables, ownership, settled)
    after = dict(before)
    for key in settled:
        if key.sequence is not None:
            after[key.source] = max(key.sequence, after.get(key.source, key.sequence))
    _raise_sequences(tables, ownership, before, after)
    tables.drop_claims(ownership, [event_id(key) for key in settled])
    tables.move(ownership, last + 1)


def _lowest_open(tables: Tables, ownership: Ownership, besides: Collection[EventId]) -> int | None:
    """The lowest offset that stays claimed when ``besides`` are confirmed."""
    lowest = tables.open_claims(ownership, limit=len(besides) + 1)
    return next((offset for offset, event in lowest if event not in besides), None)


def _standing(event: EventId, claimed: Container[EventId], settled: Container[EventId]) -> Standing:
    if event in settled:
        return DUPLICATE
    return NEW if event in claimed else HELD


def _sequences(tables: Tables, ownership: Ownership, keys: Iterable[EventKey]) -> dict[str, int]:
    sources = {key.source for key in keys if key.sequence is not None}
    return tables.sequences(ownership, sources) if sources else {}


def _raise_sequences(tables: Tables, ownership: Ownership, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    raised = {source: number for source, number in after.items() if before.get(source) != number}
    if raised:
        tables.raise_sequences(ownership, raised)
