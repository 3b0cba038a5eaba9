"""Waiting for what must become true."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from onceflow.broker import EmbeddedBroker

_PATIENCE_S = 90


def wait_until(condition: Callable[[], bool]) -> None:
    """Looks again and again; fails when it takes too long."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.05)


def is_stable(broker: EmbeddedBroker, topic: str) -> bool:
    """Whether no transaction is open on the first partition of a topic that holds something."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

    def end(level: IsolationLevel) -> int:
        wanted = {TopicPartition(topic, 0): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        found = next(iter(admin.list_offsets(wanted, isolation_level=level).values())).result(timeout=60)
        return int(found.offset)

    return 0 < end(IsolationLevel.READ_UNCOMMITTED) == end(IsolationLevel.READ_COMMITTED)
