"""Where the marker is: a committed offset of the writer's own group, read when no transaction on it is open."""

from __future__ import annotations

import logging
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onceflow.errors import BrokerUnreachable, NotAuthorized, RequestFailed
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.opened import opened
from onceflow.kafka.rights import is_denied
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.requests import ANCHOR_PARTITION, ANCHOR_TOPIC
from onceflow.writer.marker import Marker

_log = logging.getLogger("onceflow.writer.librdkafka")
_SLICE_S = 2.0
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
        admin.create_topics([ANCHOR_TOPIC], partitions=1, needed="READ")

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
            entry = self._committed(consumer)
        except KafkaException as error:
            raise self._failure(error.args[0]) from None
        finally:
            consumer.close()
        if entry.error is not None:
            raise self._failure(entry.error)
        return Marker.decode(entry.offset, entry.metadata or "") if entry.offset >= 0 else Marker()

    def _committed(self, consumer: Consumer) -> TopicPartition:
        """Asks in slices: librdkafka waits for the group's coordinator in any case, and tells who polls that it is denied."""
        at, deadline = TopicPartition(ANCHOR_TOPIC, ANCHOR_PARTITION), time.monotonic() + self._patience_s
        while True:
            rest_s = deadline - time.monotonic()
            try:
                return consumer.committed([at], timeout=min(_SLICE_S, rest_s))[0]
            except KafkaException as error:
                message = consumer.poll(0)  # one without a value is falsy
                told = None if message is None else message.error()
                if told is not None and told.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    raise KafkaException(told) from None
                if error.args[0].name() != "_TIMED_OUT" or rest_s <= _SLICE_S:
                    raise

    def _failure(self, error: Any) -> Exception:
        what = f"the marker of group {self.group}"
        if error.name() in _AWAY:
            return BrokerUnreachable(
                f"{what}: no usable answer within {self._patience_s:g} s: {error.str()}",
                action="check that the brokers run and are reachable",
            )
        if is_denied(error):
            return NotAuthorized(
                f"{what}: {error.str()}", action=f"grant READ on the group {self.group} and on the topic {ANCHOR_TOPIC}"
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
        return opened(lambda: Consumer(options, logger=_log), "the writer's settings")
