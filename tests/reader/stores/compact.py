"""Events of one source whose ids rise, booked in each way there is: what a store keeps of them is one number."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onceflow.reader.stores.interface import EventKey, Ownership, Standing, Store

Way = Callable[[Store, Ownership, Sequence[EventKey]], list[Standing]]
BATCH = 5_000


def admitted(store: Store, owner: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
    """In a unit."""
    with store.unit() as unit:
        return unit.admit(owner, keys)


def confirmed(store: Store, owner: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
    """Claimed, and confirmed together."""
    found = store.claim(owner, keys, 60)
    store.confirm(owner, keys)
    return found


def confirmed_early(store: Store, owner: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
    """Claimed, and those in the middle confirmed before the others: they wait in the store until these are."""
    found = store.claim(owner, keys, 60)
    half = len(keys) // 2
    store.confirm(owner, keys[half:-1])
    store.confirm(owner, [*keys[:half], keys[-1]])
    return found


CLAIMS: list[Way] = [confirmed, confirmed_early]
WAYS: list[Way] = [admitted, *CLAIMS]


def book_numbered(store: Store, owner: Ownership, way: Way, count: int) -> None:
    """Events 0 to ``count``, all of them new."""
    for start in range(0, count, BATCH):
        keys = [EventKey(number, "shop", str(number), number) for number in range(start, start + BATCH)]
        assert way(store, owner, keys) == [Standing.NEW] * BATCH
