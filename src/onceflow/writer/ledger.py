"""Where the marker is: a committed offset of the writer's own group, read when no transaction on it is open."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from onceflow.errors import BrokerUnreachable, NotAuthorized, RequestFailed
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.requests import ANCHOR_PARTITION, ANCHOR_TOPIC
from onceflow.writer.marker import Marker

_log = logging.getLogger("onceflow.writer.librdkafka")
_AWAY = {"_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_WAIT_COORD", "UNSTABLE_OFFSET_COMMIT"}


class Ledger:
    """Reads and names the marker of one transactional id. ``patience_s`` bounds each question."""

    def __init__(self, cluster: ClusterSettings, transactional_id: str, patience_s: float) -> None:
        self._cluster = cluster
        self._patience_s = patience_s
        self.group = f"onceflow.writer.{transactional_id}"
        self.membership = self._membership()

    def ensure_topic(self) -> None:
        """Creates the anchor topic where it is missing. Raises BrokerUnreachable, NotAuthorized, AuthenticationFailed."""
        admin = ClusterAdmin(self._cluster, patience_s=self._patience_s)
        if ANCHOR_TOPIC not in admin.partitions():
            admin.create_topics([ANCHOR_TOPIC], partitions=1)

    def entry(self, marker: Marker) -> TopicPartition:
        """The offset that commits ``marker``."""
        offset, metadata = marker.encode()
        return TopicPartition(ANCHOR_TOPIC, ANCHOR_PARTITION, offset, metadata)

    def read(self, *, stable: bool = True) -> Marker:
        """The committed marker, an empty one where nothing was committed; ``stable`` waits for an undecided transaction.

        That is what makes it an outcome: OffsetFetch with require_stable (KIP-447) answers only when the transaction that
        last touched the marker has ended, one way or the other.
        """
        consumer = self._consumer(stable=stable)
        try:
            entry = consumer.committed([TopicPartition(ANCHOR_TOPIC, ANCHOR_PARTITION)], timeout=self._patience_s)[0]
        except KafkaException as error:
            raise self._failure(error.args[0]) from None
        finally:
            consumer.close()
        if entry.error is not None:
            raise self._failure(entry.error)
        return Marker.decode(entry.offset, entry.metadata or "") if entry.offset >= 0 else Marker()

    def _failure(self, error: Any) -> Exception:
        what = f"the marker of group {self.group}"
        if error.name() in _AWAY:
            return BrokerUnreachable(
                f"{what}: no usable answer within {self._patience_s:g} s: {error.str()}",
                action="check that the brokers run and are reachable",
            )
        if error.name().endswith("AUTHORIZATION_FAILED"):
            return NotAuthorized(
                f"{what}: {error.str()}", action=f"grant READ on the group and DESCRIBE on {ANCHOR_TOPIC}"
            )
        return RequestFailed(f"{what}: {error.str()}", error=error.name())

    def _membership(self) -> Any:
        """What librdkafka needs to commit offsets of a group that nobody is a member of."""
        consumer = self._consumer()
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()

    def _consumer(self, *, stable: bool = True) -> Consumer:
        options = {
            **self._cluster.for_librdkafka(),
            "group.id": self.group,
            "enable.auto.commit": False,
            # What makes librdkafka ask with require_stable.
            "isolation.level": "read_committed" if stable else "read_uncommitted",
        }
        return Consumer(options, logger=_log)
