"""A service that writes needs no Spark."""

from __future__ import annotations

from tests.conftest import Reader, TopicFactory
from tests.without_spark import run_without_spark

from onceflow.broker import EmbeddedBroker

SERVICE = """
import asyncio
import sys
import onceflow

servers, topic = sys.argv[1:]
options = {"bootstrap_servers": servers, "source": "shop", "transactional_id": topic}
with onceflow.Writer(**options) as writer, writer.transaction():
    writer.send(topic, "1", id="1")

async def service():
    async with onceflow.AsyncWriter(**options) as writer, writer.transaction():
        await writer.send(topic, "2", id="2")

asyncio.run(service())
"""


def test_writers_need_no_spark(broker: EmbeddedBroker, topic: TopicFactory, read: Reader) -> None:
    target = topic()
    run_without_spark(SERVICE, broker.bootstrap_servers, target)
    assert [message.value() for message in read(target)] == [b"1", b"2"]
