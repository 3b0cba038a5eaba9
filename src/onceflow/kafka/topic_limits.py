"""The largest record batch that each topic accepts."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest

from onceflow.kafka import codes
from onceflow.kafka.client import KafkaClient

_TOPIC_RESOURCE = 2
_SETTING = "max.message.bytes"
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588  # Kafka's default, where the principal may not describe the topic's configuration


def max_message_bytes(client: KafkaClient, topic: str) -> int:
    """The topic's ``max.message.bytes`` in bytes: the limit of a whole record batch, compressed."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=[_SETTING]
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=False, include_documentation=False, max_version=4
    )
    limit: int = client.repeat(
        lambda: _limit(client, client.ask(None, request).results[0], topic), f"the configuration of topic {topic}"
    )
    return limit


def _limit(client: KafkaClient, result: Any, topic: str) -> int:
    if result.error_code in codes.UNAUTHORISED:
        return DEFAULT_MAX_MESSAGE_BYTES
    client.check(result.error_code, f"the configuration of topic {topic}")
    values = {config.name: config.value for config in result.configs}
    return int(values.get(_SETTING) or DEFAULT_MAX_MESSAGE_BYTES)
