"""Positions as they are committed: those of another version are told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.faults.support import delete_topic, eventually
from tests.ingest.support import files, take

from onceflow.broker import EmbeddedBroker
from onceflow.errors import ConfigurationError, TopicMissing
from onceflow.ingest.file_position import FilePosition, Print
from onceflow.ingest.files import Format
from onceflow.ingest.positions import _read_to_the_end, read_positions
from onceflow.ingest.tables import TablePosition
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.outbox.position import Sent

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

FILE = FilePosition("file:///a.jsonl#1-2-ab", "/a.jsonl", 1, 2, Print(3, "ab", "cd"), 3, 1)
TABLE = TablePosition("sqlite:///shop.db/orders#1-orders", "1-orders", 7, ("id",))
OUTBOX = Sent("6ac9", 3, 7, ((1, 7),), "ab", (2,))


@pytest.mark.parametrize(
    ("position", "text", "read"),
    [
        (FILE, FILE.text(), FilePosition.of),
        (TABLE, TABLE.text(), TablePosition.of),
        (OUTBOX, OUTBOX.to_json(), Sent.from_json),
    ],
)
def test_what_a_later_version_wrote_is_refused_by_name(
    position: object, text: str, read: Callable[[str], object]
) -> None:
    assert read(text) == position
    later = json.dumps({**json.loads(text), "escape": "\\"})
    with pytest.raises(ConfigurationError, match=r"by a later version, .* does not know: escape\n") as caught:
        read(later)
    assert str(caught.value.fields["where"]) in caught.value.message
    assert "that version or a later one" in caught.value.action


def test_a_print_of_a_later_version_too_and_nothing_is_read(tmp_path: Path) -> None:
    path, positions = tmp_path / "a.jsonl", dict[str, str]()
    path.write_text("1\n2\n")
    take(files(path, Format.JSONL), positions)
    [(source, text)] = positions.items()
    found = json.loads(text)
    positions[source] = json.dumps({**found, "seen": {**found["seen"], "middle": "ef"}})
    with pytest.raises(ConfigurationError, match=r"a\.jsonl#.* does not know: middle\n"):
        take(files(path, Format.JSONL), positions)


def test_a_certificate_file_that_cannot_be_read_is_a_mistake_of_the_settings() -> None:
    settings = ClusterSettings.of(
        "127.0.0.1:1", {"security.protocol": "SSL", "ssl.truststore.location": "/nowhere/ca.pem"}
    )
    with (
        closing(KafkaClient(ClusterSettings.of("127.0.0.1:1").for_protocol())) as client,
        pytest.raises(ConfigurationError, match=r"ssl\.ca\.location failed"),
    ):
        read_positions(settings, client, "t")


def test_a_topic_that_is_deleted_while_it_is_read_is_named(broker: EmbeddedBroker, topic: TopicFactory) -> None:
    """librdkafka would be silent for ever."""
    settings, name = ClusterSettings.of(broker.bootstrap_servers), topic(1)
    with KafkaClient(settings.for_protocol()) as client, closing(reading(settings, name)) as consumer:
        delete_topic(broker, name)
        with pytest.raises(TopicMissing, match=f"{name}, which holds the positions, was deleted while they were read"):
            _read_to_the_end(consumer, client, name)


def reading(settings: ClusterSettings, topic: str) -> Consumer:
    """Has come to the end of the topic once."""
    consumer = Consumer({**settings.for_librdkafka(), "group.id": topic, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    eventually(lambda: consumer.consume(1, 1), bool, f"the end of {topic}")
    return consumer
