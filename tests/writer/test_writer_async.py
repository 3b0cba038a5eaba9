"""The writer for asyncio: the same events, awaited; and what a cancellation does."""

# ruff: noqa: PT012  what raises at the end of a transaction's block is what is tested

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.conftest import Reader, TopicFactory
from tests.writer.waiting import wait_until

from onceflow.broker import EmbeddedBroker
from onceflow.errors import DeliveryFailed, EventRefused, WriterClosed
from onceflow.writer import asynchronous
from onceflow.writer.asynchronous import AsyncTransaction, AsyncWriter

PATIENCE_S = 120
_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"async-{next(_numbers)}"


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work

    asyncio.run(bounded())


def values(read: Reader, topic: str) -> list[str]:
    return [(m.value() or b"").decode() for m in read(topic)]


def test_events_are_sent_in_order_and_deliveries_awaited(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader
) -> None:
    target = topic()

    async def work() -> None:
        async with AsyncWriter(bootstrap_servers=broker.bootstrap_servers, source="shop") as writer:
            events = [await writer.send(target, str(n), id=str(n)) for n in range(1000)]
            found = await asyncio.gather(*events)
            assert [each.offset for each in found] == list(range(1000))
            assert [each.identity.id for each in found] == [str(n) for n in range(1000)]

    run(work())
    assert values(read, target) == [str(n) for n in range(1000)]


def test_a_full_buffer_suspends_the_task_and_not_the_loop(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader
) -> None:
    target = topic()
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0)
            beats += 1

    async def work() -> None:
        kafka = {"queue.buffering.max.messages": 10, "linger.ms": 5}
        async with AsyncWriter(bootstrap_servers=broker.bootstrap_servers, source="shop", kafka=kafka) as writer:
            await writer.send(target, "0", id="0")  # which asks for the topic: that takes its time, and the loop beats
            heart = asyncio.create_task(beat())
            for n in range(1, 200):
                await writer.send(target, str(n), id=str(n))
            heart.cancel()

    run(work())
    assert values(read, target) == [str(n) for n in range(200)]
    assert beats > 10


def test_transactions_are_all_or_nothing(broker: EmbeddedBroker, topic: TopicFactory, read: Reader, name: str) -> None:
    target = topic()

    async def work() -> None:
        servers = broker.bootstrap_servers
        async with AsyncWriter(bootstrap_servers=servers, source="shop", transactional_id=name) as writer:
            async with writer.transaction(progress="1") as good:
                await writer.send(target, "1", id="1")
            with pytest.raises(KeyError):
                async with writer.transaction() as bad:
                    await writer.send(target, "never", id="2")
                    raise KeyError
            assert (good.committed, bad.committed, writer.progress) == (True, False, "1")

    run(work())
    assert values(read, target) == ["1"]


def test_a_task_cancelled_in_a_block_aborts_it_and_the_writer_goes_on(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader, name: str
) -> None:
    target = topic()

    async def work() -> None:
        servers = broker.bootstrap_servers
        async with AsyncWriter(bootstrap_servers=servers, source="shop", transactional_id=name) as writer:
            inside = asyncio.Event()

            async def block() -> None:
                async with writer.transaction():
                    await (await writer.send(target, "never", id="1"))
                    inside.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(block())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with writer.transaction():
                await writer.send(target, "next", id="2")

    run(work())
    assert values(read, target) == ["next"]


def test_a_task_cancelled_while_its_block_is_refused_ends_no_other_block(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader, name: str
) -> None:
    """The writer has one transaction at a time, and another task's is open."""
    target = topic()

    async def work() -> None:
        servers = broker.bootstrap_servers
        async with AsyncWriter(bootstrap_servers=servers, source="shop", transactional_id=name) as writer:
            transactions = writer._writer._with_transactions()
            loop, begin = asyncio.get_running_loop(), transactions.begin

            def cancelled_before_it_is_refused() -> None:
                loop.call_soon_threadsafe(task.cancel)
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE_S)
                begin()

            async def second() -> None:
                async with writer.transaction():
                    raise AssertionError

            async with writer.transaction():
                await writer.send(target, "1", id="1")
                transactions.begin = cancelled_before_it_is_refused  # type: ignore[method-assign]
                task = asyncio.create_task(second())
                with pytest.raises(asyncio.CancelledError):
                    await task
                await writer.send(target, "2", id="2")

    run(work())
    assert values(read, target) == ["1", "2"]


def test_a_task_cancelled_while_it_commits_finishes_the_commit(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader, name: str
) -> None:
    target = topic()

    async def work() -> None:
        servers = broker.bootstrap_servers
        async with AsyncWriter(bootstrap_servers=servers, source="shop", transactional_id=name) as writer:
            transactions = writer._writer._with_transactions()
            loop, settle, seen = asyncio.get_running_loop(), transactions.settle, []

            def cancelled_before_the_end() -> bool:
                loop.call_soon_threadsafe(task.cancel)
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE_S)
                return settle()

            async def block() -> None:
                transaction: AsyncTransaction = writer.transaction()
                seen.append(transaction)
                async with transaction:
                    await writer.send(target, "1", id="1")

            transactions.settle = cancelled_before_the_end  # type: ignore[method-assign]
            task = asyncio.create_task(block())
            with pytest.raises(asyncio.CancelledError):
                await task
            assert seen[0].committed is True

    run(work())
    assert values(read, target) == ["1"]


def commits_behind(writer: AsyncWriter, reached: asyncio.Event, may_go_on: Callable[[], bool]) -> None:
    """Commits come to their last step, tell so, and take it when they may."""
    transactions = writer._writer._with_transactions()
    loop, settle = asyncio.get_running_loop(), transactions.settle

    def settle_later() -> bool:
        loop.call_soon_threadsafe(reached.set)
        wait_until(may_go_on)
        return settle()

    transactions.settle = settle_later  # type: ignore[method-assign]


@pytest.mark.parametrize("by_hand", [True, False], ids=["every task is cancelled", "asyncio.run ends"])
def test_a_commit_is_finished_also_where_every_task_is_cancelled(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader, name: str, *, by_hand: bool
) -> None:
    """As a shutdown's handler does it: also one that only waits for the commit's thread would be among them."""
    target = topic()
    assert told_when_all_is_cancelled(broker, target, name, by_hand=by_hand) == [True]
    assert values(read, target) == ["1"]


def test_control_a_commit_that_a_task_waits_for_is_made_and_its_caller_told_of_none(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``asyncio.to_thread`` would have it: whoever runs the block again, for it was cancelled, writes its events twice."""
    monkeypatch.setattr(asynchronous, "_to_the_end", asyncio.to_thread)
    target = topic()
    assert told_when_all_is_cancelled(broker, target, name, by_hand=True) == [None]
    assert values(read, target) == ["1"]


def told_when_all_is_cancelled(broker: EmbeddedBroker, target: str, name: str, *, by_hand: bool) -> list[bool | None]:
    """What the task that commits is told of its block, where all tasks are cancelled meanwhile."""
    told, noticed = list[bool | None](), threading.Event()

    async def notice() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):  # whoever else was cancelled has come to its end, if it does not wait
                await asyncio.sleep(0)
            noticed.set()

    async def service(reached: asyncio.Event) -> None:
        async with AsyncWriter(
            bootstrap_servers=broker.bootstrap_servers, source="shop", transactional_id=name
        ) as writer:
            commits_behind(writer, reached, noticed.is_set)
            transaction = writer.transaction()
            try:
                async with transaction:
                    await writer.send(target, "1", id="1")
            finally:
                told.append(transaction.committed)

    async def work() -> None:
        reached = asyncio.Event()
        tasks = [asyncio.create_task(service(reached)), asyncio.create_task(notice())]
        await reached.wait()
        if by_hand:
            for each in asyncio.all_tasks() - {asyncio.current_task()}:
                each.cancel()
            assert [type(ended) for ended in await asyncio.gather(*tasks, return_exceptions=True)] == [
                asyncio.CancelledError
            ] * 2

    run(work())
    return told


def test_a_writer_that_is_closed_while_another_task_commits_waits_for_it(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader, name: str
) -> None:
    target = topic()

    async def work() -> None:
        reached = asyncio.Event()
        servers = broker.bootstrap_servers
        async with AsyncWriter(bootstrap_servers=servers, source="shop", transactional_id=name) as writer:
            commits_behind(writer, reached, lambda: writer._writer._closed)
            transaction = writer.transaction()

            async def block() -> None:
                async with transaction:
                    await writer.send(target, "1", id="1")

            task = asyncio.create_task(block())
            await reached.wait()
            assert transaction.committed is None
        await task
        assert transaction.committed is True

    run(work())
    assert values(read, target) == ["1"]


def test_a_task_that_is_cancelled_while_it_opens_a_writer_leaves_it_closed(
    broker: EmbeddedBroker, topic: TopicFactory, name: str
) -> None:
    """Its block never begins, so nobody else would end what holds the id."""
    target = topic()

    async def work() -> None:
        writer = AsyncWriter(bootstrap_servers=broker.bootstrap_servers, source="shop", transactional_id=name)
        loop, opens = asyncio.get_running_loop(), writer._writer.open

        def cancelled_before_it_is_open() -> Any:
            loop.call_soon_threadsafe(task.cancel)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE_S)
            return opens()

        async def service() -> None:
            async with writer:
                raise AssertionError

        writer._writer.open = cancelled_before_it_is_open  # type: ignore[method-assign]
        task = asyncio.create_task(service())
        with pytest.raises(asyncio.CancelledError):
            await task
        writer._writer.open = opens  # type: ignore[method-assign]
        with pytest.raises(WriterClosed):
            await writer.send(target, "x", id="1")

    run(work())


def test_a_writer_that_was_never_opened_is_closed_without_an_error() -> None:
    async def work() -> None:
        writer = AsyncWriter(bootstrap_servers="127.0.0.1:1", source="shop")
        await writer.close()
        with pytest.raises(WriterClosed):
            await writer.open()

    run(work())


def test_a_task_that_waits_while_the_producer_is_replaced_is_woken_also_where_the_cause_is_cancelled(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader
) -> None:
    """Nothing is outstanding by then whose delivery would wake it."""
    ordinary, tight = topic(), topic(config={"max.message.bytes": "20000"})

    async def work() -> None:
        kafka = {"delivery.timeout.ms": 120_000}
        async with AsyncWriter(bootstrap_servers=broker.bootstrap_servers, source="shop", kafka=kafka) as writer:
            await (await writer.send(ordinary, "1", id="1"))
            loop, sender = asyncio.get_running_loop(), writer._writer.sender()
            reached, may_go_on, make = asyncio.Event(), threading.Event(), sender._made

            def make_later(batch_bytes: int) -> Producer:
                loop.call_soon_threadsafe(reached.set)
                may_go_on.wait(PATIENCE_S)
                return make(batch_bytes)

            sender._made = make_later  # type: ignore[method-assign]
            meets = asyncio.create_task(writer.send(tight, "never", id="t"))
            await reached.wait()
            waits = asyncio.create_task(writer.send(ordinary, "2", id="2"))
            while not writer._room._waiters:  # noqa: ASYNC110  nobody tells that a task waits
                await asyncio.sleep(0)
            meets.cancel()
            with pytest.raises(asyncio.CancelledError):
                await meets
            may_go_on.set()
            await (await waits)

    run(work())
    assert (values(read, ordinary), values(read, tight)) == (["1", "2"], [])


def test_what_fails_is_raised_where_it_is_awaited_and_at_the_end(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader
) -> None:
    target = topic(config={"max.message.bytes": "2000"})

    async def work() -> None:
        compressed = {"compression.type": "gzip"}  # so that the broker alone can tell what is too large
        writer = await AsyncWriter(bootstrap_servers=broker.bootstrap_servers, source="shop", kafka=compressed).open()
        with pytest.raises(EventRefused):
            await writer.send(target, "x")
        bad = await writer.send(target, os.urandom(5000), id="bad")
        with pytest.raises(DeliveryFailed, match="shop bad"):
            await bad
        with pytest.raises(DeliveryFailed, match="shop bad"):
            await writer.flush()
        with pytest.raises(DeliveryFailed):
            await writer.close()
        with pytest.raises(WriterClosed):
            await writer.send(target, "x", id="1")

    run(work())
    assert values(read, target) == []
