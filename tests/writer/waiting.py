"""Waiting for what must become true."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka.admin import AdminClient
from tests.log_ends import last_stable_offsets, log_ends

from onceflow.broker import EmbeddedBroker

_PATIENCE_S = 300


def wait_until(condition: Callable[[], bool]) -> None:
    """Looks again and again; fails when it takes too long."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.05)


def is_stable(broker: EmbeddedBroker, topic: str) -> bool:
    """Whether no transaction is open on the first partition of a topic that holds something."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    return 0 < log_ends(admin, topic, [0])[0] == last_stable_offsets(admin, topic, [0])[0]
