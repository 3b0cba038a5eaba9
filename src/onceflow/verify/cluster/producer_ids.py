"""Producer ids as the partition leaders know them: who is known, and a time in which they forget whoever has nothing open."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka.admin import ResourceType

from onceflow.kafka.client import KafkaClient
from onceflow.transaction.questions import describe_producers
from onceflow.verify.cluster.configs import set_config

FORGET_SOON: Mapping[str, str] = {"producer.id.expiration.check.interval.ms": "1000"}
"""Broker settings without which ``forgetting`` takes ten minutes. Alone they change nothing: an id expires after a day."""

_EXPIRATION = "producer.id.expiration.ms"
_FORGOTTEN_AFTER_MS = 1_000


def known_at_leaders(client: KafkaClient, topics: Iterable[str]) -> set[int]:
    """The producer ids that the leaders of all partitions know. Raises BrokerUnreachable."""
    wanted = tuple(topics)

    def once() -> set[int]:
        by_leader: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for topic in client.topics(wanted, refresh=True).values():
            for partition, leader in topic.leaders.items():
                by_leader[leader][topic.name].append(partition)
        return {found for leader, partitions in by_leader.items() for found in _known(client, leader, partitions)}

    found: set[int] = client.repeat(once, f"the producers of {', '.join(wanted)}")
    return found


def _known(client: KafkaClient, leader: int, partitions: Mapping[str, list[int]]) -> Iterator[int]:
    for topic in client.ask(leader, describe_producers(partitions)).topics:
        for part in topic.partitions:
            client.check(part.error_code, f"the producers of {topic.name}-{part.partition_index}", "READ")
            yield from (int(producer.producer_id) for producer in part.active_producers)


@contextmanager
def forgetting(servers: str, nodes: Collection[int]) -> Iterator[None]:
    """Within it these brokers forget producers that have written nothing for a second and have no transaction open.

    And whatever they began to verify more than a second ago, so that nothing but the forgetting is to be done within it::

        producer   its first record of a partition that is not in its transaction is refused (TRANSACTION_ABORTABLE)
        leader     keeps the verification that failed, with the time when it began
        producer   adds the partition, and sends the record again
        leader     goes on with the old verification, and asks the coordinator
        leader     removes what is older than a second
        leader     hears that the partition is in the transaction, and refuses the record (INVALID_TXN_STATE)
    """
    try:
        _expire(servers, nodes, str(_FORGOTTEN_AFTER_MS))
        yield
    finally:
        _expire(servers, nodes, None)


def _expire(servers: str, nodes: Collection[int], after_ms: str | None) -> None:
    """Of each broker by itself; None: as before."""
    for node in nodes:
        set_config(servers, ResourceType.BROKER, str(node), _EXPIRATION, after_ms)
