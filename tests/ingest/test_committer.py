"""Rows and positions in one transaction: both or neither, by one instance at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from onceflow.broker import EmbeddedBroker
from onceflow.errors import AttemptsExhausted, Fenced, OnceflowError, ProgressConflict
from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.positions import positions_topic
from onceflow.kafka.settings import ClusterSettings

if TYPE_CHECKING:
    from tests.conftest import Reader, TopicFactory


def rows(*values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values)})


def committer(broker: EmbeddedBroker, name: str, **options: object) -> SourceCommitter:
    return SourceCommitter(name, ClusterSettings.of(broker.bootstrap_servers, {}), **options)  # type: ignore[arg-type]


@pytest.fixture(params=["broker", "broker_v1"])
def cluster(request: pytest.FixtureRequest) -> EmbeddedBroker:
    running: EmbeddedBroker = request.getfixturevalue(request.param)
    return running


@pytest.fixture
def target(topic: TopicFactory, cluster: EmbeddedBroker) -> str:
    return topic(2, on=cluster)


def test_the_next_start_finds_the_positions_of_the_last_commit(
    cluster: EmbeddedBroker, target: str, read: Reader
) -> None:
    with committer(cluster, target) as first:
        assert first.start() == {}
        assert first.commit([(target, rows("a", "b")), (target, rows("c"))], {"file": "3", "other": "1"}) == 3
        assert first.commit([(target, rows("d"))], {"file": "4", "other": None}) == 1
    with committer(cluster, target) as second:
        assert second.start() == {"file": "4"}
        assert second.commit([], {"file": "5"}) == 0
        assert second.start() == {"file": "5"}
    assert sorted(str(m.value(), "utf-8") for m in read(target, on=cluster)) == ["a", "b", "c", "d"]  # type: ignore[arg-type]


def test_a_second_instance_fences_the_first(cluster: EmbeddedBroker, target: str, read: Reader) -> None:
    with committer(cluster, target) as first, committer(cluster, target) as second:
        first.start()
        first.commit([(target, rows("a"))], {"file": "1"})
        assert second.start() == {"file": "1"}
        with pytest.raises(Fenced):
            first.commit([(target, rows("b"))], {"file": "2"})
        second.commit([(target, rows("c"))], {"file": "2"})
    assert sorted(m.value() or b"" for m in read(target, on=cluster)) == [b"a", b"c"]


def test_a_source_that_fails_leaves_nothing_and_the_next_start_goes_on(
    cluster: EmbeddedBroker, target: str, read: Reader
) -> None:
    def failing() -> Iterator[tuple[str, pa.RecordBatch]]:
        yield target, rows("lost")
        raise ValueError("the file cannot be read")

    with committer(cluster, target) as source:
        source.start()
        with pytest.raises(ValueError, match="cannot be read"):
            source.commit(failing(), {"file": "1"})
        assert source.start() == {}
        source.commit([(target, rows("a"))], {"file": "1"})
    assert [m.value() for m in read(target, on=cluster)] == [b"a"]


def test_positions_that_were_lost_are_noticed(cluster: EmbeddedBroker, target: str) -> None:
    with committer(cluster, target) as source:
        source.start()
        source.commit([(target, rows("a"))], {"file": "1"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for done in admin.delete_topics([positions_topic("ingest", target)], operation_timeout=30).values():
        done.result(60)
    with committer(cluster, target) as source, pytest.raises(ProgressConflict, match="are not those"):
        source.start()


def test_kinds_do_not_fence_each_other(cluster: EmbeddedBroker, target: str) -> None:
    with committer(cluster, target) as ingest, committer(cluster, target, kind="outbox") as outbox:
        ingest.start()
        outbox.start()
        ingest.commit([(target, rows("a"))], {"file": "1"})
        outbox.commit([(target, rows("b"))], {"table": "1"})


def test_after_an_error_only_a_start_goes_on(cluster: EmbeddedBroker, target: str) -> None:
    with committer(cluster, target) as source:
        source.start()
        with pytest.raises(OnceflowError) as caught:
            source.commit([("no-such-topic", rows("a"))], {"file": "1"})
        assert not isinstance(caught.value, AttemptsExhausted)
        with pytest.raises(AssertionError, match="start first"):
            source.commit([(target, rows("a"))], {"file": "1"})
