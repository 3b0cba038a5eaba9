"""The example of docs/writer.md, as it stands there: it goes on behind aborted blocks, and bills each order once."""

# ruff: noqa: PT012  what raises at the end of a transaction's block is what is tested

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from tests.conftest import Fill, Reader, TopicFactory

from onceflow.broker import EmbeddedBroker
from onceflow.errors import TransactionAborted
from onceflow.writer.writer import Writer

PAGE = Path(__file__).parents[2] / "docs/writer.md"
ORDERS = [str(n) for n in range(20)]
MOST_BLOCKS = 45  # of a second each, where nothing comes


def example(**in_place_of: str) -> str:
    (block,) = [part.split("```")[0] for part in PAGE.read_text().split("```python\n") if "def seek_back" in part]
    for written, meant in in_place_of.items():
        assert written in block
        block = block.replace(written, meant)
    return block


def test_a_consumer_that_is_not_told_otherwise_reads_committed_records_only(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader
) -> None:
    """Nobody can check it, so the default matters: unlike Java's it is the safe one."""
    target = topic()
    with Writer(bootstrap_servers=broker.bootstrap_servers, source="shop", transactional_id=target) as writer:
        with pytest.raises(ZeroDivisionError), writer.transaction():
            writer.send(target, "aborted", id="1").result()
            _ = 1 / 0
        with writer.transaction():
            writer.send(target, "committed", id="2")
    assert next(m.value() for m in read(target, committed=False)) == b"aborted"
    options = {"bootstrap.servers": broker.bootstrap_servers, "group.id": target}
    with closing(Consumer(options)) as untold:
        untold.assign([TopicPartition(target, 0, 0)])
        [first] = untold.consume(1, timeout=60)
    assert first.value() == b"committed"


def test_the_example_bills_each_order_once_also_where_blocks_are_aborted(
    broker: EmbeddedBroker, topic: TopicFactory, fill: Fill, read: Reader
) -> None:
    """The first block is aborted before anything is committed, a later one in a partition where nothing is yet."""
    orders, invoices = topic(2), topic()
    fill(orders, [("a", order) for order in ORDERS[:10]])
    blocks = itertools.count(1)
    abort_at = {"3", "13"}

    def bill(message: Message) -> bytes:
        order = (message.value() or b"").decode()
        if order in abort_at:
            abort_at.remove(order)
            raise TransactionAborted("the connection was lost")
        return order.encode()

    def goes_on() -> bool:
        assert next(blocks) < MOST_BLOCKS
        done = len(read(invoices))
        if done == 10 and "13" in abort_at and not filled:
            fill(orders, [("d", order) for order in ORDERS[10:]])
            filled.append("the other partition")
        return done < len(ORDERS)

    filled: list[str] = []
    text = example(
        **{
            '"localhost:9092"': repr(broker.bootstrap_servers),
            '"orders"': repr(orders),
            '"invoices"': repr(invoices),
            "while True": "while goes_on()",
            'b"invoice for " + message.value()': "bill_of(message)",
        }
    )
    names: dict[str, Any] = {"goes_on": goes_on, "bill_of": bill}
    try:
        exec(compile(text, str(PAGE), "exec"), names)
    finally:
        with closing(names["consumer"]):
            pass
    assert not abort_at
    assert sorted(int(m.value() or b"") for m in read(invoices)) == [int(order) for order in ORDERS]
