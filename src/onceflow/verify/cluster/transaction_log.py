"""What the transaction coordinator knows of a transactional id: asked, and changed by way of its log.

The log is an internal topic; who leads an id's partition of it coordinates the id, and reads it when it takes over. So what comes
after days of rest, or after hours of small batches, is brought about within seconds::

    log           an entry is written, as the coordinator itself would have written it by then
    coordinator   another node takes over (a node that is alone is started again), and finds that entry

Nobody may use the id meanwhile: the old coordinator would write over it what it has in memory.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, Producer

from onceflow.errors import VerificationError
from onceflow.kafka import codes
from onceflow.kafka.client import TRANSACTION, Again, KafkaClient
from onceflow.kafka_python import DescribeTransactionsRequest
from onceflow.verify.cluster import placement

if TYPE_CHECKING:
    from onceflow.verify.cluster.kafka import KafkaCluster

_PATIENCE_S = 60.0
_CLIENT_ID = "__admin_client"  # only clients with this id may write to internal topics
_EMPTY = 0  # the state of an id without a transaction
ONGOING = "Ongoing"
_SETTLED = ("Empty", "CompleteCommit", "CompleteAbort")


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands behind a transactional id."""

    producer_id: int
    epoch: int
    timeout_ms: int
    state: str = "Empty"

    @property
    def is_settled(self) -> bool:
        """Whether no transaction of it is open or being ended."""
        return self.state in _SETTLED


def entry_of(client: KafkaClient, transactional_id: str) -> Entry | None:
    """What the coordinator has now; None: it does not know the id. Raises BrokerUnreachable."""

    def once() -> Entry | None:
        try:
            return _described(client, transactional_id)
        except Again:
            client.forget_coordinator(TRANSACTION, transactional_id)
            raise

    found: Entry | None = client.repeat(once, f"the transaction of {transactional_id!r}")
    return found


def _described(client: KafkaClient, transactional_id: str) -> Entry | None:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    answer = client.ask_coordinator(TRANSACTION, transactional_id, request).transaction_states[0]
    if answer.error_code == codes.TRANSACTIONAL_ID_NOT_FOUND:
        return None
    client.check(answer.error_code, f"the transaction of {transactional_id!r}")
    return Entry(answer.producer_id, answer.producer_epoch, answer.transaction_timeout_ms, answer.transaction_state)


def replace_entry(cluster: KafkaCluster, transactional_id: str, entry: Entry | None) -> None:
    """Makes it what the coordinator has; None: it knows the id no more. Returns when it is so. Raises VerificationError."""
    number = placement.partition_of(cluster.client, TRANSACTION, transactional_id)
    write_entries(cluster.direct_servers, number, {transactional_id: entry})
    _have_it_read(cluster, transactional_id)
    found = entry_of(cluster.client, transactional_id)
    if found != entry:
        raise VerificationError(f"the log of {transactional_id!r} says {entry}, and its coordinator {found}")


def _have_it_read(cluster: KafkaCluster, transactional_id: str) -> None:
    coordinator = cluster.transaction_coordinator(transactional_id)
    others = cluster.others(coordinator)
    if others:
        cluster.move_transaction_coordinator(transactional_id, others[0])
    else:
        coordinator.restart()
    cluster.wait_until_healthy()


def write_entries(servers: str, partition: int, entries: Mapping[str, Entry | None]) -> None:
    """Adds them to this partition of the log, by transactional id; who leads it reads them when it takes over or starts again.

    Raises VerificationError.
    """
    failed: list[str] = []

    def told(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer({"bootstrap.servers": servers, "client.id": _CLIENT_ID, "acks": "all", "log_level": 0})
    for transactional_id, entry in entries.items():
        key, value = _key(transactional_id), None if entry is None else _value(entry)
        producer.produce(placement.TRANSACTIONS_TOPIC, key=key, value=value, partition=partition, on_delivery=told)
    if producer.flush(_PATIENCE_S) or failed:
        raise VerificationError(f"{placement.TRANSACTIONS_TOPIC}-{partition} took no entry: {failed or 'no answer'}")


def _key(transactional_id: str) -> bytes:
    """TransactionLogKey, version 0."""
    text = transactional_id.encode()
    return struct.pack(f">hh{len(text)}s", 0, len(text), text)


def _value(entry: Entry) -> bytes:
    """TransactionLogValue, version 0: producer id and epoch, timeout, state, no partitions, last update, start."""
    now_ms = int(time.time() * 1000)
    return struct.pack(">hqhibiqq", 0, entry.producer_id, entry.epoch, entry.timeout_ms, _EMPTY, -1, now_ms, -1)
