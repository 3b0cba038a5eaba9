"""Consumed offsets are committed by the member that was handed the events, while it is that member, and not after it."""

# ruff: noqa: PT012  what raises at the end of a transaction's block is what is tested

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tests.conftest import Fill, Reader, TopicFactory
from tests.writer.on_a_loop import OnLoop
from tests.writer.waiting import wait_until

from onceflow.broker import EmbeddedBroker
from onceflow.errors import TransactionAborted, WriterError
from onceflow.writer.membership import Membership
from onceflow.writer.transaction import Transaction
from onceflow.writer.writer import Writer

ROWS = 40
_numbers = itertools.count()


@dataclass
class Member:
    """A member of a group, with a writer of its own, that copies a topic of numbers."""

    writer: Writer
    consumer: Consumer
    target: str

    def poll(self) -> bool:
        """Whether it has a partition, and nothing that waits to be handed out; what was handed out is dropped."""
        return self.consumer.poll(0.02) is None and bool(self.consumer.assignment())

    def copy(self) -> dict[tuple[str, int], int]:
        """Sends what is handed out, in the open transaction. The offsets that come next."""
        found = {}
        for message in self.consumer.consume(ROWS, timeout=0.2):
            if message.error():  # of the group, and no event
                continue
            topic, partition, offset = str(message.topic()), message.partition() or 0, message.offset() or 0
            self.writer.send(self.target, message.value(), position=(topic, partition, offset))
            found[topic, partition] = offset + 1
        return found

    def copy_all(self) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}

        def look() -> bool:
            found.update(self.copy())
            return sum(found.values()) == ROWS

        wait_until(look)
        return found

    def run_block(self) -> None:
        try:
            with self.writer.transaction(consumer=self.consumer) as transaction:
                self.copy()
                transaction.consumed(self.consumer)
        except TransactionAborted:
            self.go_back()

    def commits(self) -> bool:
        """Whether the group has something of its partitions, once it has run another block."""
        self.run_block()
        return any(at.offset > 0 for at in self.consumer.committed(self.consumer.assignment(), timeout=60))

    def go_back(self) -> None:
        """To what the group has committed."""
        for at in self.consumer.committed(self.consumer.assignment(), timeout=60):
            try:
                self.consumer.seek(TopicPartition(at.topic, at.partition, max(at.offset, 0)))
            except KafkaException as error:  # only just assigned, it begins there anyway
                if error.args[0].code() != KafkaError._STATE:
                    raise


@dataclass
class Group:
    """A group, a topic of two partitions that it reads, and one that it writes."""

    broker: EmbeddedBroker
    make_writer: Callable[..., Writer]
    fill: Fill
    read: Reader
    source: str
    target: str
    options: dict[str, Any] = field(default_factory=dict)
    name: str = field(default_factory=lambda: f"group-{next(_numbers)}")
    members: list[Member] = field(default_factory=list)

    def consumer(self) -> Consumer:
        safe = {"enable.auto.commit": False, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        servers = {"bootstrap.servers": self.broker.bootstrap_servers, "group.id": self.name, "log_level": 0}
        return Consumer({**servers, **safe, **self.options})

    def member(self) -> Member:
        """One more."""
        new = Member(self.make_writer(f"{self.name}-{len(self.members)}"), self.consumer(), self.target)
        self.members.append(new)
        new.consumer.subscribe([self.source])
        return new

    def joins(self) -> Member:
        """One more; returns when each has its share."""
        new = self.member()
        wait_until(lambda: False not in {member.poll() for member in self.members})
        return new

    def fill_source(self) -> None:
        self.fill(self.source, [(str(n), str(n)) for n in range(ROWS)])

    def finish(self) -> list[int]:
        """All members run blocks until everything is committed; the numbers that were written, in rising order."""

        def is_done() -> bool:
            for member in self.members:
                member.run_block()
            ends = [TopicPartition(self.source, partition) for partition in range(2)]
            found = self.members[0].consumer.committed(ends, timeout=60)
            return sum(max(at.offset, 0) for at in found) == ROWS

        wait_until(is_done)
        return sorted(int(message.value() or b"") for message in self.read(self.target))


@pytest.fixture
def make_group(
    broker: EmbeddedBroker, writer: Callable[..., Writer], topic: TopicFactory, fill: Fill, read: Reader
) -> Iterator[Callable[..., Group]]:
    made: list[Group] = []

    def make(**options: Any) -> Group:
        made.append(Group(broker, writer, fill, read, topic(2), topic(), options))
        return made[-1]

    yield make
    for member in [member for group in made for member in group.members]:
        member.consumer.close()


BOTH_STRATEGIES = pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
"""Everything is given up at a rebalance, or what another one gets."""


@BOTH_STRATEGIES
@pytest.mark.parametrize("seen_by", ["writer", "broker"])
@pytest.mark.in_turn(3)
def test_a_rebalance_in_a_block_aborts_it_and_its_events_come_once(
    make_group: Callable[..., Group], monkeypatch: pytest.MonkeyPatch, strategy: str, seen_by: str
) -> None:
    """What the other one has committed meanwhile is no sign that this one's consumer commits by itself."""
    group = make_group(**{"partition.assignment.strategy": strategy})
    first = group.joins()
    group.fill_source()
    with monkeypatch.context() as only_then:
        if seen_by == "broker":
            only_then.setattr(Membership, "change_to", lambda *_: "")
        said = "consumed offsets were refused" if seen_by == "broker" else "was rebalanced in the middle of the block"
        with (
            pytest.raises(TransactionAborted, match=said) as caught,
            first.writer.transaction(consumer=first.consumer) as transaction,
        ):
            positions = first.copy_all()
            second = group.joins()
            second.go_back()
            wait_until(second.commits)
            transaction.consumed(first.consumer, positions)
    assert caught.value.retriable
    assert transaction.committed is False
    for member in group.members:
        member.go_back()
    assert group.finish() == list(range(ROWS))


@BOTH_STRATEGIES
def test_control_a_member_that_is_asked_at_the_end_commits_what_is_anothers(
    make_group: Callable[..., Group], monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    group = make_group(**{"partition.assignment.strategy": strategy})
    first = group.joins()
    group.fill_source()
    with monkeypatch.context() as only_then:
        only_then.setattr(Transaction, "_noted", lambda _, consumer: Membership.of(consumer))
        with first.writer.transaction(consumer=first.consumer) as transaction:
            first.copy_all()
            second = group.joins()
            transaction.consumed(first.consumer)
    second.go_back()
    assert len(group.finish()) > ROWS


def test_a_member_that_took_too_long_and_was_put_out_commits_nothing(make_group: Callable[..., Group]) -> None:
    """It may not know of it yet: then the broker does."""
    group = make_group(**{"max.poll.interval.ms": 15_000, "session.timeout.ms": 15_000})
    slow = group.joins()
    group.fill_source()
    with (
        pytest.raises(TransactionAborted, match=r"was put out of its group|Unknown member"),
        slow.writer.transaction(consumer=slow.consumer) as transaction,
    ):
        slow.copy_all()
        follower = group.member()
        wait_until(lambda: follower.poll() and len(follower.consumer.assignment()) == 2)
        transaction.consumed(slow.consumer)
    wait_until(lambda: not slow.consumer.memberid())
    with (
        pytest.raises(TransactionAborted, match="put out of its group before the block"),
        slow.writer.transaction(consumer=slow.consumer) as again,
    ):
        again.consumed(slow.consumer, {(group.source, 0): ROWS})
    follower.go_back()
    assert group.finish() == list(range(ROWS))


def test_positions_of_a_partition_that_was_given_up_before_the_block_are_refused(
    make_group: Callable[..., Group],
) -> None:
    """The broker asks for the member and its generation alone, not for the partition's owner."""
    group = make_group()
    first = group.joins()
    group.fill_source()
    handed_out: dict[tuple[str, int], int] = {}

    def is_handed_out() -> bool:
        for message in first.consumer.consume(ROWS, timeout=0.2):
            handed_out[group.source, message.partition() or 0] = (message.offset() or 0) + 1
        return sum(handed_out.values()) == ROWS

    wait_until(is_handed_out)
    second = group.joins()
    with (
        pytest.raises(TransactionAborted, match="went to another member before the block"),
        first.writer.transaction(consumer=first.consumer) as transaction,
    ):
        transaction.consumed(first.consumer, handed_out)
    for member in (first, second):
        member.go_back()
    assert group.finish() == list(range(ROWS))


@pytest.mark.parametrize("writer", [Writer, OnLoop], indirect=True, ids=["Writer", "AsyncWriter"])
def test_a_block_in_which_the_consumer_joins_is_run_again(make_group: Callable[..., Group]) -> None:
    """How often the group was rebalanced before it was handed the events, nobody knows by then."""
    group = make_group()
    group.fill_source()
    new = group.member()
    with (
        pytest.raises(TransactionAborted, match="joined its group in the middle"),
        new.writer.transaction(consumer=new.consumer) as transaction,
    ):
        new.copy_all()
        transaction.consumed(new.consumer)
    new.go_back()
    assert group.finish() == list(range(ROWS))


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (Membership(b"1", True, frozenset()), Membership(b"1", True, frozenset()), ""),
        (Membership(b"1", True, frozenset()), Membership(b"2", True, frozenset()), "rebalanced"),
        (Membership(b"1", False, frozenset()), Membership(b"2", True, frozenset()), "joined"),
        (Membership(b"1", True, frozenset()), Membership(b"2", False, frozenset()), "put out"),
        (Membership(b"1", True, frozenset({("a", 0)})), Membership(b"1", True, frozenset()), "partitions changed"),
    ],
)
def test_what_has_changed_is_said(before: Membership, now: Membership, said: str) -> None:
    """The last: in a generation that goes on, a partition is given up before the group knows of it."""
    assert said in before.change_to(now)
    assert bool(before.change_to(now)) == bool(said)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_that_has_not_joined_is_no_member(protocol: str) -> None:
    """One of the newer protocol has a member's id from its beginning."""
    options = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "group.protocol": protocol, "log_level": 0}
    consumer = Consumer(options)
    assert bool(consumer.memberid()) == (protocol == "consumer")
    assert not Membership.of(consumer).is_member
    consumer.close()


def test_a_consumer_that_the_transaction_does_not_know_is_refused(make_group: Callable[..., Group]) -> None:
    group = make_group()
    member, other = group.joins(), group.consumer()
    for known in (None, other):
        with (
            pytest.raises(WriterError, match="not opened with this consumer"),
            member.writer.transaction(consumer=known) as transaction,
        ):
            transaction.consumed(member.consumer)
    other.close()


def test_partitions_that_were_assigned_by_hand_have_no_generation(make_group: Callable[..., Group]) -> None:
    group = make_group()
    group.fill_source()
    member = group.member()
    member.consumer.unsubscribe()
    by_hand = group.consumer()
    by_hand.assign([TopicPartition(group.source, partition, 0) for partition in range(2)])
    by = Member(member.writer, by_hand, group.target)
    with pytest.raises(WriterError, match="assigned by hand"), by.writer.transaction(consumer=by_hand) as transaction:
        by.copy_all()
        transaction.consumed(by_hand)
    by_hand.close()
    assert group.read(group.target) == []
