"""What admit, claim and confirm do, written once for all stores over ``tables.py``.

Hazards, as sequences of events::

    A's unit reads its epoch, A stops; B takes the partition; A goes on and writes
    the row with the epoch is locked by the read and stays locked until the end of the unit (or is compared once more then)

    readers of two partitions meet the same id at once (a source repeated itself to another partition)
    ``book`` and ``put_claims`` answer what *this* transaction added: one of the two adds it, the other sees a duplicate

    two readers: A claims an id, confirms it, and its claim row goes away; B looked into ``ids`` before that, and claims after
    ``claim`` writes its claims first and looks into ``ids`` then: what A confirmed is seen, and the new claim taken back. (Where
    writes are collected, in Redis, the look comes first all the same: it is compared when they are made)

    the store knew of offset 100 and knows of 90, under the same epoch (``Ownership`` says how)
    what is booked next would move the position over the gap: each unit, claim and confirmation looks, and refuses

    offsets 10 and 11 are claimed, 11 is confirmed first, the process dies
    the position stays at 10, and 11 stays a confirmed claim: 10 comes again, 11 is a duplicate
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress

from onceflow.errors import StoreFenced, StoreLost
from onceflow.reader.stores.interface import EventKey, Ownership, Standing
from onceflow.reader.stores.tables import EventId, Position, Tables, event_id

NEW, DUPLICATE, HELD = Standing.NEW, Standing.DUPLICATE, Standing.HELD
_BELOW_ALL = -1


def admit(tables: Tables, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
    """Books events as handled and moves the position behind the last."""
    start = fence(tables, ownership)
    if not keys or keys[-1].offset < start:
        return [DUPLICATE] * len(keys)
    events = list(map(event_id, keys))
    handled = tables.confirmed_early(events)
    plain = {
        event for event, key in zip(events, keys, strict=True) if key.sequence is None and key.offset >= start
    } - handled
    before = _sequences(tables, ownership, keys)
    after = dict(before)
    new = _are_new(events, keys, start, handled | (plain - tables.book(plain)), after)
    _raise_sequences(tables, ownership, before, after)
    tables.move(ownership, keys[-1].offset + 1)
    return [NEW if each else DUPLICATE for each in new]


def claim(tables: Tables, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
    """Books events as being handled.

    The same event twice in one call: the second is a DUPLICATE, because the position cannot pass the first unconfirmed.
    """
    start = fence(tables, ownership)
    events = list(map(event_id, keys))
    new = _are_new(events, keys, start, set(), _sequences(tables, ownership, keys))
    candidates = dict(compress(zip(events, keys, strict=True), new))
    refused = tables.put_claims(ownership, candidates, lease_s)
    known = tables.known([event for event, key in candidates.items() if key.sequence is None])
    tables.drop_claims(ownership, known - refused)
    answers = dict.fromkeys(refused, HELD) | dict.fromkeys(known | tables.confirmed_early(refused), DUPLICATE)
    return [answers.get(event, NEW) if is_new else DUPLICATE for event, is_new in zip(events, new, strict=True)]


def confirm(tables: Tables, ownership: Ownership, keys: Sequence[EventKey]) -> None:
    """Books events as handled, claimed or not, and moves the position behind the last, but never past an open claim."""
    start = fence(tables, ownership)
    pending = [key for key in keys if key.offset >= start]
    tables.drop_claims(ownership, list(map(event_id, pending)))
    horizon = tables.lowest_open(ownership)
    done = [key for key in pending if horizon is None or key.offset < horizon]
    early = pending[len(done) :]
    if early:  # an id that stands there twice is kept once
        tables.confirm_early(ownership, list({event_id(key): key for key in early}.values()))
    if done:
        _settle(tables, ownership, done)


def fence(tables: Tables, ownership: Ownership) -> int:
    """The partition's position, or below every event where nothing was ever booked: so what is booked in front of the first event
    makes 0 the position. Raises StoreFenced if its epoch is not the caller's, StoreLost if the partition was never taken, or its
    position is below the one that the caller knows of.
    """
    position = tables.position(ownership.topic, ownership.partition)
    if position is None:
        raise lost(ownership)
    if position.epoch != ownership.epoch:
        raise fenced(ownership, position)
    check_not_behind(ownership, position.next_offset)
    return _BELOW_ALL if position.next_offset is None else position.next_offset


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


def check_not_behind(ownership: Ownership, next_offset: int | None) -> None:
    """Raises StoreLost for a store that has this position and had the owner's."""
    known, found = ownership.next_offset or 0, next_offset or 0
    if found < known:
        raise StoreLost(
            f"{ownership.topic}-{ownership.partition}: the store had handled the events before offset {known}, and knows of "
            f"those before {found} now: it was restored, or failed over to a server that lagged",
            action="restore it, or start again and say how to go on (lost_store)",
            topic=ownership.topic,
            partition=ownership.partition,
            known=known,
            position=found,
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


def _are_new(
    events: Iterable[EventId], keys: Iterable[EventKey], start: int, seen: set[EventId], highest: dict[str, int]
) -> list[bool]:
    """Whether each is new, to what was known before (position, events, sequences) and to those in front of it.

    It adds to ``seen`` and ``highest``.
    """
    found = []
    for event, (offset, source, _, sequence) in zip(events, keys, strict=True):
        is_new = offset >= start and event not in seen
        if is_new:
            seen.add(event)
            if sequence is not None:
                is_new = source not in highest or sequence > highest[source]
                if is_new:
                    highest[source] = sequence
        found.append(is_new)
    return found


def _settle(tables: Tables, ownership: Ownership, done: Sequence[EventKey]) -> None:
    """Moves handled events out of the claims, and the position behind the last.

    What was confirmed early and lies below goes with them; what lies above waits: a reader that took the partition after a
    crash has perhaps not read yet what stands in between.
    """
    last = done[-1].offset
    early = tables.early_below(ownership, last)
    tables.drop_claims(ownership, list(map(event_id, early)))
    settled = [*done, *early]
    tables.book(_plain(settled))
    before = _sequences(tables, ownership, settled)
    after = dict(before)
    for key in settled:
        if key.sequence is not None:
            after[key.source] = max(key.sequence, after.get(key.source, key.sequence))
    _raise_sequences(tables, ownership, before, after)
    tables.move(ownership, last + 1)


def _plain(keys: Iterable[EventKey]) -> set[EventId]:
    """Those that are known by their id: they have no sequence."""
    return {event_id(key) for key in keys if key.sequence is None}


def _sequences(tables: Tables, ownership: Ownership, keys: Iterable[EventKey]) -> dict[str, int]:
    sources = {key.source for key in keys if key.sequence is not None}
    return tables.sequences(ownership, sources) if sources else {}


def _raise_sequences(tables: Tables, ownership: Ownership, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    raised = {source: number for source, number in after.items() if before.get(source) != number}
    if raised:
        tables.raise_sequences(ownership, raised)
