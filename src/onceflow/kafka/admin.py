"""Questions about a cluster and its topics, and topics made: what happens around a pipeline, not in its batches.

Over librdkafka, because it says at once why a connection cannot be had (refused credentials, an untrusted certificate,
a name that does not resolve), where others only report that time ran out.

What it survives::

    all brokers are down; the load balancer before them takes each connection, and closes it in the TLS handshake
    "SSL handshake failed: Disconnected" says nothing of certificates: it is waited out like any other outage

    one handshake failed long ago; a question is not answered in time today
    why a connection could not be had is forgotten as soon as one is
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import cached_property
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from onceflow.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ConfigurationError,
    KafkaError,
    NotAuthorized,
    RequestFailed,
    TopicMissing,
)
from onceflow.kafka.missing import SURE_S
from onceflow.kafka.rights import is_denied, may_be_hidden
from onceflow.kafka.settings import ClusterSettings

_librdkafka = logging.getLogger("onceflow.kafka.librdkafka")
_librdkafka.addHandler(logging.NullHandler())

Partition = tuple[str, int]
T = TypeVar("T")

_UNREACHABLE = {"_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE", "REQUEST_TIMED_OUT"}
_NO_LEADER_NOW = {
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
    "KAFKA_STORAGE_ERROR",
    "_NOENT",  # none of the partitions that were asked for has a leader
    "_UNKNOWN_PARTITION",  # added a moment ago, and not known to every broker
}
_TLS = re.compile(r"\bSSL handshake|\bSSL routines|certificate", re.IGNORECASE)
_HUNG_UP = "Disconnected"  # in a handshake: whoever listens is no broker, or one that just goes
LONGEST_S = 3600.0
"""For which librdkafka waits for an answer to a question of this kind; it refuses to be told more."""
_FIRST_TRY_S = 0.2
_GRACE_S = 5.0  # for what librdkafka has bound itself


class ClusterAdmin:
    """Asks one cluster. Each question is bounded by ``patience_s``, and by an hour. Runs on the driver; does not pickle.

    Every method raises BrokerUnreachable, AuthenticationFailed, NotAuthorized or RequestFailed.
    """

    def __init__(self, settings: ClusterSettings, *, patience_s: float = 10.0) -> None:
        self._settings = settings
        self._servers = settings.bootstrap_servers
        self._patience_s = min(patience_s, LONGEST_S)
        self._problems: list[confluent_kafka.KafkaError] = []
        self._connected = False

    @cached_property
    def _client(self) -> AdminClient:
        options = self._settings.for_librdkafka()
        options["error_cb"] = self._problems.append
        try:
            return AdminClient(options, logger=_librdkafka)
        except KafkaException as error:  # certificate files are read here
            text = error.args[0].str()
            raise ConfigurationError.of("the Kafka settings", [text.partition(": ")[2] or text]) from error

    def partitions(self) -> dict[str, tuple[int, ...]]:
        """The partitions of every topic that the principal may see."""
        self._connect()
        topics = self._metadata(self._patience_s).topics
        return {name: tuple(sorted(topic.partitions)) for name, topic in topics.items() if topic.error is None}

    def missing(self, names: Iterable[str], *, needed: str = "DESCRIBE", sure_s: float = SURE_S) -> list[str]:
        """Those of the topics that do not exist. Raises NotAuthorized where one may be hidden: ``needed`` is what to grant.

        A broker hears of a topic a moment after it was made: that there is none is believed after ``sure_s``.
        """
        absent = self._unlisted(set(names), sure_s)
        if not absent:
            return []
        asked = self._client.describe_topics(TopicCollection(absent), request_timeout=self._patience_s)
        return [name for name in absent if not self._exists(name, asked[name], needed)]

    def _exists(self, topic: str, described: Future[Any], needed: str) -> bool:
        try:
            self._result(described, f"topic {topic}")
        except TopicMissing:
            return False
        except NotAuthorized as error:
            error.action = may_be_hidden(needed, topic)
            raise
        return True

    def create_topics(
        self,
        names: Iterable[str],
        *,
        partitions: int,
        replication_factor: int | None = None,
        needed: str = "DESCRIBE",
    ) -> None:
        """Makes those of the topics that are missing. ``needed`` is the right to them that whoever asks will need then.

        A broker hears of a topic after the controller has made it, so it is waited for until one lists them all: whoever asks
        for them next would be told that they do not exist.
        """
        missing = self.missing(names, needed=needed, sure_s=0)  # whoever makes one that there is learns that
        new = [NewTopic(name, partitions, replication_factor or -1) for name in missing]
        if not new:
            return
        asked = self._client.create_topics(new, operation_timeout=self._patience_s, request_timeout=self._patience_s)
        for name, made in asked.items():
            try:
                self._result(made, f"topic {name} cannot be created")
            except NotAuthorized as error:
                error.action = may_be_hidden(needed, name)
                raise
            except RequestFailed as error:
                if error.fields.get("error") != "TOPIC_ALREADY_EXISTS":
                    raise
        self._unlisted({topic.topic for topic in new}, self._patience_s)  # for no longer: somebody may have deleted one

    def _unlisted(self, names: set[str], patience_s: float) -> list[str]:
        """Those of the topics that no broker has listed in this time."""
        deadline = time.monotonic() + patience_s
        while (unlisted := names - self.partitions().keys()) and time.monotonic() < deadline:
            time.sleep(_FIRST_TRY_S)
        return sorted(unlisted)

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Where a read_committed reader ends in each partition: the last stable offset."""
        self._connect()
        last = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, number): last for topic, number in partitions}
        if not wanted:
            return {}
        asked = self._client.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._patience_s
        )
        return {(p.topic, p.partition): self._end(p, end).offset for p, end in asked.items()}

    def _end(self, partition: TopicPartition, asked: Future[T]) -> T:
        """librdkafka does not repeat the question for a partition that has no leader just now, or another one; the caller may."""
        try:
            return self._result(asked, f"the end of {partition.topic}-{partition.partition}")
        except RequestFailed as error:
            if error.fields.get("error") not in _NO_LEADER_NOW:
                raise
            raise BrokerUnreachable(error.message, action="try again: its leader moves", **error.fields) from error

    def broker_setting(self, name: str) -> str | None:
        """A setting of one of the brokers; None if it is not shown, or not to this principal."""
        return self.broker_settings().get(name)

    def broker_settings(self) -> Mapping[str, str | None]:
        """The settings of one of the brokers, those that are shown; empty if none is to this principal.

        One that was killed or has frozen stands in the metadata for a while: another one is asked then, with patience of its own.
        """
        self._connect()
        problem: KafkaError = BrokerUnreachable(
            f"{self._servers} name no broker", action="try again: the cluster starts"
        )
        for broker_id in sorted(self._metadata(self._patience_s).brokers):
            try:
                return self._settings_of(broker_id)
            except BrokerUnreachable as error:
                problem = error
        raise problem

    def _settings_of(self, broker_id: int) -> Mapping[str, str | None]:
        resource = ConfigResource(ResourceType.BROKER, str(broker_id))
        asked = self._client.describe_configs([resource], request_timeout=self._patience_s)
        try:
            settings: Mapping[str, Any] = self._result(asked[resource], f"the settings of broker {broker_id}")
        except NotAuthorized:
            return {}
        return {name: setting.value for name, setting in settings.items()}

    # ---------------------------------------------------------------------------------------------------- connection

    def _connect(self) -> None:
        """Waits for the first answer, but not after a failure that waiting cannot mend."""
        deadline = time.monotonic() + self._patience_s
        pause_s = _FIRST_TRY_S
        while not self._connected:
            try:
                self._metadata(pause_s)
                self._connected = True
            except KafkaError as error:
                if not isinstance(error, BrokerUnreachable) or time.monotonic() >= deadline:
                    raise
            pause_s = min(pause_s * 2, max(deadline - time.monotonic(), 0.01))

    def _metadata(self, timeout_s: float) -> Any:
        try:
            found = self._client.list_topics(timeout=timeout_s)
        except KafkaException as error:
            self._client.poll(0)
            raise self._translated(error.args[0], "the cluster's topics") from None
        self._client.poll(0)  # what went wrong before is told now
        self._problems.clear()
        return found

    def _result(self, asked: Future[T], what: str) -> T:
        try:
            return asked.result(timeout=self._patience_s + _GRACE_S)
        except KafkaException as error:
            raise self._translated(error.args[0], what) from None
        except TimeoutError:  # librdkafka's own bound has not held
            raise self._translated(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT), what) from None  # noqa: SLF001

    def _translated(self, error: confluent_kafka.KafkaError, what: str) -> KafkaError:
        name = error.name()
        if name in _UNREACHABLE:
            return self._why_unreachable(error)
        if is_denied(error):
            return NotAuthorized(f"{what}: {error.str()}", action="grant the principal the ACLs that it lacks")
        if name in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
            return TopicMissing(f"{what}: the topic does not exist")
        return RequestFailed(f"{what}: {error.str()}", error=name)

    def _why_unreachable(self, error: confluent_kafka.KafkaError) -> KafkaError:
        problems = {problem.name(): problem.str() for problem in self._problems}
        problems.pop("_ALL_BROKERS_DOWN", None)
        if "_AUTHENTICATION" in problems:
            return AuthenticationFailed(
                f"{self._servers} refused the credentials: {problems['_AUTHENTICATION']}",
                action="check sasl.mechanism, the user name and the password",
            )
        tls = [text for text in problems.values() if _TLS.search(text) and _HUNG_UP not in text]
        if tls:
            return AuthenticationFailed(
                f"no TLS connection to {self._servers}: {tls[0]}",
                action="check security.protocol, ssl.truststore.location (the CA that signed the brokers' "
                "certificates) and ssl.keystore.location (the client's own, where brokers ask for one)",
            )
        return BrokerUnreachable(
            f"no broker of {self._servers} answers: {[error.str(), *problems.values()][-1]}",
            action="check bootstrap_servers, that the cluster runs, and security.protocol",
            bootstrap_servers=self._servers,
        )
