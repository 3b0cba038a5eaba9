"""The demo's topics, and what lies in them that no ``read_committed`` reader sees yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from onceflow.demo.assignment import Pipeline

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


class Topics:
    """Makes the topics and looks at their ends."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._settings = {"bootstrap.servers": bootstrap_servers, "log_level": 2}

    def create(self) -> None:
        """Make all topics of the demo, and wait until the broker has them."""
        names = [INVOICES, *(topic for output in OUTPUTS.values() for topic in output.topics)]
        new = [NewTopic(name, PARTITIONS, 1) for name in names]
        admin = AdminClient(self._settings)
        for made in admin.create_topics(new, operation_timeout=_TIMEOUT_S).values():
            made.result(timeout=_TIMEOUT_S)

    def uncommitted(self, topics: Sequence[str]) -> int:
        """Offsets between the last stable offset and the end: records and markers of transactions not decided yet."""
        # A client of its own each time: one that knew the broker before its restart asks with an outdated leader epoch.
        admin = AdminClient(self._settings)
        ends = _ends(admin, topics, IsolationLevel.READ_UNCOMMITTED)
        stable = _ends(admin, topics, IsolationLevel.READ_COMMITTED)
        return sum(ends[at] - stable[at] for at in ends)


def _ends(admin: AdminClient, topics: Sequence[str], isolation: IsolationLevel) -> dict[tuple[str, int], int]:
    asked = {at: OffsetSpec.latest() for at in partitions_of(topics)}
    answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=_TIMEOUT_S)
    return {(at.topic, at.partition): answer.result(timeout=_TIMEOUT_S).offset for at, answer in answers.items()}
