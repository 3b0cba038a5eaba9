"""Requests to a Kafka cluster: blocking questions and asynchronous sends over kafka-python's connections.

One client is one I/O thread. It knows brokers, coordinators and partition leaders, and repeats what the protocol says may be
repeated; what an answer means is for the caller. Runs on the driver and in Spark's Python workers; does not pickle.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast
from uuid import UUID

from onceflow.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    KafkaError,
    NotAuthorized,
    RequestFailed,
    TopicMissing,
)
from onceflow.kafka import codes
from onceflow.kafka.logins import REFUSED, Connections, refused
from onceflow.kafka.loop import Loop
from onceflow.kafka.missing import SURE_S, meant
from onceflow.kafka_python import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from onceflow.kafka_python import errors as kafka_errors

logging.getLogger("kafka").addHandler(logging.NullHandler())
log = logging.getLogger(__name__)

GROUP, TRANSACTION = 0, 1  # FindCoordinator's key types
KAFKA_4_3 = 30  # the metadata.version of that release
RETRY_PAUSE_S = 0.005
MAX_RETRY_PAUSE_S = 0.25
ALL_RIGHTS = "docs/errors.md lists all that a pipeline needs"
_GRACE_MS = 1000
_FIRST_SLICE_S = 2.0
_TOPIC_IDS_FROM = 10  # the version of Metadata that tells them
_NO_TOPIC_ID = str(UUID(int=0))

_TRANSPORT = {
    "max_in_flight_requests_per_connection": 1000,  # the producer keeps its own, smaller limit per partition
    "receive_message_max_bytes": 100_000_000,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 1000,
}


class Again(Exception):
    """Raised by an answer's reader: the question may be repeated after a pause.

    ``final`` is what to raise when the time for that is over, where it is not BrokerUnreachable.
    """

    def __init__(self, reason: str, *, moved: bool = False, final: KafkaError | None = None) -> None:
        super().__init__(reason)
        self.moved = moved
        self.final = final


@dataclass(frozen=True, slots=True)
class Topic:
    """What metadata says of a topic: the leader's node id per partition (-1 while there is none)."""

    name: str
    leaders: Mapping[int, int]

    @property
    def partition_count(self) -> int:
        return len(self.leaders)


class Pause:
    """Growing pauses between repetitions, until a deadline."""

    def __init__(self, patience_s: float) -> None:
        self.deadline = time.monotonic() + patience_s
        self.next_s = RETRY_PAUSE_S

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self.deadline

    def wait(self) -> None:
        """Blocks for the next pause; not at all once the deadline has passed."""
        remaining = self.deadline - time.monotonic()
        if remaining > 0:
            time.sleep(min(self.next_s, remaining))
        self.next_s = min(self.next_s * 1.5, MAX_RETRY_PAUSE_S)


class Slices:
    """A time cut into growing slices, one for each of several servers in turn; a single server has all of it."""

    def __init__(self, patience_s: float, servers: int) -> None:
        self._deadline = time.monotonic() + patience_s
        self._servers = servers
        self._first_s = min(_FIRST_SLICE_S, patience_s / (2 * servers)) if servers > 1 else patience_s
        self._taken = 0

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._deadline

    def next_s(self) -> float:
        """The next slice: each round of all servers is twice as long as the one before."""
        slice_s = self._first_s * (1 << (self._taken // self._servers))
        self._taken += 1
        return max(0.0, min(slice_s, self._deadline - time.monotonic()))


class KafkaClient:
    """Questions and sends to one cluster.

    ``options`` are keyword arguments of kafka-python's connection manager (``ClusterSettings.for_protocol()``);
    ``patience_s`` bounds every blocking question, repetitions included, but for the one that is under way then;
    ``within_s`` all that is ever asked together: after that nothing is sent any more. Close it, or use it as a context manager.
    """

    def __init__(self, options: Mapping[str, Any], *, patience_s: float = 60.0, within_s: float = math.inf) -> None:
        self.patience_s = min(patience_s, within_s)
        self._deadline = time.monotonic() + within_s
        self.options = dict(options)
        self._loop = Loop(client_id=self.options.get("client_id", "onceflow"), slow_task_threshold_secs=0)
        self._turn = os.getpid() % len(
            self.options["bootstrap_servers"]
        )  # not all processes begin with the same server
        self._manager = self._new_manager()
        self._coordinators: dict[tuple[int, str], int] = {}
        self._topics: dict[str, Topic] = {}
        self._opening = threading.Lock()
        self._opened = False

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def open(self, patience_s: float | None = None) -> None:
        """Connects to a bootstrap server. Raises BrokerUnreachable, or AuthenticationFailed as soon as a login is refused."""
        with self._opening:
            if self._opened:
                return
            self._loop.start()
            wanted_s = self.patience_s if patience_s is None else patience_s
            self._bootstrap(Slices(min(wanted_s, self._rest_s), len(self._servers)))
            self._opened = True

    def _bootstrap(self, slices: Slices) -> None:
        """Asks the servers in turn; one that accepts and never answers takes up a slice of the time, not all of it."""
        while True:
            wait_ms = slices.next_s() * 1000
            try:
                self._manager.run(self._bootstrap_within, wait_ms)
                self._manager.let_in()
                return
            except kafka_errors.KafkaError as error:
                reason = self._unreachable(error)
                timed_out = isinstance(error, kafka_errors.KafkaTimeoutError)
                if not timed_out or slices.expired or isinstance(reason, AuthenticationFailed):
                    raise reason from error
            self._loop.run(self._manager.close)  # what waits in it for a silent TLS peer never ends
            self._turn = (self._turn + 1) % len(self._servers)
            self._manager = self._new_manager()

    async def _bootstrap_within(self, wait_ms: float) -> None:
        # Bounded twice: kafka-python waits for the handshake of a silent TLS peer without limit.
        await self._manager.wait_for(self._manager.bootstrap_async(wait_ms), wait_ms + _GRACE_MS)

    def _new_manager(self) -> Connections:
        """One that asks the bootstrap servers in turn; kafka-python picks one at random for each try."""
        manager = Connections(self._loop, **{**_TRANSPORT, **self.options})
        self._servers = sorted(manager.cluster.bootstrap_brokers(), key=lambda node: (node.host, node.port))
        turns = itertools.cycle([*self._servers[self._turn :], *self._servers[: self._turn]])
        manager.cluster.bootstrap_brokers = lambda: [next(turns)]
        return manager

    def close(self) -> None:
        """Closes the connections and ends the I/O thread; what is under way then is not answered any more."""
        try:
            # Not on this thread: the loop may be in the middle of a write. It may have ended, by an earlier close or an error.
            with contextlib.suppress(Exception):
                self._loop.run(self._manager.close)
        finally:
            self._loop.close()

    def _unreachable(self, error: Exception) -> BrokerUnreachable | AuthenticationFailed:
        servers = ",".join(self.options["bootstrap_servers"])
        for node in self._servers:
            failure = self._manager.auth_failure(node.node_id)
            if failure is not None:
                return refused(servers, failure)
        why = "" if isinstance(error, kafka_errors.KafkaTimeoutError) else f": {error}"
        return BrokerUnreachable(
            f"no broker of {servers} answered within {self.patience_s:g} s{why}",
            action="check bootstrap_servers, that the cluster runs, and security.protocol",
            bootstrap_servers=servers,
        )

    # ------------------------------------------------------------------------------------------------------- sending

    def send(self, node_id: int, request: Any, done: Callable[[object], None]) -> None:
        """Sends without blocking; ``done`` gets the response or an exception, on the I/O thread.

        Nothing once the client is closed.
        """

        async def deliver() -> None:
            try:
                done(await self._send(request, node_id))
            except Exception as error:  # noqa: BLE001  the caller decides what any failure of a send means
                done(error)
                if not self._manager.closed:
                    self._manager.cluster.request_update()  # perhaps it is a broker that we have not heard of yet

        self._loop.call_soon_threadsafe(deliver)

    def ask(self, node_id: int | None, request: Any) -> Any:
        """Sends to a node (None: any) and waits for the answer, once.

        Raises Again when the connection failed, and BrokerUnreachable when the time for all questions is over. A login that is
        refused was taken at the bootstrap: it may be taken again when the broker has started.
        """
        if self._rest_s <= 0:
            raise self._unreachable(kafka_errors.KafkaTimeoutError())
        try:
            return self._manager.run(self._send, request, node_id)
        except REFUSED as error:
            final = refused(",".join(self.options["bootstrap_servers"]), error)
            raise Again(final.message, moved=True, final=final) from error
        except (kafka_errors.RetriableError, kafka_errors.UnknownBrokerIdError) as error:
            self._manager.call_soon(self._manager.cluster.request_update)
            raise Again(f"{type(error).__name__}: {error}", moved=True) from error

    async def _send(self, request: Any, node_id: int | None) -> Any:
        limit_ms = min(self._manager.config["request_timeout_ms"] + _GRACE_MS, self._rest_s * 1000)
        return await self._manager.wait_for(self._manager.send(request, node_id=node_id), limit_ms)

    @property
    def _rest_s(self) -> float:
        """What is left of the time for all questions together."""
        return max(0.0, self._deadline - time.monotonic())

    def repeat(self, once: Callable[[], Any], what: str, patience_s: float | None = None) -> Any:
        """Runs ``once`` until it does not raise Again. Raises BrokerUnreachable, or what Again says, at the deadline."""
        pause = Pause(self.patience_s if patience_s is None else patience_s)
        while True:
            try:
                return once()
            except Again as again:
                if pause.expired:
                    raise again.final or BrokerUnreachable(
                        f"{what}: no usable answer in time, last: {again}",
                        action="check that the brokers run and are reachable; then start again",
                    ) from again
                log.debug("%s: again after %s", what, again)
            pause.wait()

    # ---------------------------------------------------------------------------------------------------- coordinators

    def ask_coordinator(self, kind: int, key: str, request: Any) -> Any:
        """Asks the coordinator of a group or a transactional id, once. Raises Again when it moved or does not answer."""
        try:
            return self.ask(self._coordinator(kind, key), request)
        except Again:
            self.forget_coordinator(kind, key)
            raise

    def forget_coordinator(self, kind: int, key: str) -> None:
        """The next question looks the coordinator up again."""
        self._coordinators.pop((kind, key), None)

    def _coordinator(self, kind: int, key: str) -> int:
        if (kind, key) not in self._coordinators:
            request = FindCoordinatorRequest(
                key=key, key_type=kind, coordinator_keys=[key], max_version=4, min_version=1
            )
            answer = self.ask(None, request)
            found = answer.coordinators[0] if answer.API_VERSION >= 4 else answer
            self.check(found.error_code, f"the coordinator of {key!r}")
            self._coordinators[kind, key] = found.node_id
        return self._coordinators[kind, key]

    @staticmethod
    def check(code: int, what: str, topic_operation: str = "DESCRIBE") -> None:
        """Raises Again for a retriable error code, NotAuthorized or RequestFailed for any other but NONE.

        ``topic_operation``: what the principal must be allowed on the topics that the request names.
        """
        if code == codes.NONE:
            return
        if code in codes.RETRIABLE:
            raise Again(codes.name_of(code), moved=code in codes.COORDINATOR_MOVED | codes.LEADER_MOVED)
        if code in codes.UNAUTHORISED:
            right = codes.lacking(code, topic_operation)
            raise NotAuthorized(
                f"{what}: the principal lacks {right}, {codes.name_of(code)}", action=f"grant it {right}; {ALL_RIGHTS}"
            )
        raise RequestFailed(f"{what}: {codes.name_of(code)}", error_code=code)

    # -------------------------------------------------------------------------------------------------------- metadata

    def topics(self, names: Iterable[str], *, refresh: bool = False, sure_s: float = SURE_S) -> dict[str, Topic]:
        """Metadata of the topics, from memory where known. Raises TopicMissing (all that are missing) or NotAuthorized.

        A broker hears of a topic a moment after it was made: that there is none is believed after ``sure_s``.
        """
        wanted = sorted(set(names))
        unknown = wanted if refresh else [name for name in wanted if name not in self._topics]
        doubt = Pause(sure_s)
        while unknown:
            absent = self.repeat(lambda: self._load_topics(unknown), f"the metadata of {', '.join(unknown)}")
            if not absent:
                break
            if doubt.expired:
                raise self._missing(absent)
            doubt.wait()
        return {name: self._topics[name] for name in wanted}

    def _load_topics(self, names: list[str]) -> list[str]:
        """Gives those of them that are missing; if any is, nothing is remembered."""
        topic = MetadataRequest.MetadataRequestTopic
        request = MetadataRequest(
            topics=[topic(name=name) for name in names], allow_auto_topic_creation=False, max_version=9, min_version=4
        )
        answer = self.ask(None, request)
        absent = [entry.name for entry in answer.topics if entry.error_code == 3]
        for entry in () if absent else answer.topics:
            self.check(entry.error_code, f"topic {entry.name}")
            leaders = {p.partition_index: p.leader_id for p in entry.partitions}
            self._topics[entry.name] = Topic(entry.name, dict(sorted(leaders.items())))
        return absent

    def _missing(self, absent: list[str]) -> TopicMissing:
        return TopicMissing(
            f"{'topic' if len(absent) == 1 else 'topics'} {', '.join(absent)} "
            f"{'does' if len(absent) == 1 else 'do'} not exist",
            action=f"create it (kafka-topics.sh --create), or correct the name; {meant(absent, self._all_names())}",
            topics=tuple(absent),
        )

    def cluster_id(self) -> str:
        """The id of the cluster, which is the same whatever servers it is reached by; those where it has none."""
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False, max_version=9, min_version=4)
        answer = self.repeat(lambda: self.ask(None, request), "the id of the cluster")
        return str(answer.cluster_id or ",".join(sorted(self.options["bootstrap_servers"])))

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """The id that Kafka gave each topic (from 2.8), of those that there are and that the principal may see; always asked."""
        wanted = sorted(set(names))
        return cast("dict[str, str]", self.repeat(lambda: self._load_ids(wanted), f"the ids of {', '.join(wanted)}"))

    def _load_ids(self, names: list[str]) -> dict[str, str]:
        topic = MetadataRequest.MetadataRequestTopic
        request = MetadataRequest(
            topics=[topic(name=name) for name in names], allow_auto_topic_creation=False, max_version=12, min_version=4
        )
        answer = self.ask(None, request)
        if answer.API_VERSION < _TOPIC_IDS_FROM:
            return {}
        found = {entry.name: str(entry.topic_id) for entry in answer.topics if entry.error_code == codes.NONE}
        return {name: known for name, known in found.items() if known != _NO_TOPIC_ID}

    def _all_names(self) -> list[str]:
        """Of the topics that the principal may see."""
        answer = self.ask(
            None, MetadataRequest(topics=None, allow_auto_topic_creation=False, max_version=9, min_version=4)
        )
        return [entry.name for entry in answer.topics if entry.error_code == codes.NONE]

    def transaction_version(self) -> int:
        """The finalized feature ``transaction.version`` of the cluster, at least 1 (brokers before 4.0 do not name it)."""
        finalized = self._features().finalized_features or ()
        return max(1, next((int(f.max_version_level) for f in finalized if f.name == "transaction.version"), 1))

    def newest_metadata_version(self) -> int:
        """The highest ``metadata.version`` that the broker which answers can have: it tells its release. 0: it does not say."""
        supported = self._features().supported_features or ()
        return next((int(f.max_version) for f in supported if f.name == "metadata.version"), 0)

    def _features(self) -> Any:
        request = ApiVersionsRequest(client_software_name="onceflow", client_software_version="1", max_version=4)
        return self.repeat(lambda: self.ask(None, request), "the cluster's features")
