"""The private topics: those that the plan reads and writes."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

_PATIENCE_S = 60.0


def create_topics(bootstrap_servers: str, topics: Mapping[str, int], *, brokers: int) -> None:
    """Makes them, each with so many partitions, as durable as the cluster can, and waits for them."""
    replicas = min(brokers, 3)
    config = {"min.insync.replicas": str(2 if replicas == 3 else 1)}
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    new = [NewTopic(name, partitions, replicas, config=config) for name, partitions in topics.items()]
    for future in admin.create_topics(new, operation_timeout=_PATIENCE_S).values():
        future.result(_PATIENCE_S)
