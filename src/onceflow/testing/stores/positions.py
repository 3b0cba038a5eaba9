"""Positions: what is below is handled, for ever."""

from __future__ import annotations

from onceflow.errors import StoreLost
from onceflow.reader.event import position_source
from onceflow.reader.stores.interface import EventKey, Ownership
from onceflow.testing.stores.subject import DUPLICATE, LARGE_OFFSET, NEW, OTHER_TOPIC, TOPIC, Lab, keys, refused, take


def unknown_at_first(lab: Lab) -> None:
    """A partition that was never handled has no position, also after it was taken once before."""
    store = lab.store()
    assert take(store).next_offset is None
    assert take(store).next_offset is None, "taking is not handling"


def behind_the_last(lab: Lab) -> None:
    """The position is the offset behind the last event, per partition, gaps and all."""
    for store, handle in lab.modes():
        handle(store, take(store, 0), keys(0, 1, 7))
        handle(store, take(store, 1), keys(40))
        found = [each.next_offset for each in store.take(TOPIC, [0, 1, 2], "reader")]
        assert found == [8, 41, None], "the position is not behind the last event"


def below_is_handled(lab: Lab) -> None:
    """An event below the position is a duplicate, even if its id was never seen."""
    for store, handle in lab.modes():
        owner = take(store)
        handle(store, owner, keys(10))
        assert handle(store, owner, keys(3, 9, 10, prefix="other")) == [DUPLICATE] * 3, (
            "below the position, and handled again"
        )
        assert handle(store, owner, keys(9, 11, prefix="third")) == [DUPLICATE, NEW]


def never_back(lab: Lab) -> None:
    """Events that come again do not move the position back."""
    for store, handle in lab.modes():
        owner = take(store)
        handle(store, owner, keys(0, 1, 2, 3))
        handle(store, owner, keys(0, 1))
        handle(store, owner, [])
        assert take(store).next_offset == 4


def per_topic(lab: Lab) -> None:
    """Partitions of the same number in two topics have positions and epochs of their own."""
    for store, handle in lab.modes():
        owner = take(store)
        handle(store, owner, keys(0, 6))
        other = take(store, topic=OTHER_TOPIC)
        assert other.next_offset is None, "the position of another topic"
        assert handle(store, other, keys(0, 1, prefix="other")) == [NEW, NEW], (
            "below another topic's position, and lost"
        )
        assert handle(store, owner, keys(7)) == [NEW], "fenced by the owner of another topic"
        found = [take(store, topic=topic).next_offset for topic in (TOPIC, OTHER_TOPIC)]
        assert found == [8, 2], "moved by another topic"


def large_offsets(lab: Lab) -> None:
    """Offsets have up to 48 bits."""
    for store, handle in lab.modes():
        for offset in (2**31, 2**32 + 1, LARGE_OFFSET):
            owner = take(store)
            assert handle(store, owner, keys(offset)) == [NEW], "above a position that was cut"
            assert take(store).next_offset == offset + 1, "a large position was cut"
        again = keys(LARGE_OFFSET - 1, LARGE_OFFSET + 1, prefix="other")
        assert handle(store, take(store), again) == [DUPLICATE, NEW]


def survives_reopening(lab: Lab) -> None:
    """What was committed is there for the next object, if the store is durable."""
    for store, handle in lab.modes():
        if not store.capabilities.durable:
            continue
        group = lab.new_group()
        first = lab.store(group=group)
        handle(first, take(first), keys(0, 1))
        first.close()
        second = lab.store(group=group)
        owner = take(second)
        assert owner.next_offset == 2, "the position did not survive"
        again = [EventKey(2, "shop", "event-1"), EventKey(3, "shop", "event-3")]
        assert handle(second, owner, again) == [DUPLICATE, NEW], "the ids did not survive"


def emptied_under_a_reader(lab: Lab) -> None:
    """An owner whose partition the store does not know is told so, not treated as the first reader."""
    for store, handle in lab.modes():
        known = take(store, 0)
        stranger = Ownership(TOPIC, 9, known.epoch, None)
        refused(lambda store=store, handle=handle, stranger=stranger: handle(store, stranger, keys(0)), StoreLost)  # type: ignore[misc]


def behind_its_owner(lab: Lab) -> None:
    """An owner that knows of a higher position is told that the store has lost something: nothing is booked over the gap."""
    for store, handle in lab.modes():
        owner = take(store)
        handle(store, owner, keys(0, 1))
        assert handle(store, owner.at(2), keys(2)) == [NEW]
        ahead = owner.at(9)
        refused(lambda store=store, handle=handle, ahead=ahead: handle(store, ahead, keys(9)), StoreLost)  # type: ignore[misc]
        refused(lambda store=store, ahead=ahead: store.confirm(ahead, keys(9)), StoreLost)  # type: ignore[misc]
        assert take(store).next_offset == 3, "the position passed what the store does not know"


def begins_in_front_of_the_first_event(lab: Lab) -> None:
    """What is booked in front of offset 0 is no event, and makes 0 the position: the group begins there."""
    for store, handle in lab.modes():
        before, first = (EventKey(offset, position_source(TOPIC, 0), str(offset), offset) for offset in (-1, 0))
        handle(store, take(store), [before])
        owner = take(store)
        assert owner.next_offset == 0, "what was booked at offset -1 did not make 0 the position"
        assert handle(store, owner, [before, first, *keys(1)]) == [DUPLICATE, NEW, NEW]
        assert take(store).next_offset == 2


CHECKS = (
    unknown_at_first,
    behind_the_last,
    below_is_handled,
    never_back,
    per_topic,
    large_offsets,
    survives_reopening,
    emptied_under_a_reader,
    behind_its_owner,
    begins_in_front_of_the_first_event,
)
