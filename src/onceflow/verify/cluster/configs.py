"""One setting of a topic or of a broker, while the cluster runs (KIP-339)."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

_PATIENCE_S = 60.0


def set_config(servers: str, kind: ResourceType, name: str, option: str, value: str | None) -> None:
    """``value`` None: as if it had never been set. Raises KafkaException. Blocks."""
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(option, value, incremental_operation=operation)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(_PATIENCE_S)
