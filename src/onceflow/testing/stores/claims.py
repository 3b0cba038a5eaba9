"""Claim, process, confirm: an event has one holder at a time, and is lost never."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from onceflow.reader.stores.interface import EventKey
from onceflow.testing.stores.subject import (
    DUPLICATE,
    HELD,
    LARGE_OFFSET,
    LEASE_S,
    NEW,
    OTHER_TOPIC,
    PATIENCE_S,
    TOPIC,
    Lab,
    eventually,
    keys,
    numbered,
    take,
)

_SHORT_LEASE_S = 0.05


def held_until_confirmed(lab: Lab) -> None:
    """An id that is claimed at another offset is held, a confirmed one is a duplicate."""
    store = lab.store()
    owner = take(store)
    assert store.claim(owner, keys(0, 1), LEASE_S) == [NEW, NEW]
    assert store.claim(owner, _elsewhere(0, 1, 2), LEASE_S) == [HELD, HELD, NEW]
    store.confirm(owner, keys(0))
    assert store.claim(owner, _elsewhere(0, 1), LEASE_S) == [DUPLICATE, HELD]


def owner_does_not_wait_for_itself(lab: Lab) -> None:
    """The same offset claimed again under the same epoch is new, until it is confirmed."""
    store = lab.store()
    owner = take(store)
    for _ in range(2):
        assert store.claim(owner, [*keys(0), *numbered((1, 1))], LEASE_S) == [NEW, NEW]
    store.confirm(owner, [*keys(0), *numbered((1, 1))])
    assert store.claim(owner, [*keys(0), *numbered((1, 1))], LEASE_S) == [DUPLICATE, DUPLICATE]


def claimed_again_is_held_for_longer(lab: Lab) -> None:
    """The owner that claims the same offset again has a fresh lease: so it keeps what its handler takes long for."""
    store = lab.store()
    owner = take(store)
    store.claim(owner, keys(0, 1), _SHORT_LEASE_S)
    assert store.claim(owner, keys(0), LEASE_S) == [NEW]
    eventually(lambda: store.claim(owner, _elsewhere(1), LEASE_S) == [NEW], "the lease runs out")
    assert store.claim(owner, _elsewhere(0), LEASE_S) == [HELD], "the first lease ran on"


def claimed_again_from_another_thread(lab: Lab) -> None:
    """A store that others share is used from more than one thread, one at a time: a lease is renewed while the handler works."""
    store = lab.store()
    if not store.capabilities.shared:
        return
    owner = take(store)
    assert store.claim(owner, keys(0), LEASE_S) == [NEW]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(store.claim, owner, keys(0), LEASE_S).result(PATIENCE_S) == [NEW]
    store.confirm(owner, keys(0))
    assert take(store).next_offset == 1


def held_for_another_partition(lab: Lab) -> None:
    """What one partition's owner has claimed, the owner of another partition must wait for."""
    store = lab.store()
    first, second = store.take(TOPIC, [0, 1], "reader")
    assert store.claim(first, keys(0), LEASE_S) == [NEW]
    assert store.claim(second, keys(0), LEASE_S) == [HELD]
    store.confirm(first, keys(0))
    assert store.claim(second, keys(0), LEASE_S) == [DUPLICATE]


def held_for_another_topic(lab: Lab) -> None:
    """Partitions of the same number in two topics have claims of their own, though the offsets may be the same."""
    store = lab.store()
    owner = take(store)
    assert store.claim(owner, keys(0, 1), LEASE_S) == [NEW, NEW]
    other = take(store, topic=OTHER_TOPIC)
    assert store.claim(other, keys(0, 1), LEASE_S) == [HELD, HELD], "taken for the claim of another topic's owner"
    assert store.claim(other, keys(5, prefix="other"), LEASE_S) == [NEW]
    store.confirm(other, keys(5, prefix="other"))
    assert take(store, topic=OTHER_TOPIC).next_offset == 6, "held up by an open claim of another topic"
    store.confirm(owner, keys(1))
    assert take(store).next_offset is None, "the position passed an event whose claim another topic's owner has dropped"


def kept_when_another_partition_is_taken(lab: Lab) -> None:
    """Whoever takes a partition makes the claims of that one void, and of no other."""
    store = lab.store()
    owner, other = store.take(TOPIC, [0, 1], "a")
    store.claim(owner, keys(0, 1), LEASE_S)
    again = take(lab.second(store), 1, "b")
    assert again.epoch != other.epoch
    assert store.claim(again, keys(0), LEASE_S) == [HELD], "free, while the owner of its partition handles it"
    store.confirm(owner, keys(1))
    assert take(store).next_offset is None, "the position passed an event that nobody confirmed"


def lease_runs_out(lab: Lab) -> None:
    """A lease that ran out holds nobody up; one that runs does."""
    store = lab.store()
    owner = take(store)
    store.claim(owner, keys(0), _SHORT_LEASE_S)
    store.claim(owner, keys(1), LEASE_S)
    eventually(lambda: store.claim(owner, _elsewhere(0), LEASE_S) == [NEW], "the lease runs out")
    assert store.claim(owner, _elsewhere(1), LEASE_S) == [HELD], "a lease that runs was ignored"


def earlier_epoch_does_not_hold(lab: Lab) -> None:
    """A claim of an earlier epoch is void at once, for the new owner and for other partitions."""
    store = lab.store()
    before, other = store.take(TOPIC, [0, 1], "a")
    store.claim(before, keys(0, 1), LEASE_S)
    owner = take(lab.second(store), owner="b")
    assert store.claim(other, keys(0), LEASE_S) == [NEW], "another partition waits for a claim that is void"
    assert store.claim(owner, keys(0, 1), LEASE_S) == [HELD, NEW], "the new owner waits for a claim that is void"


def unconfirmed_comes_again(lab: Lab) -> None:
    """What was claimed and not confirmed is above the position, and new for the next owner."""
    store = lab.store()
    owner = take(store)
    store.claim(owner, keys(0, 1, 2), LEASE_S)
    store.confirm(owner, keys(0))
    again = take(store)
    assert again.next_offset == 1, "the position passed an event that nobody confirmed"
    assert store.claim(again, keys(1, 2), LEASE_S) == [NEW, NEW]


def confirmed_out_of_order(lab: Lab) -> None:
    """A later event confirmed first does not take an earlier one with it, and is not repeated after a restart."""
    for make in (keys, _with_sequences):
        store = lab.store(group=lab.new_group())
        owner = take(store)
        store.claim(owner, make(0, 1, 2), LEASE_S)
        store.confirm(owner, make(2))
        again = take(store)
        assert again.next_offset in (None, 0), "the position passed events that nobody confirmed"
        assert store.claim(again, make(0), LEASE_S) == [NEW]
        store.confirm(again, make(0))
        assert take(store).next_offset == 1, "the position passed an event that is not confirmed"
        last = take(store)
        assert store.claim(last, make(1, 2), LEASE_S) == [NEW, DUPLICATE]
        store.confirm(last, make(1, 2))
        assert take(store).next_offset == 3
        assert store.claim(take(store), [*make(0, 1, 2), *make(3)], LEASE_S) == [DUPLICATE] * 3 + [NEW]
    store = lab.store(group=lab.new_group())
    owner, first, (later,) = take(store), keys(0), keys(1)
    twice = [later, later._replace(offset=2)]
    store.claim(owner, [*first, *twice], LEASE_S)
    store.confirm(owner, twice)
    store.confirm(owner, first)
    last = take(store)
    assert store.claim(last, twice, LEASE_S) == [DUPLICATE] * 2, "an id that came twice is repeated"
    store.confirm(last, twice)
    assert take(store).next_offset == 3


def at_large_offsets(lab: Lab) -> None:
    """A claim has the offset of its event, of up to 48 bits, and not the lower ones of them."""
    store = lab.store()
    owner = take(store)
    last = keys(LARGE_OFFSET)
    for _ in range(2):
        assert store.claim(owner, [*keys(0), *last], LEASE_S) == [NEW, NEW]
    for bits in (31, 32):
        assert store.claim(owner, [last[0]._replace(offset=LARGE_OFFSET % 2**bits)], LEASE_S) == [HELD], (
            "offsets are cut"
        )
    store.confirm(owner, last)
    store.confirm(owner, keys(0))
    owner = take(store)
    assert owner.next_offset == 1, "a confirmation at a large offset was taken for one in front of the position"
    assert store.claim(owner, [*keys(1), *last], LEASE_S) == [NEW, DUPLICATE]


def confirmed_early_is_known_elsewhere(lab: Lab) -> None:
    """An id that was confirmed before its position passed it is a duplicate for every other partition already."""
    store = lab.store()
    owner, other = store.take(TOPIC, [0, 1], "reader")
    store.claim(owner, keys(0, 1), LEASE_S)
    store.confirm(owner, keys(1))
    assert store.claim(other, [EventKey(7, "shop", "event-1")], LEASE_S) == [DUPLICATE]
    store.confirm(owner, keys(0))
    assert store.claim(other, [EventKey(8, "shop", "event-1")], LEASE_S) == [DUPLICATE]


def confirming_twice(lab: Lab) -> None:
    """A confirmation whose answer was lost may be sent again."""
    store = lab.store()
    owner = take(store)
    store.claim(owner, keys(0, 1), LEASE_S)
    for _ in range(2):
        store.confirm(owner, keys(0, 1))
    assert take(store).next_offset == 2


def confirming_without_a_claim(lab: Lab) -> None:
    """What was never claimed can be booked as handled: dead letters, and a memory that is rebuilt."""
    store = lab.store()
    owner = take(store)
    store.confirm(owner, [*keys(0, 1), *numbered((2, 7), source="bank")])
    assert take(store).next_offset == 3
    again = [EventKey(3, "shop", "event-1"), *numbered((4, 7), (5, 8), source="bank")]
    assert store.claim(take(store), again, LEASE_S) == [DUPLICATE, DUPLICATE, NEW]


def _elsewhere(*numbers: int) -> list[EventKey]:
    return [EventKey(100 + number, "shop", f"event-{number}") for number in numbers]


def _with_sequences(*offsets: int) -> list[EventKey]:
    return numbered(*((offset, offset + 100) for offset in offsets))


CHECKS = (
    held_until_confirmed,
    owner_does_not_wait_for_itself,
    claimed_again_is_held_for_longer,
    claimed_again_from_another_thread,
    held_for_another_partition,
    held_for_another_topic,
    kept_when_another_partition_is_taken,
    lease_runs_out,
    earlier_epoch_does_not_hold,
    unconfirmed_comes_again,
    confirmed_out_of_order,
    at_large_offsets,
    confirmed_early_is_known_elsewhere,
    confirming_twice,
    confirming_without_a_claim,
)
