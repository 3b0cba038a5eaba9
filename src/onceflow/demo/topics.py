"""The demo's topics, and what lies in them that no ``read_committed`` reader sees yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from onceflow.demo.assignment import Pipeline
from onceflow.errors import RequestFailed
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings

INVOICES = "invoices"
PARTITIONS = 4
_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Output:
    """The two topics that a pipeline writes."""

    sales: str
    revenue: str

    @property
    def topics(self) -> tuple[str, str]:
        return self.sales, self.revenue


OUTPUTS = {
    Pipeline.ONCEFLOW: Output("sales", "revenue"),
    Pipeline.BUILT_IN: Output("sales_builtin", "revenue_builtin"),
}


def partitions_of(topics: Sequence[str]) -> list[TopicPartition]:
    """Every partition of the demo's ``topics``."""
    return [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]


def create_topics(bootstrap_servers: str) -> None:
    """Make all topics of the demo, and wait until the broker has them."""
    names = [INVOICES, *(topic for output in OUTPUTS.values() for topic in output.topics)]
    ClusterAdmin(ClusterSettings.of(bootstrap_servers)).create_topics(names, partitions=PARTITIONS)


def uncommitted(bootstrap_servers: str, topics: Sequence[str]) -> int:
    """Offsets between the last stable offset and the end: records and markers of transactions not decided yet."""
    # A client of its own each time: one that knew the broker before its restart asks with an outdated leader epoch.
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    stable = _ends(admin, topics, IsolationLevel.READ_COMMITTED)  # first: a marker may come between the two questions
    ends = _ends(admin, topics, IsolationLevel.READ_UNCOMMITTED)
    return sum(ends[at] - stable[at] for at in ends)


def _ends(admin: AdminClient, topics: Sequence[str], isolation: IsolationLevel) -> dict[tuple[str, int], int]:
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = dict.fromkeys(partitions_of(topics), latest)
    answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=_TIMEOUT_S)
    try:
        return {(at.topic, at.partition): answer.result(timeout=_TIMEOUT_S).offset for at, answer in answers.items()}
    except KafkaException as error:
        raise RequestFailed(f"the ends of {', '.join(topics)}: {error.args[0].str()}") from None
