"""Topics of onceflow's own, made where they are missing: first of all the anchor topic, which holds no record.

The progress of every pipeline is a committed offset on the anchor topic.
"""

from __future__ import annotations

from collections.abc import Mapping

from onceflow.errors import NotAuthorized, TopicMissing
from onceflow.kafka import codes
from onceflow.kafka.client import Again, KafkaClient
from onceflow.kafka_python import CreateTopicsRequest
from onceflow.transaction.requests import ANCHOR_TOPIC

_TOPIC_ALREADY_EXISTS = 36
_TIMEOUT_MS = 30_000


def ensure_anchor_topic(client: KafkaClient) -> None:
    """Creates the anchor topic where it is missing. Raises NotAuthorized when the principal may not."""
    ensure_own_topic(client, ANCHOR_TOPIC)


def ensure_own_topic(client: KafkaClient, name: str, config: Mapping[str, str] | None = None) -> None:
    """Creates a topic of one partition where it is missing. Raises NotAuthorized when the principal may not."""
    try:
        client.topics([name], sure_s=0)  # whoever makes one that there is learns that
    except TopicMissing:
        client.repeat(lambda: _create(client, name, config or {}), f"the creation of topic {name}")
        client.repeat(lambda: _wait_for_leader(client, name), f"a leader of topic {name}")


def _create(client: KafkaClient, name: str, config: Mapping[str, str]) -> None:
    kind = CreateTopicsRequest.CreatableTopic
    configs = [kind.CreatableTopicConfig(name=option, value=value) for option, value in config.items()]
    topic = kind(name=name, num_partitions=1, replication_factor=-1, assignments=[], configs=configs)
    request = CreateTopicsRequest(
        topics=[topic], timeout_ms=_TIMEOUT_MS, validate_only=False, max_version=6, min_version=4
    )
    answer = client.ask(None, request)
    code = answer.topics[0].error_code
    if code in codes.UNAUTHORISED:
        settings = "".join(f" --config {option}={value}" for option, value in config.items())
        raise NotAuthorized(
            f"topic {name} does not exist and may not be created: {codes.name_of(code)}",
            action=f"create it with one partition: kafka-topics.sh --create --topic {name} --partitions 1{settings}",
        )
    if code != _TOPIC_ALREADY_EXISTS:
        client.check(code, f"the creation of topic {name}")


def _wait_for_leader(client: KafkaClient, name: str) -> None:
    try:
        client.topics([name], refresh=True, sure_s=0)
    except TopicMissing as error:
        raise Again(str(error)) from error
