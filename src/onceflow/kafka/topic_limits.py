"""The largest record batch that each topic accepts.

Only a principal with DESCRIBE_CONFIGS is told. Kafka's default in place of an answer would be a guess::

    a topic takes 10 MB, and the principal is not told; an event of 2 MB comes
    taken for more than the topic accepts, it would stop its outbox, or be set aside, although Kafka takes it
"""

from __future__ import annotations

from typing import Any

from onceflow.kafka import codes
from onceflow.kafka.client import KafkaClient
from onceflow.kafka_python import DescribeConfigsRequest

_TOPIC_RESOURCE = 2
_SETTING = "max.message.bytes"


def max_message_bytes(client: KafkaClient, topic: str) -> int | None:
    """The topic's ``max.message.bytes`` in bytes: the limit of a whole record batch, compressed.

    None where nobody tells: then the broker alone decides, as it does in any case.
    """
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=[_SETTING]
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=False, include_documentation=False, max_version=4
    )
    limit: int | None = client.repeat(
        lambda: _limit(client, client.ask(None, request).results[0], topic), f"the configuration of topic {topic}"
    )
    return limit


def _limit(client: KafkaClient, result: Any, topic: str) -> int | None:
    if result.error_code in codes.UNAUTHORISED:
        return None
    client.check(result.error_code, f"the configuration of topic {topic}")
    value = {config.name: config.value for config in result.configs}.get(_SETTING)
    return int(value) if value else None
