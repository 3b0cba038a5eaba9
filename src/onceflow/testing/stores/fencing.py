"""The fence: whoever held a partition before can write nothing more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from onceflow.errors import CommitUnknown, StoreError, StoreFenced, StoreUnavailable
from onceflow.reader.stores.interface import Ownership, Store
from onceflow.testing.stores.subject import (
    DUPLICATE,
    LEASE_S,
    NEW,
    PATIENCE_S,
    TOPIC,
    Lab,
    admit,
    eventually,
    keys,
    refused,
    take,
)

_GRACE_S = 1.0  # for a take that the unit of the owner before may hold up: either outcome is checked


def epochs_rise(lab: Lab) -> None:
    """Each take raises the epoch of the partitions that are taken, and of no other."""
    store = lab.store()
    first = take(store, 0, "a")
    other = take(store, 1, "a")
    second = take(lab.second(store), 0, "b")
    assert second.epoch > first.epoch, "the epoch did not rise"
    store.confirm(other, keys(0))


def zombie_cannot_claim(lab: Lab) -> None:
    """An earlier epoch cannot claim."""
    store = lab.store()
    zombie = take(store, owner="a")
    owner = take(lab.second(store), owner="b")
    refused(lambda: store.claim(zombie, keys(0), LEASE_S), StoreFenced)
    assert store.claim(owner, keys(0), LEASE_S) == [NEW], "the zombie's claim was booked"


def zombie_cannot_confirm(lab: Lab) -> None:
    """An earlier epoch cannot confirm what it claimed in time, and its claim holds nobody up."""
    store = lab.store()
    zombie = take(store, owner="a")
    assert store.claim(zombie, keys(0, 1), LEASE_S) == [NEW, NEW]
    other = lab.second(store)
    owner = take(other, owner="b")
    refused(lambda: store.confirm(zombie, keys(0, 1)), StoreFenced)
    assert other.claim(owner, keys(0, 1), LEASE_S) == [NEW, NEW], "the new owner waits for the zombie's lease"


def zombie_cannot_admit(lab: Lab) -> None:
    """An earlier epoch cannot admit, and nothing that it wrote in its unit is there."""
    store = lab.store()
    if not store.capabilities.transactional:
        return
    zombie, kept = take(store, 0, "a"), take(store, 1, "a")
    other = lab.second(store)
    owner = take(other, 0, "b")

    def unit() -> None:
        with store.unit() as unit:
            unit.admit(kept, keys(0, prefix="kept"))
            lab.effects().write(unit.handle, f"{lab.group} zombie")
            unit.admit(zombie, keys(0))

    refused(unit, StoreFenced)
    assert lab.written() == [], "the zombie's effect is there"
    assert admit(other, owner, keys(0)) == [NEW], "the zombie's event was booked"
    assert admit(store, kept, keys(0, prefix="kept")) == [NEW], "a part of the refused unit was booked"


def moved_inside_a_unit(lab: Lab) -> None:
    """The partition moves between a unit's admit and its commit: the unit counts as a whole before the move, or not at all."""
    store = lab.store()
    if not (store.capabilities.transactional and store.capabilities.shared):
        return
    zombie, other = take(store, owner="a"), lab.store()
    with ThreadPoolExecutor(1) as pool:
        moved = threading.Event()
        outcome: StoreError | None = None
        try:
            with store.unit() as unit:
                assert unit.admit(zombie, keys(0)) == [NEW]
                lab.effects().write(unit.handle, f"{lab.group} once")
                taken = pool.submit(_take_and_tell, other, moved)
                moved.wait(_GRACE_S)
        except (StoreFenced, StoreUnavailable, CommitUnknown) as error:
            outcome = error
        owner = taken.result(PATIENCE_S)
    _exactly_once(lab, other, owner, outcome)


def _take_and_tell(store: Store, moved: threading.Event) -> Ownership:
    owner = take(store, owner="b")
    moved.set()
    return owner


def _exactly_once(lab: Lab, store: Store, owner: Ownership, outcome: StoreError | None) -> None:
    committed = owner.next_offset == 1
    assert committed == bool(lab.written()), "effect and position disagree"
    if not isinstance(outcome, CommitUnknown):
        assert committed == (outcome is None), f"committed: {committed}, but the unit's exit said {outcome!r}"
    with store.unit() as unit:
        standings = unit.admit(owner, keys(0))
        if standings == [NEW]:
            lab.effects().write(unit.handle, f"{lab.group} once")
    assert standings == [DUPLICATE if committed else NEW]
    assert lab.written() == [f"{lab.group} once"], "not exactly once"


def racing_takes(lab: Lab) -> None:
    """Many takes at once: all epochs differ, and only the highest can write."""
    store = lab.store()
    if not store.capabilities.shared:
        return
    stores = [store, lab.store(), lab.store()]
    with ThreadPoolExecutor(len(stores)) as pool:
        rounds = [pool.submit(lambda each=each: [take(each, owner="racer") for _ in range(5)]) for each in stores]  # type: ignore[misc]
        owners = sorted((owner for each in rounds for owner in each.result(PATIENCE_S)), key=lambda owner: owner.epoch)
    assert len({owner.epoch for owner in owners}) == len(owners), "two takes got the same epoch"
    for zombie in owners[:-1]:
        refused(lambda zombie=zombie: store.claim(zombie, keys(0), LEASE_S), StoreFenced)  # type: ignore[misc]
    assert store.claim(owners[-1], keys(0), LEASE_S) == [NEW]


def same_event_at_once(lab: Lab) -> None:
    """Owners of two partitions meet the same events at once: each is new for exactly one of them, who confirms it at once.

    The other one may have looked before the claim, and claim behind the confirmation, when no claim is there any more.
    """
    first = lab.store()
    if not first.capabilities.shared:
        return
    second, together = lab.store(), threading.Barrier(2)
    owners = first.take(TOPIC, [0, 1], "reader")

    def race(store: Store, owner: Ownership) -> list[bool]:
        won = []
        try:
            for key in keys(*range(100)):
                together.wait(PATIENCE_S)  # each time: a thread that fell behind would meet no event at once any more
                won.append(store.claim(owner, [key], LEASE_S)[0] is NEW)
                if won[-1]:
                    store.confirm(owner, [key])
        except threading.BrokenBarrierError:  # the other one has failed, and says why
            return won
        except BaseException:
            together.abort()
            raise
        return won

    with ThreadPoolExecutor(2) as pool:
        won = [pool.submit(race, store, owner) for store, owner in zip((first, second), owners, strict=True)]
        both = zip(*(each.result(PATIENCE_S) for each in won), strict=True)
    assert all(sum(pair) == 1 for pair in both), "an event was new for both, or for none"


def same_event_in_two_units(lab: Lab) -> None:
    """Owners of two partitions admit the same event in units that are open at once: its effect is there once."""
    first = lab.store()
    if not (first.capabilities.transactional and first.capabilities.shared):
        return
    second, admitted = lab.store(), threading.Event()
    owner, other = first.take(TOPIC, [0, 1], "reader")

    def book(store: Store, owner: Ownership, meanwhile: Callable[[], object]) -> bool:
        with suppress(StoreUnavailable, CommitUnknown), store.unit() as unit:
            if unit.admit(owner, keys(0)) == [NEW]:
                lab.effects().write(unit.handle, f"{lab.group} once")
            meanwhile()
            return True
        return False

    def book_at_last() -> None:  # as a reader does it: what was refused comes again
        eventually(lambda: book(second, other, admitted.set), "a unit is committed")

    with ThreadPoolExecutor(1) as pool:
        booked: list[Future[None]] = []

        def wait_for_the_other() -> None:
            booked.append(pool.submit(book_at_last))
            admitted.wait(_GRACE_S)  # a store that locks lets it in only after this unit

        book(first, owner, wait_for_the_other)
        assert booked, "a unit was refused that nobody disturbed"
        booked[0].result(PATIENCE_S)
    assert lab.written() == [f"{lab.group} once"], "not exactly once"


CHECKS = (
    epochs_rise,
    zombie_cannot_claim,
    zombie_cannot_confirm,
    zombie_cannot_admit,
    moved_inside_a_unit,
    racing_takes,
    same_event_at_once,
    same_event_in_two_units,
)
