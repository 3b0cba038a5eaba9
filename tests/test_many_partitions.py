"""More source partitions than offsets fit one request: a coordinator writes those of a request as one batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conftest import HEAP_MB, create_topic

from onceflow.broker import EmbeddedBroker
from onceflow.errors import RequestFailed
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction import questions
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.transaction.messages import Ended, Initialised, ProgressRead, Stored
from onceflow.transaction.progress import Progress
from onceflow.transaction.requests import Requests

SOURCE = "source" + 190 * "s"  # so that the offset of a partition takes 250 bytes, and few partitions do
ENDS = {(SOURCE, partition): 1000 + partition for partition in range(120)}
AT_ONCE = 50
TAKES_THOSE_OF_A_REQUEST = {"message.max.bytes": "20000"}
PROGRESS = Progress(1, "query", "instance", ("digest",))


@pytest.fixture(scope="module", params=[1, 2])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaClient]:
    """Of a broker of each transaction version that takes only small batches, and has the topic."""
    version, directory = request.param, tmp_path_factory.mktemp(f"small-batches-{request.param}")
    config = TAKES_THOSE_OF_A_REQUEST
    with EmbeddedBroker(directory, transaction_version=version, heap_mb=HEAP_MB, config=config) as broker:
        create_topic(broker, SOURCE, len(ENDS))
        with KafkaClient(ClusterSettings.of(broker.bootstrap_servers, {}).for_protocol()) as opened:
            ensure_anchor_topic(opened)
            yield opened


def test_they_are_committed_together_in_one_transaction(client: KafkaClient, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests(client, "many", client.transaction_version(), 60_000)
    begun = requests.initialise(None)
    assert isinstance(begun, Initialised)
    with pytest.raises(RequestFailed, match="UnknownError"):
        requests.store(begun.identity, PROGRESS, ENDS)  # all at once
    monkeypatch.setattr(questions, "OFFSETS_AT_ONCE", AT_ONCE)
    assert requests.store(begun.identity, PROGRESS, ENDS) == Stored()
    assert requests.read_committed(stable=False).offsets == {}
    assert isinstance(requests.end(begun.identity, commit=True), Ended)
    assert requests.read_progress() == ProgressRead(PROGRESS)  # until the markers are written, all is held
    found = requests.read_committed()
    assert (found.progress, found.offsets, found.newest) == (PROGRESS, ENDS, frozenset(ENDS))


def test_they_are_committed_without_a_transaction(client: KafkaClient, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests(client, "plain", client.transaction_version(), 60_000)
    with pytest.raises(RequestFailed, match="UnknownError"):
        requests.commit_offsets(ENDS)  # all at once
    monkeypatch.setattr(questions, "OFFSETS_AT_ONCE", AT_ONCE)
    requests.commit_offsets(ENDS)
    found = requests.read_committed()
    assert (found.progress, found.offsets, found.plain) == (None, ENDS, frozenset(ENDS))
