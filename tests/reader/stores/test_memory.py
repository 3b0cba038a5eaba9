"""The store in memory handles whole batches in one piece; its answers must be those of the rules for each of their events."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reader.stores.compact import CLAIMS, Way, book_numbered

from onceflow.errors import StoreFenced
from onceflow.reader.stores import rules
from onceflow.reader.stores.interface import EventKey, Ownership, Retention, Standing
from onceflow.reader.stores.memory import MemoryStore, MemoryTables

TOPIC = "orders"
PARTITIONS = (0, 1)
LONG_S, OVER_S = 1_000.0, 0.0


class ByTheRules:
    """The same tables without pieces."""

    def __init__(self) -> None:
        self.tables = MemoryTables(1_000)
        self.take = self.tables.take

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        return rules.claim(self.tables, ownership, keys, lease_s)

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        rules.confirm(self.tables, ownership, keys)


class InPieces:
    def __init__(self) -> None:
        self.store = MemoryStore(1_000)
        self.store.open("group", Retention())
        self.tables = self.store._tables
        self.claim, self.confirm = self.store.claim, self.store.confirm

    def take(self, topic: str, partition: int) -> Ownership:
        return self.store.take(topic, [partition], "reader")[0]


Store = ByTheRules | InPieces


class Pair:
    """One thing done to both. Their answers must be equal."""

    def __init__(self) -> None:
        self.stores: tuple[Store, Store] = (ByTheRules(), InPieces())
        self.owned: dict[int, tuple[Ownership, ...]] = {}
        self.claimed: dict[int, list[EventKey]] = {partition: [] for partition in PARTITIONS}
        for partition in PARTITIONS:
            self.take(partition)

    def take(self, partition: int) -> None:
        self.owned[partition] = tuple(store.take(TOPIC, partition) for store in self.stores)
        self.compare()

    def compare(self) -> None:
        for partition in PARTITIONS:
            first, second = (store.tables.position(TOPIC, partition) for store in self.stores)
            if first is not None and second is not None:
                assert first.next_offset == second.next_offset

    def claim(self, partition: int, keys: list[EventKey], lease_s: float) -> list[Standing]:
        self.claimed[partition] = keys
        both = [
            store.claim(owner, keys, lease_s) for store, owner in zip(self.stores, self.owned[partition], strict=True)
        ]
        assert both[0] == both[1]
        return both[0]

    def confirm(self, partition: int, first: int, last: int) -> None:
        keys = self.claimed[partition][first:last]
        for store, owner in zip(self.stores, self.owned[partition], strict=True):
            store.confirm(owner, keys)
        self.compare()

    def claim_rest(self, partition: int, first: int) -> None:
        """As the reader does with what it had no time for."""
        self.claim(partition, self.claimed[partition][first:], LONG_S)


@st.composite
def batches(draw: st.DrawFn) -> list[EventKey]:
    """Events in the order of their offsets, with ids that come again, in gaps as transactions leave them."""
    offsets = sorted(draw(st.sets(st.integers(0, 12), max_size=5)))
    ids = draw(st.lists(st.sampled_from("abcdefgh"), min_size=len(offsets), max_size=len(offsets)))
    numbered = draw(st.sampled_from([False, False, False, True]))
    return [
        EventKey(offset, "shop", name, ord(name) if numbered else None)
        for offset, name in zip(offsets, ids, strict=True)
    ]


_partitions = st.sampled_from(PARTITIONS)
_steps = st.one_of(
    st.tuples(st.just("claim"), _partitions, batches(), st.sampled_from([LONG_S, OVER_S])),
    st.tuples(st.just("confirm"), _partitions, st.just(0), st.just(5)),
    st.tuples(st.just("confirm"), _partitions, st.integers(0, 4), st.integers(1, 5)),
    st.tuples(st.just("claim_rest"), _partitions, st.integers(0, 4)),
    st.tuples(st.just("take"), _partitions),
)


@settings(max_examples=600)
@given(st.lists(_steps, max_size=25))
def test_pieces_answer_as_the_rules_do(steps: list[tuple[str, ...]]) -> None:
    pair = Pair()
    for name, *arguments in steps:
        getattr(pair, name)(*arguments)
    for partition in PARTITIONS:  # what each knows in the end
        pair.take(partition)
        pair.claim(partition, [EventKey(20 + n, "shop", name) for n, name in enumerate("abcdefgh")], LONG_S)


def test_a_batch_whose_events_are_new_is_one_piece() -> None:
    """Otherwise the test above would compare the rules with themselves."""
    pieces = InPieces()
    owner = pieces.take(TOPIC, 0)
    keys = [EventKey(offset, "shop", str(offset)) for offset in range(10)]
    assert pieces.claim(owner, keys, LONG_S) == [Standing.NEW] * 10
    assert pieces.tables._pieces
    assert not pieces.tables._claims
    pieces.confirm(owner, keys)
    assert not pieces.tables._pieces
    assert pieces.claim(owner, [EventKey(10, "shop", "3")], LONG_S) == [Standing.DUPLICATE]


def test_groups_that_use_one_object_know_nothing_of_each_other() -> None:
    """A dead letter has the id of its event: in the group of the letters it is new. Opened again, a group has what it had."""
    store = MemoryStore()
    for group in ("group", "group.dead-letter"):
        store.open(group, Retention())
        (owner,) = store.take(TOPIC, [0], "reader")
        assert owner.next_offset is None
        assert store.claim(owner, [EventKey(0, "shop", "a")], LONG_S) == [Standing.NEW]
        store.confirm(owner, [EventKey(0, "shop", "a")])
        store.close()
    store.open("group", Retention())
    assert store.take(TOPIC, [0], "reader")[0].next_offset == 1


def test_an_epoch_of_before_confirms_no_piece() -> None:
    """Not even one of the same events: the new owner is handling them now."""
    pieces = InPieces()
    before = pieces.take(TOPIC, 0)
    keys = [EventKey(0, "shop", "a")]
    pieces.claim(before, keys, LONG_S)
    now = pieces.take(TOPIC, 0)
    assert pieces.claim(now, keys, LONG_S) == [Standing.NEW]
    with pytest.raises(StoreFenced):
        pieces.confirm(before, keys)
    assert pieces.take(TOPIC, 0).next_offset is None


def test_what_was_confirmed_early_leaves_with_the_next_batch() -> None:
    """Offset 1 was confirmed before offset 0, whose claim went with its owner."""
    pieces = InPieces()
    before = pieces.take(TOPIC, 0)
    first, second, third = (EventKey(offset, "shop", name) for offset, name in enumerate("abc"))
    pieces.claim(before, [first, second], LONG_S)
    pieces.confirm(before, [second])
    now = pieces.take(TOPIC, 0)
    assert pieces.claim(now, [first, third], LONG_S) == [Standing.NEW] * 2
    pieces.confirm(now, [first, third])
    assert not any(pieces.tables._early.values())
    assert pieces.claim(now, [EventKey(3, "shop", "b")], LONG_S) == [Standing.DUPLICATE]


def test_what_lies_below_the_position_was_handled() -> None:
    pieces = InPieces()
    owner = pieces.take(TOPIC, 0)
    keys = [EventKey(5, "shop", "a")]
    pieces.claim(owner, keys, LONG_S)
    pieces.confirm(owner, keys)
    assert pieces.claim(owner, [EventKey(4, "shop", "b")], LONG_S) == [Standing.DUPLICATE]


def test_sources_with_sequences_are_bounded_and_the_one_in_use_stays(caplog: pytest.LogCaptureFixture) -> None:
    """As of files that a log is rotated through: each is a source of its own."""
    store = MemoryStore(limit=10)
    store.open("group", Retention())
    (owner,) = store.take(TOPIC, [0], "reader")
    for number in range(100):
        keys = [EventKey(2 * number, "steady", str(number), number), EventKey(2 * number + 1, f"file-{number}", "1", 1)]
        assert store.claim(owner, keys, LONG_S) == [Standing.NEW] * 2
        store.confirm(owner, keys)
    assert len(store._tables._sequences) == 10
    again = [EventKey(200, "steady", "99", 99), EventKey(201, "file-99", "1", 1), EventKey(202, "file-0", "1", 1)]
    assert store.claim(owner, again, LONG_S) == [Standing.DUPLICATE, Standing.DUPLICATE, Standing.NEW]
    assert [record.message for record in caplog.records] == [
        "more than 10 ids, or sources with sequences, within the retention: the oldest are forgotten"
    ]


@pytest.mark.parametrize("way", CLAIMS)
def test_compact_form_does_not_grow(way: Way) -> None:
    """One number of the source, whatever came: no id, no claim, and nothing that waits to be forgotten."""
    store = MemoryStore()
    store.open("group", Retention())
    (owner,) = store.take(TOPIC, [0], "reader")
    book_numbered(store, owner, way, 10_000)
    tables = store._tables
    assert dict(tables._sequences) == {((TOPIC, 0), "shop"): 9_999}
    kept = (
        tables._ids,
        tables._by_age,
        tables._pieces,
        tables._claims,
        tables._open[TOPIC, 0],
        tables._early[TOPIC, 0],
    )
    assert [len(each) for each in kept] == [0] * 6
    assert store.claim(owner, [EventKey(10_000, "shop", "7", 7)], LONG_S) == [Standing.DUPLICATE]
