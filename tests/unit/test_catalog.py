"""What is known of topics: for how long, and what becomes of it when an attempt failed."""

from __future__ import annotations

from typing import cast

import pyarrow as pa
import pytest

from onceflow.errors import RecordTooLarge, TopicMissing
from onceflow.kafka.client import KafkaClient, Topic
from onceflow.outbox.refusals import refused_by_kafka
from onceflow.outbox.table import OutboxRow
from onceflow.transaction import catalog as module
from onceflow.transaction import router
from onceflow.transaction.catalog import TopicCatalog
from onceflow.transaction.compression import Codec
from onceflow.transaction.router import Encoding, TopicInfo, TopicRouter


class Cluster:
    """Topics by name, with their number of partitions; ``asked`` in this order."""

    def __init__(self, **topics: int) -> None:
        self.partitions = topics
        self.asked: list[str] = []
        self.sure_s = -1.0

    def topics(self, names: list[str], *, refresh: bool, sure_s: float) -> dict[str, Topic]:
        assert refresh
        self.asked += names
        self.sure_s = sure_s
        if missing := [name for name in names if name not in self.partitions]:
            raise TopicMissing(f"{missing} do not exist")
        return {name: Topic(name, dict.fromkeys(range(self.partitions[name]), 1)) for name in names}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(module, "max_message_bytes", lambda client, topic: 1000)
    return Cluster(sales=4, audit=1)


@pytest.fixture
def catalog(cluster: Cluster) -> TopicCatalog:
    return TopicCatalog(cast("KafkaClient", cluster))


def test_a_topic_is_asked_for_once(cluster: Cluster, catalog: TopicCatalog) -> None:
    assert [catalog.find("sales").partitions for _ in range(3)] == [4, 4, 4]
    assert catalog.known() == {"sales": TopicInfo(4, 1000)}
    assert cluster.asked == ["sales"]


def test_what_is_too_old_is_asked_for_again_before_tasks_are_told(
    cluster: Cluster, catalog: TopicCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the executors would never hear of partitions that were added, nor of a topic that was made anew with fewer."""
    catalog.find("sales")
    cluster.partitions["sales"] = 2
    assert catalog.known()["sales"].partitions == 4
    monkeypatch.setattr(module, "MAX_AGE_S", 0.0)
    assert catalog.known()["sales"].partitions == 2


def test_after_an_attempt_that_failed_all_is_asked_for_again_once(cluster: Cluster, catalog: TopicCatalog) -> None:
    catalog.find("sales")
    cluster.partitions["sales"] = 2
    catalog.forget()
    assert [catalog.find("sales").partitions for _ in range(2)] == [2, 2]
    assert cluster.asked == ["sales", "sales"]


def test_a_topic_that_is_gone_holds_no_batch_up(cluster: Cluster, catalog: TopicCatalog) -> None:
    """Of many that were deleted each would cost its doubt. Who writes one again looks with the doubt."""
    catalog.find("sales")
    assert cluster.sure_s > 0
    catalog.forget()
    del cluster.partitions["sales"]
    assert catalog.known() == {}
    assert cluster.sure_s == 0
    with pytest.raises(TopicMissing):
        catalog.find("sales")
    assert cluster.sure_s > 0


def test_where_nobody_tells_the_limit_what_is_assumed_is_told_as_that(
    cluster: Cluster, catalog: TopicCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no row is at fault for it: ``is_told``."""
    monkeypatch.setattr(module, "max_message_bytes", lambda client, topic: None)
    monkeypatch.setattr(router, "_UNTOLD_LIMIT_BYTES", 2000)
    found = TopicRouter(Encoding("sales", Codec.NONE, 0, 0), catalog.find)
    with pytest.raises(
        RecordTooLarge, match=r"than brokers read by default \(assumed: 2,000; the principal is not told"
    ) as caught:
        list(found.add(pa.record_batch({"value": [b"x" * 1900, b"x" * 3000]})))
    assert "grant DESCRIBE_CONFIGS on the topic" in caught.value.action
    rows = [OutboxRow(number, str(number), "a", "b", "c", b"", None) for number in range(2)]
    assert refused_by_kafka(RecordTooLarge("", **{**caught.value.fields, "topic": "outbox.event.a"}), rows) == []


def test_a_topic_that_is_gone_is_told_to_whoever_writes_it(cluster: Cluster, catalog: TopicCatalog) -> None:
    catalog.find("sales")
    catalog.find("audit")
    del cluster.partitions["audit"]
    catalog.forget()
    assert set(catalog.known()) == {"sales"}
    with pytest.raises(TopicMissing):
        catalog.find("audit")
