"""What makes two events the same: (source, id), in one group, wherever it comes from."""

from __future__ import annotations

from hashlib import shake_256

from onceflow.reader.stores.interface import EventKey, Retention
from onceflow.testing.stores.subject import DUPLICATE, NEW, Lab, claim_and_confirm, keys, take


def repeated_later(lab: Lab) -> None:
    """An id that was handled is a duplicate at a later offset too."""
    for store, handle in lab.modes():
        owner = take(store)
        assert handle(store, owner, keys(0, 1)) == [NEW, NEW]
        again = [EventKey(2, "shop", "event-0"), EventKey(3, "shop", "event-3"), EventKey(4, "shop", "event-1")]
        assert handle(store, owner, again) == [DUPLICATE, NEW, DUPLICATE], "an id that was handled came again"


def repeated_in_one_call(lab: Lab) -> None:
    """The same id twice in one call: the first is new, the second is not."""
    for store, handle in lab.modes():
        twice = [EventKey(0, "shop", "a"), EventKey(1, "shop", "b"), EventKey(2, "shop", "a")]
        assert handle(store, take(store), twice) == [NEW, NEW, DUPLICATE]


def repeated_on_another_partition(lab: Lab) -> None:
    """An id that was handled on one partition is a duplicate on another."""
    for store, handle in lab.modes():
        assert handle(store, take(store, 0), [EventKey(5, "shop", "a")]) == [NEW]
        assert handle(store, take(store, 1), [EventKey(0, "shop", "a"), EventKey(1, "shop", "b")]) == [DUPLICATE, NEW]


def another_source(lab: Lab) -> None:
    """The same id of another source is another event."""
    for store, handle in lab.modes():
        owner = take(store)
        assert handle(store, owner, [EventKey(0, "shop", "a")]) == [NEW]
        assert handle(store, owner, [EventKey(1, "bank", "a")]) == [NEW]


def another_group(lab: Lab) -> None:
    """Groups know nothing of each other."""
    first = lab.store()
    if not first.capabilities.shared:
        return
    second = lab.store(group=lab.new_group())
    for store in (first, second):
        owner = take(store)
        assert owner.next_offset is None, "the position of another group"
        assert store.claim(owner, keys(0), 60.0) == [NEW]
        store.confirm(owner, keys(0))


def groups_one_after_the_other(lab: Lab) -> None:
    """So it is also with one object that is opened for one group after the other, as the reader of the dead letters does it."""
    store = lab.store()
    for group in (lab.group, lab.new_group()):
        store.close()
        store.open(group, Retention())
        owner = take(store)
        assert owner.next_offset is None, "the position of the group before"
        assert claim_and_confirm(store, owner, keys(0)) == [NEW], "an event of the group before"


def odd_names(lab: Lab) -> None:
    """Ids are any text: empty, long, quoted, with separators, NUL or characters beyond the basic plane; none equals another."""
    names = [
        "",
        " ",
        "a",
        "A",
        "a\0",
        "a\0b",
        "a\\0b",
        "a\\\0b",
        "'",
        '"',
        "a|b",
        "a:b",
        "{}",
        "%s",
        "\n",
        "ä",
        "a\u0308",
        "🧾",
        "x" * 900,
    ]
    pairs = [(source, name) for source in ("", "a", "a\0b", "'; --") for name in names]
    for store, handle in lab.modes():
        owner = take(store)
        first = [EventKey(offset, *pair) for offset, pair in enumerate(pairs)]
        assert handle(store, owner, first) == [NEW] * len(pairs), "two names were taken for one"
        second = [EventKey(len(pairs) + offset, *pair) for offset, pair in enumerate(pairs)]
        assert handle(store, owner, second) == [DUPLICATE] * len(pairs), "a name was not known again"


def long_names(lab: Lab) -> None:
    """Sources and ids of any length, which no index could hold; those that differ in one character stay apart."""
    long = [_noise(size) for size in (249, 250, 251, 500, 999, 1000, 1001, 2700, 9000, 300_000)]
    names = [
        *long,
        *(name[:-1] + "x" for name in long),
        *("x" + name[1:] for name in long),
        "ä" * 700,
        "\0" * 700,
        "\\" * 700,
    ]
    pairs = [("shop", name) for name in names] + [(name, "event") for name in names] + [(name, name) for name in names]
    for store, handle in lab.modes():
        owner = take(store)
        first = [EventKey(offset, *pair) for offset, pair in enumerate(pairs)]
        assert handle(store, owner, first) == [NEW] * len(pairs), "two long names were taken for one"
        second = [EventKey(len(pairs) + offset, *pair) for offset, pair in enumerate(pairs)]
        assert handle(store, owner, second) == [DUPLICATE] * len(pairs), "a long name was not known again"
        numbers = [EventKey(2 * len(pairs) + number, name, str(number), number) for number, name in enumerate(long)]
        assert handle(store, owner, numbers) == [NEW] * len(long), "two long sources were taken for one"


def _noise(size: int) -> str:
    """Text that cannot be compressed away, the same each time."""
    return shake_256(str(size).encode()).hexdigest(size // 2 + 1)[:size]


def many(lab: Lab) -> None:
    """Five thousand events in one call."""
    for store, handle in lab.modes():
        owner = take(store)
        assert handle(store, owner, keys(*range(5000))) == [NEW] * 5000
        again = [EventKey(5000 + key.offset, key.source, key.id) for key in keys(*range(5000))]
        assert handle(store, owner, again) == [DUPLICATE] * 5000


CHECKS = (
    repeated_later,
    repeated_in_one_call,
    repeated_on_another_partition,
    another_source,
    another_group,
    groups_one_after_the_other,
    odd_names,
    long_names,
    many,
)
