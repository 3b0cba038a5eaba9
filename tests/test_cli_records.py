"""Reading a topic by hand: what is shown of a record, and a cluster that goes away meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError as Problem
from confluent_kafka import KafkaException, Producer, TopicPartition
from tests.command_line import onceflow_says

from onceflow.broker import EmbeddedBroker
from onceflow.cli import records
from onceflow.errors import BrokerUnreachable, RequestFailed
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import TopicFactory


def test_a_record_is_one_line_whatever_is_in_it(broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path) -> None:
    """Nothing, and the text that would say so, are told apart."""
    target = topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for key, value in (("a", None), (None, "None"), ("b", "two\nlines\\"), ("", "")):
        producer.produce(target, value, key)
    assert producer.flush(60) == 0
    said = onceflow_says(tmp_path, "broker", "read", "-d", str(broker.directory), target)
    assert said == "a\t\\N\n\\N\tNone\nb\ttwo\\nlines\\\\\n\t\n"


class Consumer:
    """One of a cluster whose brokers answer nothing; ``failing``: what it is told of them."""

    def __init__(self, failing: KafkaException | None = None) -> None:
        self._failing = failing

    def get_watermark_offsets(self, *_: object, **__: object) -> None:
        if self._failing:
            raise self._failing

    def assign(self, places: list[TopicPartition]) -> None:
        """Waits for nothing."""

    def position(self, places: list[TopicPartition]) -> list[TopicPartition]:
        return places

    def poll(self, timeout: float) -> None:
        """Nothing comes."""

    def close(self) -> None:
        """Has no connections."""


@pytest.mark.parametrize(
    ("consumer", "error"),
    [(Consumer(), BrokerUnreachable), (Consumer(KafkaException(Problem(Problem._TRANSPORT))), RequestFailed)],
    ids=["no-answer", "no-connection"],
)
def test_brokers_that_go_away_before_a_partition_is_read(
    broker: EmbeddedBroker,
    topic: TopicFactory,
    monkeypatch: pytest.MonkeyPatch,
    consumer: Consumer,
    error: type[Exception],
) -> None:
    target = topic()
    settings = ClusterSettings.of(broker.bootstrap_servers)
    records.send_lines(settings, target, ["a"], None)
    monkeypatch.setattr(records, "Consumer", lambda *_, **__: consumer)
    with pytest.raises(error, match=f"the beginning of {target}-0"):
        list(records.read_committed(settings, target))


def test_brokers_that_go_away_while_a_partition_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are there when they are asked first, as where all that comes is aborted."""
    asked: list[Any] = []

    class Admin(ClusterAdmin):
        def end_offsets(self, partitions: Any) -> dict[Any, int]:
            asked.append(partitions)
            if len(asked) == 2:
                raise BrokerUnreachable("no broker answers")
            return {}

    class Silent(Consumer):
        def get_watermark_offsets(self, *_: object, **__: object) -> Any:
            return 0, 1

    monkeypatch.setattr(records, "PATIENCE_S", -1.0)
    admin = Admin(ClusterSettings.of("127.0.0.1:9"))
    with pytest.raises(BrokerUnreachable):
        list(records._partition(Silent(), admin, "t", 0, 1))  # type: ignore[arg-type]
    assert asked == [[("t", 0)]] * 2
