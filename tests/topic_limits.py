"""``max.message.bytes`` of a topic, changed while it is used."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

LIMIT = "max.message.bytes"
_PATIENCE_S = 90


def limit_batches(servers: str, topic: str, size: int | None) -> None:
    """No batch of the topic may be larger, None: than usual; the broker says so when this returns."""
    operation = AlterConfigOpType.DELETE if size is None else AlterConfigOpType.SET
    entry = ConfigEntry(LIMIT, None if size is None else str(size), incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([resource])[resource].result(_PATIENCE_S)
    deadline = time.monotonic() + _PATIENCE_S
    while size is not None and _limit(admin, resource) != size:
        assert time.monotonic() < deadline, f"{topic} is still not limited to {size}"
        time.sleep(0.05)


def _limit(admin: AdminClient, resource: ConfigResource) -> int:
    return int(admin.describe_configs([resource])[resource].result(_PATIENCE_S)[LIMIT].value)
