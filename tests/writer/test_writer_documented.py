"""The example of docs/writer.md, as it stands there: it goes on behind aborted blocks, and bills each order once."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import Message
from tests.conftest import Fill, Reader, TopicFactory

from onceflow.broker import EmbeddedBroker
from onceflow.errors import TransactionAborted

PAGE = Path(__file__).parents[2] / "docs/writer.md"
ORDERS = [str(n) for n in range(20)]
MOST_BLOCKS = 45  # of a second each, where nothing comes


def example(**in_place_of: str) -> str:
    (block,) = [part.split("```")[0] for part in PAGE.read_text().split("```python\n") if "def seek_back" in part]
    for written, meant in in_place_of.items():
        assert written in block
        block = block.replace(written, meant)
    return block


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
