"""What a group has committed, as it is seen look by look, at a real broker."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from kafka.protocol.consumer import OffsetDeleteRequest
from tests.conftest import TopicFactory
from tests.faults.support import eventually

from onceflow.broker import EmbeddedBroker
from onceflow.errors import ProgressConflict
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.client import GROUP, KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.messages import Ended, Initialised, Stored
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import ANCHOR_PARTITION, ANCHOR_TOPIC, Committed, Question
from onceflow.transaction.requests import Requests
from onceflow.verify.recording import ProgressWatcher
from onceflow.verify.recording import progress as recording

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

    def loses_its_progress(self) -> None:
        """As by a tool that removes a group's offsets (OffsetDelete, KIP-496)."""
        kind = OffsetDeleteRequest.OffsetDeleteRequestTopic
        progress = kind(
            name=ANCHOR_TOPIC, partitions=[kind.OffsetDeleteRequestPartition(partition_index=ANCHOR_PARTITION)]
        )
        asking = self._requests._asking
        request = OffsetDeleteRequest(group_id=asking.questions.id, topics=[progress])
        code = self._requests._run(asking.ask(Question(GROUP, request, lambda answer: answer.error_code)))
        assert code == 0


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


def test_a_progress_that_somebody_removes_is_missed(watched: tuple[Pipeline, ProgressWatcher]) -> None:
    pipeline, watcher = watched
    pipeline.gives(3, (10, 7))
    eventually(lambda: looks(watcher), lambda seen: (3, 10, 7) in seen, "the progress")
    pipeline.loses_its_progress()
    eventually(lambda: looks(watcher), lambda seen: (0, 10, 7) in seen, "offsets without it")
    pipeline.gives(4, (20, 14))
    seen = eventually(lambda: looks(watcher), lambda seen: (4, 20, 14) in seen, "the next batch")
    assert set(seen) == {(3, 10, 7), (0, 10, 7), (4, 20, 14)}


class Group:
    """In the place of the group's coordinator: gives one answer after the other, and ends the watch with the last."""

    def __init__(self, *answers: Committed) -> None:
        self._answers = list(answers)
        self.ending: threading.Event | None = None

    def read_committed(self, *, stable: bool) -> Committed:
        assert stable
        if len(self._answers) == 1:
            assert self.ending is not None
            self.ending.set()
        return self._answers.pop(0)


def test_a_progress_that_is_gone_is_seen_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there was one: before that a name is new. What is there without it is seen beside it."""
    offsets, nothing = {("in", 0): 10, ("in", 1): 7}, Committed(None, {})
    known, gone = Committed(Progress(2, "query", "driver", ()), offsets), Committed(None, offsets)
    group = Group(nothing, gone, known, gone, nothing, known)
    monkeypatch.setattr(recording, "KafkaClient", lambda *_, **__: nullcontext())
    monkeypatch.setattr(recording, "Requests", lambda *_, **__: group)
    clock = itertools.count(0.0)
    watcher = ProgressWatcher("127.0.0.1:1", "nobody", clock=lambda: next(clock), every_s=0.0)
    group.ending = watcher.ending
    watcher.watch()
    assert looks(watcher) == [(2, 10, 7), (0, 10, 7), (0,), (2, 10, 7)]
    assert sorted({row["at_s"] for row in watcher.table().to_pylist()}) == [2.0, 3.0, 4.0, 5.0]


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
