"""A consumer that commits by itself, as it does by default: told before an event is lost, and never taken for another member."""

# ruff: noqa: PT012  what raises at the end of a transaction's block is what is tested

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tests.conftest import Fill, Reader, TopicFactory
from tests.writer.on_a_loop import OnLoop
from tests.writer.waiting import wait_until

from onceflow.broker import EmbeddedBroker
from onceflow.errors import OutcomeUnknown, WriterError
from onceflow.writer import group_offsets
from onceflow.writer.transaction import Transaction
from onceflow.writer.writer import Writer

EVENTS = 12
SAFE = {"enable.auto.commit": False}
BY_ITSELF = {"enable.auto.commit": True, "auto.commit.interval.ms": 50}
_numbers = itertools.count()


@dataclass
class Service:
    """Copies a topic of numbers, a few of them a block."""

    writer: Writer | OnLoop
    consumer: Consumer
    source: str
    target: str

    @property
    def committed(self) -> int:
        """Where the group is."""
        return self.consumer.committed([TopicPartition(self.source, 0)], timeout=60)[0].offset

    def copy(self, count: int) -> None:
        for message in self.consumer.consume(count, timeout=60):
            assert message.error() is None
            self.writer.send(self.target, message.value(), position=(self.source, 0, message.offset() or 0))

    @contextmanager
    def block(self, count: int) -> Iterator[Transaction | Any]:
        """Some are copied, and their offsets committed behind what the body does."""
        with self.writer.transaction(consumer=self.consumer) as transaction:
            self.copy(count)
            yield transaction
            transaction.consumed(self.consumer)

    def runs_ahead(self, beyond: int, *, by_itself: bool = False) -> None:
        """The consumer commits what it has handed out: by itself as soon as it is time for it, or when it is told to."""
        if not by_itself:
            self.consumer.commit(asynchronous=False)
        wait_until(lambda: self.committed > beyond)

    def go_back(self) -> None:
        self.consumer.seek(TopicPartition(self.source, 0, max(self.committed, 0)))


MakeService = Callable[..., Service]


@pytest.fixture
def service(
    broker: EmbeddedBroker,
    writer: Callable[..., Writer | OnLoop],
    topic: TopicFactory,
    fill: Fill,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[MakeService]:
    monkeypatch.setattr("onceflow.writer.group_offsets._LOOK_S", 60.0)  # a late answer would pass for none
    made: list[Service] = []

    def make(*, partitions: int = 1, **options: Any) -> Service:
        name, source = f"elsewhere-{next(_numbers)}", topic(partitions)
        safe = {"isolation.level": "read_committed", "auto.offset.reset": "earliest", "log_level": 0}
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": name, **safe, **options})
        made.append(Service(writer(name), consumer, source, topic()))
        consumer.subscribe([source])
        wait_until(lambda: consumer.poll(0.02) is None and bool(consumer.assignment()))
        fill(source, [(str(n) if partitions > 1 else None, str(n)) for n in range(EVENTS)])
        return made[-1]

    yield make
    for each in made:
        each.consumer.close()


def numbers(read: Reader, service: Service) -> list[int]:
    return [int(message.value() or b"") for message in read(service.target)]


@pytest.mark.parametrize("writer", [Writer, OnLoop], indirect=True, ids=["Writer", "AsyncWriter"])
@pytest.mark.parametrize(("by_itself", "blocks_before"), [(True, 0), (False, 0), (False, 1)])
def test_a_block_whose_consumer_has_committed_is_refused(
    service: MakeService, read: Reader, *, by_itself: bool, blocks_before: int
) -> None:
    """In its first block, too: what was committed before that is noted when it begins."""
    copying = service(**(BY_ITSELF if by_itself else SAFE))
    for _ in range(blocks_before):
        with copying.block(3):
            pass
    done = 3 * blocks_before
    with pytest.raises(WriterError, match=r"enable\.auto\.commit") as refused, copying.block(2) as transaction:
        copying.runs_ahead(done, by_itself=by_itself)
    assert transaction.committed is False
    assert not refused.value.retriable
    assert refused.value.fields["ahead"] == (group_offsets.Ahead(copying.source, 0, committed=done + 2, own=done),)
    assert numbers(read, copying) == list(range(done))


def abort_one_that_ran_ahead(copying: Service) -> None:
    with copying.block(3):
        pass
    with pytest.raises(KeyError), copying.block(2):
        copying.runs_ahead(3)
        raise KeyError
    copying.go_back()


def test_behind_a_block_that_was_aborted_nothing_is_committed_until_the_group_is_set_back(
    service: MakeService, read: Reader
) -> None:
    copying = service(**SAFE)
    abort_one_that_ran_ahead(copying)
    for _ in range(2):
        with pytest.raises(WriterError, match="the writer's blocks up to 3"), copying.block(1):
            pass
    assert numbers(read, copying) == [0, 1, 2]


def test_where_nobody_has_answered_the_look_the_next_block_looks_again(
    service: MakeService, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying = service(**SAFE)
    with pytest.MonkeyPatch.context() as silent:
        silent.setattr(group_offsets, "_committed", lambda *_: {})
        with pytest.raises(KeyError), copying.block(3):
            raise KeyError
    copying.consumer.seek(TopicPartition(copying.source, 0, 0))
    with pytest.raises(WriterError, match="the writer's blocks up to 0"), copying.block(3):
        copying.runs_ahead(0)
    assert numbers(read, copying) == []


def test_each_partition_is_looked_at_though_the_block_has_consumed_from_another_one(
    service: MakeService, read: Reader
) -> None:
    copying = service(partitions=2, **SAFE)
    first, second = ((copying.source, number) for number in (0, 1))
    with (
        pytest.raises(WriterError, match=f"{copying.source}-1 up to 1, the writer's blocks up to 0"),
        copying.writer.transaction(consumer=copying.consumer) as transaction,
    ):
        copying.copy(EVENTS)
        transaction.consumed(copying.consumer, {first: 1})
        copying.consumer.commit(offsets=[TopicPartition(*second, 1)], asynchronous=False)
        transaction.consumed(copying.consumer, {second: 1})
    assert numbers(read, copying) == []


def test_control_without_the_look_the_events_of_that_block_are_lost(
    service: MakeService, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets.GroupOffsets, "ahead", lambda *_: ())
    copying = service(**SAFE)
    abort_one_that_ran_ahead(copying)
    with copying.block(EVENTS - 5):
        pass
    assert copying.committed == EVENTS
    assert sorted(set(range(EVENTS)) - set(numbers(read, copying))) == [3, 4]


def test_a_consumer_that_goes_back_and_one_that_is_used_twice_in_a_block_are_no_sign_of_it(
    service: MakeService, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On purpose it may read again what is committed; and a second look in a block would wait for what that commits itself."""
    monkeypatch.setattr(group_offsets, "_LOOK_S", 3600.0)
    copying = service(**SAFE)
    with copying.block(6):
        pass
    copying.consumer.seek(TopicPartition(copying.source, 0, 2))
    with copying.block(2) as transaction:
        transaction.consumed(copying.consumer)
        copying.copy(1)
    with copying.block(EVENTS - 5):
        pass
    assert copying.committed == EVENTS
    assert numbers(read, copying) == [*range(6), *range(2, EVENTS)]


def test_a_block_whose_outcome_was_not_known_is_none_either(
    service: MakeService, read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying = service(**SAFE)
    transactions = copying.writer._with_transactions()
    ask = transactions._ask

    def committed_and_not_told(question: Callable[..., object], *arguments: object) -> None:
        ask(question, *arguments)
        if question.__name__ == "commit_transaction":
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the answer was lost", retriable=True))

    with monkeypatch.context() as patch:
        patch.setattr(transactions, "_ask", committed_and_not_told)
        with pytest.raises(OutcomeUnknown), copying.block(4):
            pass
    assert copying.writer.settle() is True
    with copying.block(EVENTS - 4):
        pass
    assert numbers(read, copying) == list(range(EVENTS))
