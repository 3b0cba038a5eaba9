"""The anchor topic: it holds no record, the progress of every pipeline is a committed offset on it."""

from __future__ import annotations

from kafka.protocol.admin import CreateTopicsRequest

from onceflow.errors import NotAuthorized, TopicMissing
from onceflow.kafka import codes
from onceflow.kafka.client import Again, KafkaClient
from onceflow.transaction.requests import ANCHOR_TOPIC

_TOPIC_ALREADY_EXISTS = 36
_TIMEOUT_MS = 30_000


def ensure_anchor_topic(client: KafkaClient) -> None:
    """Creates the anchor topic where it is missing. Raises NotAuthorized when the principal may not."""
    try:
        client.topics([ANCHOR_TOPIC])
    except TopicMissing:
        client.repeat(lambda: _create(client), f"the creation of topic {ANCHOR_TOPIC}")
        client.repeat(lambda: _wait_for_leader(client), f"a leader of topic {ANCHOR_TOPIC}")


def _create(client: KafkaClient) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=ANCHOR_TOPIC, num_partitions=1, replication_factor=-1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(
        topics=[topic], timeout_ms=_TIMEOUT_MS, validate_only=False, max_version=6, min_version=4
    )
    answer = client.ask(None, request)
    code = answer.topics[0].error_code
    if code in codes.UNAUTHORISED:
        raise NotAuthorized(
            f"topic {ANCHOR_TOPIC} does not exist and may not be created: {codes.name_of(code)}",
            action=f"create it with one partition: kafka-topics.sh --create --topic {ANCHOR_TOPIC} --partitions 1",
        )
    if code != _TOPIC_ALREADY_EXISTS:
        client.check(code, f"the creation of topic {ANCHOR_TOPIC}")


def _wait_for_leader(client: KafkaClient) -> None:
    try:
        client.topics([ANCHOR_TOPIC], refresh=True)
    except TopicMissing as error:
        raise Again(str(error)) from error
