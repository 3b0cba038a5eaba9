"""A transaction that is left as it was by a driver that was killed."""

from __future__ import annotations

from onceflow.kafka.client import KafkaClient
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.transaction.messages import Coordinated, Described, Event, Initialised, Stored
from onceflow.transaction.progress import Progress
from onceflow.transaction.requests import Requests

_OUTLIVES_A_START_MS = 600_000


class OpenTransaction:
    """Of the pipeline of this name, with its progress in it. ``client`` is used as long as this is."""

    def __init__(self, client: KafkaClient, name: str) -> None:
        ensure_anchor_topic(client)
        self._requests = Requests(client, name, client.transaction_version(), _OUTLIVES_A_START_MS)
        begun = self._requests.initialise(None)
        assert isinstance(begun, Initialised)
        self._identity = begun.identity
        assert isinstance(self._requests.store(begun.identity, Progress.empty("the driver before"), {}), Stored)

    def is_open(self) -> bool:
        described = self._requests.describe(settle=False)
        assert isinstance(described, Described)
        return described.snapshot.state is Coordinated.ONGOING

    def commit(self) -> Event:
        """As the driver would that left it. Gives the answer."""
        return self._requests.end(self._identity, commit=True)
