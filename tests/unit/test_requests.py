"""What the requests do with answers that no healthy broker gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onceflow.errors import BrokerUnreachable
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.messages import Coordinated, Described
from onceflow.transaction.requests import Requests


class StuckCoordinator(KafkaClient):
    """A coordinator that cannot write its markers: a partition has no leader."""

    def __init__(self) -> None:
        super().__init__({"bootstrap_servers": ["127.0.0.1:9"]}, patience_s=0.05)

    def ask_coordinator(self, kind: int, key: str, request: Any) -> Any:  # noqa: ARG002  # noqa: ARG002
        state = SimpleNamespace(error_code=0, producer_id=7, producer_epoch=1, transaction_state="PrepareCommit")
        return SimpleNamespace(transaction_states=[state])


def test_the_wait_for_markers_is_bounded() -> None:
    client = StuckCoordinator()
    requests = Requests(client, "any", version=2, timeout_ms=1000)
    described = requests.describe(settle=False)
    assert isinstance(described, Described)
    assert described.snapshot.state is Coordinated.COMPLETING
    with pytest.raises(BrokerUnreachable, match="markers are not written yet"):
        requests.describe(settle=True)
    client.close()
