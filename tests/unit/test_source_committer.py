"""A source whose progress goes while it runs: what its user is advised, for what a pipeline is advised would send rows again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from onceflow.errors import ProgressGone
from onceflow.ingest.committer import SourceCommitter
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.coordinator import TransactionCoordinator
from onceflow.transaction.messages import (
    Coordinated,
    Described,
    Ended,
    Event,
    Identity,
    Initialised,
    ProgressRead,
    Refused,
    Snapshot,
    Stored,
)
from onceflow.transaction.protocol import Protocol, Settings
from onceflow.transaction.requests import Requests

ABSENT = Described(Snapshot(Coordinated.ABSENT, None))
START: list[Event] = [
    ABSENT,
    Initialised(Identity(7, 1)),
    ProgressRead(None),
    Described(Snapshot(Coordinated.EMPTY, Identity(7, 1))),
    Stored(),
    Ended(Identity(7, 2)),
]
GONE: list[Event] = [ABSENT, ProgressRead(None)]


class Cluster:
    """Answers requests with the events of the script."""

    name = "shop"

    def __init__(self) -> None:
        self._answers: list[Event] = [*START, Refused("INVALID_PRODUCER_ID_MAPPING"), *GONE, *GONE]

    def _answer(self, *_: Any) -> Event:
        return self._answers.pop(0)

    describe = initialise = read_progress = read_sources = audit = store = end = _answer


class Scripted(SourceCommitter):
    """Writes nothing, and has no positions."""

    def __init__(self, kind: str, *, trust_positions: bool) -> None:
        super().__init__("shop", ClusterSettings.of("localhost:1", {}), kind=kind, trust_positions=trust_positions)
        self._protocol = Protocol(Settings("me", epoch_per_end=True))
        self._coordinator = TransactionCoordinator(cast("Requests", Cluster()), self._protocol)

    def _read(self) -> dict[str, str]:
        return {}

    def _write(self, *_: Any) -> dict[tuple[str, int], int]:
        return {}


@pytest.mark.parametrize(
    ("kind", "trusts", "advice"),
    [
        ("outbox", True, "start it again: it goes on from its positions in topic onceflow-positions-outbox-shop"),
        (
            "ingest",
            False,
            "start it again: it goes on from its positions in topic onceflow-positions-ingest-shop with --trust-positions, if "
            "the topic was not restored from an old copy",
        ),
    ],
)
def test_a_source_whose_progress_is_gone_is_not_advised_to_send_again(kind: str, trusts: bool, advice: str) -> None:
    with Scripted(kind, trust_positions=trusts) as source:
        source.start()
        with pytest.raises(ProgressGone) as caught:
            source.commit([], {"file": "1"})
        assert caught.value.action == advice
        with pytest.raises(ProgressGone) as caught:
            source.start()
        assert caught.value.action == advice
