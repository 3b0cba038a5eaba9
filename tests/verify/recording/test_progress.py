"""What a group has committed, as it is seen look by look, at a real broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest
from tests.conftest import TopicFactory
from tests.faults.support import eventually

from onceflow.broker import EmbeddedBroker
from onceflow.errors import ProgressConflict
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.messages import Ended, Initialised, Stored
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import ANCHOR_PARTITION, ANCHOR_TOPIC
from onceflow.transaction.requests import Requests
from onceflow.verify.recording import ProgressWatcher

PATIENCE_S = 60.0
PARTITIONS = 2
Seen = tuple[int, ...]


class Pipeline:
    """Gives positions as a pipeline does that reads one topic."""

    def __init__(self, client: KafkaClient, name: str) -> None:
        self._source = name
        self._requests = Requests(client, name, version=2, timeout_ms=60_000)
        started = self._requests.initialise(None)
        assert isinstance(started, Initialised)
        self._identity = started.identity

    def gives(self, progress: int, offsets: Seen = ()) -> None:
        """One transaction."""
        source = {(self._source, number): offset for number, offset in enumerate(offsets)}
        stored = self._requests.store(self._identity, Progress(progress, "query", "driver", ()), source)
        assert isinstance(stored, Stored)
        ended = self._requests.end(self._identity, commit=True)
        assert isinstance(ended, Ended)
        assert ended.identity is not None
        self._identity = ended.identity

    def gives_beside(self, offsets: Seen) -> None:
        """No transaction."""
        self._requests.commit_offsets({(self._source, number): offset for number, offset in enumerate(offsets)})

    def spoils_its_progress(self) -> None:
        """As a tool does that sets a group's offsets."""
        self._requests.commit_offsets({(ANCHOR_TOPIC, ANCHOR_PARTITION): 5})


@pytest.fixture
def watched(broker: EmbeddedBroker, topic: TopicFactory) -> Iterator[tuple[Pipeline, ProgressWatcher]]:
    source, servers = topic(PARTITIONS), broker.bootstrap_servers
    ClusterAdmin(ClusterSettings.of(servers)).create_topics([ANCHOR_TOPIC], partitions=1)
    with (
        KafkaClient(ClusterSettings.of(servers).for_protocol()) as client,
        ProgressWatcher(servers, source, every_s=0.01) as watcher,
    ):
        yield Pipeline(client, source), watcher


def looks(watcher: ProgressWatcher) -> list[Seen]:
    """Progress and offsets of each."""
    seen: dict[int, dict[tuple[bool, int], int]] = defaultdict(dict)
    for row in watcher.table().to_pylist():
        assert row["query"] == "query"
        seen[row["look"]][row["topic"] != ANCHOR_TOPIC, row["partition"]] = row["offset"]
    return [tuple(look[at] for at in sorted(look)) for look in seen.values()]


def test_each_look_is_of_one_batch(watched: tuple[Pipeline, ProgressWatcher]) -> None:
    pipeline, watcher = watched
    batches = [(number, 10 * number, 7 * number) for number in range(1, 30)]
    for progress, *offsets in batches:
        pipeline.gives(progress, tuple(offsets))
    seen = eventually(lambda: looks(watcher), lambda seen: batches[-1] in seen, "the last batch")
    assert set(seen) <= set(batches)
    assert seen == sorted(seen)


def test_what_is_committed_apart_is_seen_apart(watched: tuple[Pipeline, ProgressWatcher]) -> None:
    pipeline, watcher = watched
    pipeline.gives(1, (10, 7))
    pipeline.gives_beside((20, 14))
    eventually(lambda: looks(watcher), lambda seen: (1, 20, 14) in seen, "one half")
    pipeline.gives(2)
    eventually(lambda: looks(watcher), lambda seen: (2, 20, 14) in seen, "the other half")


def test_where_no_progress_is_committed_nothing_is_seen(watched: tuple[Pipeline, ProgressWatcher]) -> None:
    """Offsets alone are another engine's, or of at_least_once."""
    pipeline, watcher = watched
    pipeline.gives_beside((10, 7))
    pipeline.gives(1, (20, 14))
    eventually(lambda: looks(watcher), bool, "a look")
    assert set(looks(watcher)) == {(1, 20, 14)}


def test_who_cannot_read_the_progress_says_so_once(watched: tuple[Pipeline, ProgressWatcher]) -> None:
    """What was seen until then is there."""
    pipeline, watcher = watched
    pipeline.gives(1, (10, 7))
    eventually(lambda: looks(watcher), bool, "a look")
    pipeline.spoils_its_progress()
    watcher._thread.join(PATIENCE_S)
    with pytest.raises(ProgressConflict, match="cannot be read"):
        watcher.stop()
    assert watcher.stop() == watcher.table()
    assert looks(watcher)[0] == (1, 10, 7)
