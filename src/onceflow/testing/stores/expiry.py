"""Expiry: ids go after the time and number that were stated, positions and claims never."""

from __future__ import annotations

from collections.abc import Sequence

from onceflow.reader.stores.interface import EventKey, Ownership, Retention, Store
from onceflow.testing.stores.subject import DUPLICATE, HELD, LEASE_S, NEW, Handle, Lab, eventually, keys, take

_LONG_S = 3600.0


def by_number(lab: Lab) -> None:
    """The newest ids stay, as many as were stated; older ones go."""
    for store, handle in lab.modes(Retention(seconds=None, count=3)):
        owner = take(store)
        for offset in range(10):
            handle(store, owner, keys(offset))
        store.forget_expired()
        assert _again(store, handle, owner, 10, [7, 8, 9]) == [DUPLICATE] * 3, "an id within the number is gone"
        assert _again(store, handle, owner, 20, [0]) == [NEW], "an id beyond the number is still there"


def by_time(lab: Lab) -> None:
    """Ids older than the stated time go."""
    for store, handle in lab.modes(Retention(seconds=0.0)):
        owner = take(store)
        handle(store, owner, keys(*range(10)))
        gone = 0

        def all_gone(store: Store = store) -> bool:
            nonlocal gone
            gone += store.forget_expired()
            return gone >= 10

        eventually(all_gone, "ten ids older than the retention are deleted")
        assert _again(store, handle, owner, 10, [0, 9]) == [NEW, NEW]


def within_time(lab: Lab) -> None:
    """Ids younger than the stated time stay, whatever their number."""
    for store, handle in lab.modes(Retention(seconds=_LONG_S, count=2)):
        _all_stay(store, handle)


def within_number(lab: Lab) -> None:
    """Ids within the stated number stay, whatever their age."""
    for store, handle in lab.modes(Retention(seconds=0.0, count=100)):
        _all_stay(store, handle)


def of_another_group(lab: Lab) -> None:
    """Each group has a retention of its own: one that keeps nothing deletes no other's ids."""
    for store, handle in lab.modes(Retention(seconds=_LONG_S)):
        if not store.capabilities.shared:
            continue
        owner = take(store)
        handle(store, owner, keys(0, 1))
        forgetful = lab.store(Retention(seconds=None, count=0), lab.new_group())
        handle(forgetful, take(forgetful), keys(0))
        eventually(lambda forgetful=forgetful: forgetful.forget_expired() == 0, "nothing is left to delete")  # type: ignore[misc]
        assert _again(store, handle, owner, 2, [0, 1]) == [DUPLICATE] * 2, "expired by the retention of another group"


def without_bounds(lab: Lab) -> None:
    """Without bounds nothing goes."""
    for store, handle in lab.modes(Retention(seconds=None, count=None)):
        _all_stay(store, handle)


def positions_stay(lab: Lab) -> None:
    """Where all ids are gone, the position still knows what was handled."""
    for store, handle in lab.modes(Retention(seconds=None, count=0)):
        owner = take(store)
        handle(store, owner, keys(0, 1, 2))
        eventually(lambda store=store: store.forget_expired() == 0, "nothing is left to delete")  # type: ignore[misc]
        again = take(store)
        assert again.next_offset == 3, "the position expired"
        assert handle(store, again, keys(0, 1, 2)) == [DUPLICATE] * 3, "handled again after its id expired"


def claims_stay(lab: Lab) -> None:
    """A claim, and a confirmation that its position has not passed yet, outlive the ids' retention: their offsets come again."""
    store = lab.store(Retention(seconds=None, count=0))
    owner = take(store)
    store.claim(owner, keys(0, 1), LEASE_S)
    store.confirm(owner, keys(1))
    store.forget_expired()
    elsewhere = [EventKey(2, "shop", "event-0"), EventKey(3, "shop", "event-1")]
    assert store.claim(owner, elsewhere, LEASE_S) == [HELD, DUPLICATE], "expired while its offset can still come again"
    assert store.claim(take(store), keys(0, 1), LEASE_S) == [NEW, DUPLICATE], (
        "expired while its offset can still come again"
    )


def _again(store: Store, handle: Handle, owner: Ownership, start: int, ids: Sequence[int]) -> list[object]:
    return list(
        handle(store, owner, [EventKey(start + place, "shop", f"event-{each}") for place, each in enumerate(ids)])
    )


def _all_stay(store: Store, handle: Handle) -> None:
    owner = take(store)
    for offset in range(10):
        handle(store, owner, keys(offset))  # at different times
    assert store.forget_expired() == 0
    assert _again(store, handle, owner, 10, range(10)) == [DUPLICATE] * 10, "an id within the retention is gone"


CHECKS = (
    by_number,
    by_time,
    within_time,
    within_number,
    of_another_group,
    without_bounds,
    positions_stay,
    claims_stay,
)
