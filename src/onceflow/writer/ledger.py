"""Where the marker is: a committed offset of the writer's own group, read when no transaction on it is open.

With it, on a topic of its own, a nonce: whoever answers with the one that was committed last knows all that came before. It is no
part of the marker, for who commits a marker must know the one before, and that is what is asked.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onceflow.errors import BrokerUnreachable, NotAuthorized, RequestFailed
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.names import PROBE_TOPIC
from onceflow.kafka.opened import opened
from onceflow.kafka.rights import is_denied
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.requests import ANCHOR_PARTITION, ANCHOR_TOPIC
from onceflow.writer.marker import Marker

_log = logging.getLogger("onceflow.writer.librdkafka")
_SLICE_S = 2.0
_AWAY = {"_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_WAIT_COORD", "UNSTABLE_OFFSET_COMMIT"}


@dataclass(frozen=True, slots=True)
class Found:
    """What is committed: the marker, an empty one where there is none, and the nonce, empty likewise."""

    marker: Marker
    nonce: str


_MARKER, _PROBE = (ANCHOR_TOPIC, ANCHOR_PARTITION), (PROBE_TOPIC, 0)


class Ledger:
    """Reads and names the marker of one transactional id. ``patience_s`` bounds each question."""

    def __init__(self, cluster: ClusterSettings, transactional_id: str, patience_s: float) -> None:
        self._cluster = cluster
        self._patience_s = patience_s
        self.group = f"onceflow.writer.{transactional_id}"
        self.rights = f"grant READ on the group {self.group} and on the topics {ANCHOR_TOPIC} and {PROBE_TOPIC}"
        self.membership = self._membership()

    def ensure_topics(self) -> None:
        """Creates those that are missing. Raises BrokerUnreachable, NotAuthorized, AuthenticationFailed."""
        admin = ClusterAdmin(self._cluster, patience_s=self._patience_s)
        admin.create_topics([ANCHOR_TOPIC, PROBE_TOPIC], partitions=1, needed="READ")

    def entry(self, marker: Marker) -> TopicPartition:
        """The offset that commits ``marker``."""
        offset, metadata = marker.encode()
        return TopicPartition(*_MARKER, offset, metadata)

    def probe(self, nonce: str) -> TopicPartition:
        """The offset that commits ``nonce``."""
        return TopicPartition(*_PROBE, 0, nonce)

    def read(self, *, stable: bool = True) -> Marker:
        """The committed marker, an empty one where nothing was committed; ``stable`` waits for an undecided transaction.

        That is what makes it an outcome: OffsetFetch with require_stable (KIP-447) answers only when the transaction that
        last touched the marker has ended, one way or the other. Whoever has been replaced as the group's coordinator, and has not
        heard of it, answers as well: with what it knew.
        """
        (marker,) = self._ask([TopicPartition(*_MARKER)], stable=stable)
        return _decoded(marker)

    def read_with_nonce(self) -> Found:
        """The marker as a stable read tells it, and the nonce, of one answer."""
        marker, probe = self._ask([TopicPartition(*_MARKER), TopicPartition(*_PROBE)], stable=True)
        return Found(_decoded(marker), probe.metadata or "")

    def _ask(self, asked: list[TopicPartition], *, stable: bool) -> list[TopicPartition]:
        consumer = self._consumer(stable=stable)
        try:
            entries = self._committed(consumer, asked)
        except KafkaException as error:
            raise self._failure(error.args[0]) from None
        finally:
            consumer.close()
        for entry in entries:
            if entry.error is not None:
                raise self._failure(entry.error)
        return entries

    def _committed(self, consumer: Consumer, asked: list[TopicPartition]) -> list[TopicPartition]:
        """Asks in slices: librdkafka waits for the group's coordinator in any case, and tells who polls that it is denied."""
        deadline = time.monotonic() + self._patience_s
        while True:
            rest_s = deadline - time.monotonic()
            try:
                return consumer.committed(asked, timeout=min(_SLICE_S, rest_s))
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
            return NotAuthorized(f"{what}: {error.str()}", action=self.rights)
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


def _decoded(entry: TopicPartition) -> Marker:
    return Marker.decode(entry.offset, entry.metadata or "") if entry.offset >= 0 else Marker()
