"""``max.message.bytes`` of a topic, changed while it is used."""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from onceflow.verify.cluster.configs import set_config

LIMIT = "max.message.bytes"
_PATIENCE_S = 90
_BATCH_BYTES = 200  # what a batch of one value has besides that, and some more


def limit_batches(servers: str, topic: str, size: int) -> None:
    """No batch of the topic may be larger; the broker says so when this returns, and does it.

    It says so first: of its metadata, from which each log of the topic is told a moment later.
    """
    set_limit(servers, topic, size)
    deadline = time.monotonic() + _PATIENCE_S
    probe = _Probe(servers, topic)
    while not all(probe.takes(at, size - _BATCH_BYTES) and not probe.takes(at, size) for at in probe.partitions):
        assert time.monotonic() < deadline, f"{topic} does not take {size} bytes at most"
        time.sleep(0.05)


def set_limit(servers: str, topic: str, size: int | None) -> None:
    """The same for whoever looks for himself whether it is done; None: as usual. The broker says so when this returns."""
    set_config(servers, ResourceType.TOPIC, topic, LIMIT, None if size is None else str(size))
    admin, resource = AdminClient({"bootstrap.servers": servers}), ConfigResource(ResourceType.TOPIC, topic)
    deadline = time.monotonic() + _PATIENCE_S
    while size is not None and _limit(admin, resource) != size:
        assert time.monotonic() < deadline, f"{topic} is still not limited to {size}"
        time.sleep(0.05)


def _limit(admin: AdminClient, resource: ConfigResource) -> int:
    return int(admin.describe_configs([resource])[resource].result(_PATIENCE_S)[LIMIT].value)


class _Probe:
    """Sends to a topic, in transactions that are aborted: no reader of committed records gets it."""

    def __init__(self, servers: str, topic: str) -> None:
        options = {"bootstrap.servers": servers, "transactional.id": f"limit-of-{topic}", "log_level": 0}
        self._producer = Producer({**options, "message.max.bytes": 10_000_000, "batch.size": 10_000_000})
        self._producer.init_transactions(_PATIENCE_S)
        self._topic = topic
        self.partitions = list(self._producer.list_topics(topic, timeout=_PATIENCE_S).topics[topic].partitions)

    def takes(self, partition: int, size: int) -> bool:
        """Whether the partition's leader takes a value of that many bytes."""
        errors: list[KafkaError | None] = []
        self._producer.begin_transaction()
        self._producer.produce(
            self._topic, b"x" * size, partition=partition, on_delivery=lambda error, _: errors.append(error)
        )
        assert self._producer.flush(_PATIENCE_S) == 0
        self._producer.abort_transaction(_PATIENCE_S)
        (error,) = errors
        assert error is None or error.code() == KafkaError.MSG_SIZE_TOO_LARGE, error
        return error is None
