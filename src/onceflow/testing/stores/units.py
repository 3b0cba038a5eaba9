"""The transactional inbox: effect, ids and position are there together, or none of them is."""

from __future__ import annotations

from onceflow.reader.stores.interface import EventKey, Store
from onceflow.testing.stores.subject import DUPLICATE, LEASE_S, NEW, Lab, admit, keys, take


class Mishap(Exception):
    """What a handler of these checks raises."""


def together(lab: Lab) -> None:
    """Leaving the unit commits all of it; before that nothing of it is seen."""
    if (store := _transactional(lab)) is None:
        return
    owner = take(store)
    with store.unit() as unit:
        assert unit.admit(owner, keys(0, 1)) == [NEW, NEW]
        lab.effects().write(unit.handle, f"{lab.group} 0")
        lab.effects().write(unit.handle, f"{lab.group} 1")
        assert lab.written() == [], "seen before the commit"
    assert lab.written() == [f"{lab.group} 0", f"{lab.group} 1"]
    assert take(store).next_offset == 2


def exception_undoes_all(lab: Lab) -> None:
    """An exception leaves no effect, no id and no position, and comes out as it is."""
    if (store := _transactional(lab)) is None:
        return
    owner = take(store)
    try:
        with store.unit() as unit:
            unit.admit(owner, keys(0))
            lab.effects().write(unit.handle, f"{lab.group} lost")
            raise Mishap
    except Mishap:
        pass
    else:
        raise AssertionError("the exception did not come out")
    assert lab.written() == [], "the effect is there"
    again = take(store)
    assert again.next_offset is None, "the position moved"
    assert admit(store, again, keys(0)) == [NEW], "the id was booked"


def savepoint_undoes_a_part(lab: Lab) -> None:
    """An exception inside a savepoint undoes the effects written there, and nothing else of the unit."""
    if (store := _transactional(lab)) is None:
        return
    owner = take(store)
    with store.unit() as unit:
        unit.admit(owner, keys(0, 1, 2))
        with unit.savepoint():
            lab.effects().write(unit.handle, f"{lab.group} 0")
        try:
            with unit.savepoint():
                lab.effects().write(unit.handle, f"{lab.group} 1")
                raise Mishap
        except Mishap:
            pass
        with unit.savepoint():
            lab.effects().write(unit.handle, f"{lab.group} 2")
    assert lab.written() == [f"{lab.group} 0", f"{lab.group} 2"]
    assert take(store).next_offset == 3


def several_partitions(lab: Lab) -> None:
    """One unit admits events of several partitions, one of them twice, and sees what it admitted itself."""
    if (store := _transactional(lab)) is None:
        return
    first, second = store.take("orders", [0, 1], "reader")
    with store.unit() as unit:
        assert unit.admit(first, keys(0, 1)) == [NEW, NEW]
        assert unit.admit(second, [*keys(0), *keys(1, prefix="other")]) == [DUPLICATE, NEW], "blind to its own unit"
        assert unit.admit(first, keys(1, 2)) == [DUPLICATE, NEW], "blind to its own unit"
    assert [each.next_offset for each in store.take("orders", [0, 1], "reader")] == [3, 2]
    assert admit(store, take(store), keys(3, prefix="event")) == [NEW]


def after_claims(lab: Lab) -> None:
    """A group that claimed before changes to units: what was confirmed before its position passed it is a duplicate for them."""
    if (store := _transactional(lab)) is None:
        return
    owner, other = store.take("orders", [0, 1], "reader")
    store.claim(owner, keys(0, 1), LEASE_S)
    store.confirm(owner, keys(1))
    elsewhere = [EventKey(7, "shop", "event-1"), EventKey(8, "shop", "event-8")]
    assert admit(store, other, elsewhere) == [DUPLICATE, NEW], "confirmed, and handled again in another partition"
    assert admit(store, take(store), keys(0, 1, 2)) == [NEW, DUPLICATE, NEW], "confirmed, and handled again"


def goes_on_after_a_failure(lab: Lab) -> None:
    """A unit that failed does not harm the next one."""
    if (store := _transactional(lab)) is None:
        return
    owner = take(store)
    for offset in range(3):
        _failing_unit(store)
        assert admit(store, owner, keys(offset)) == [NEW]


def no_units_without_transactions(lab: Lab) -> None:
    """A store that is not transactional says so."""
    store = lab.store()
    if store.capabilities.transactional:
        return
    try:
        store.unit().__enter__()
    except NotImplementedError:
        return
    raise AssertionError("unit() gave something, though the store declares no transactions")


def _failing_unit(store: Store) -> None:
    """A unit that fails."""
    try:
        with store.unit():
            raise Mishap
    except Mishap:
        pass


def _transactional(lab: Lab) -> Store | None:
    store = lab.store()
    return store if store.capabilities.transactional else None


CHECKS = (
    together,
    exception_undoes_all,
    savepoint_undoes_a_part,
    several_partitions,
    after_claims,
    goes_on_after_a_failure,
    no_units_without_transactions,
)
