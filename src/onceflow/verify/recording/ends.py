"""Where everything stands when nothing runs any more: the ends of the logs, and what the pipeline has committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from onceflow.errors import KafkaError, RequestFailed, VerificationError
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.committed import read_committed
from onceflow.transaction.questions import Committed, transactional_id
from onceflow.transaction.requests import Requests
from onceflow.verify.cluster.placement import GROUPS_TOPIC, partition_among
from onceflow.verify.recording.tables import ENDS, Clock, Place

PATIENCE_S = 120.0
_PAUSE_S = 0.2
_REQUEST_S = 10
_STABLE_S = 30.0
_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NOTHING_KNOWN: Mapping[str, int] = {}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Observed:
    """The ends of the logs (a table of ``tables.ENDS``) and the committed progress of the pipeline's group.

    ``committed.progress`` is None where nothing is committed under the name, as for another engine's pipeline. ``group``: the
    ends of the partition of ``__consumer_offsets`` that keeps the group. A transaction that hangs there holds up no reader of
    records, and every start of the pipeline. ``asked_s``: when it was asked for the ends, before any answer; what somebody reads
    later may have been committed since. None: not known.
    """

    ends: pa.Table
    committed: Committed
    group: pa.Table | None = None
    asked_s: float | None = None


def observe(
    bootstrap_servers: str,
    topics: Iterable[str],
    pipeline: str,
    *,
    least: Mapping[str, int] = _NOTHING_KNOWN,
    patience_s: float = PATIENCE_S,
    clock: Clock = time.monotonic,
) -> Observed:
    """Asks when the pipeline has ended. Waits until no transaction is open in ``topics`` and the group's partition.

    Goes on without if one stays.

    ``pipeline`` is the plan's name; its group is ``onceflow-<name>``. ``least``: how many partitions each topic has at least.
    Raises KafkaError, and VerificationError if fewer are listed.
    """
    deadline = time.monotonic() + patience_s
    settings = ClusterSettings.of(bootstrap_servers)
    chosen = sorted(set(topics))
    group = _insisted(lambda: place_of_group(pipeline, ClusterAdmin(settings).partitions()), deadline)
    while True:
        asked_s = clock()
        table = ends_of(bootstrap_servers, chosen, deadline, least=least)
        kept = _insisted(lambda: Asker(bootstrap_servers).ends(group), deadline)
        if all(each["stable"].equals(each["end"]) for each in (table, kept)) or time.monotonic() > deadline:
            break
        time.sleep(_PAUSE_S)
    return Observed(table, committed_of(bootstrap_servers, pipeline, deadline), kept, asked_s)


def place_of_group(pipeline: str, known: Mapping[str, Sequence[int]]) -> list[Place]:
    """The partition that keeps the pipeline's group, of those ``known``; none where the cluster has kept no group yet."""
    partitions = known.get(GROUPS_TOPIC, ())
    return [(GROUPS_TOPIC, partition_among(len(partitions), transactional_id(pipeline)))] if partitions else []


def committed_of(bootstrap_servers: str, pipeline: str, deadline: float | None = None) -> Committed:
    """What the pipeline's group has committed; what is open is waited for. Repeats what a broker's fault refused."""
    until = time.monotonic() + PATIENCE_S if deadline is None else deadline
    settings = ClusterSettings.of(bootstrap_servers)
    return _insisted(lambda: _committed(pipeline, settings), until)


def _committed(pipeline: str, settings: ClusterSettings) -> Committed:
    """What is promised, and goes on without what stays open::

    the driver is told that its commit happened, and tells us; it ends
    the coordinator has not written the commit to the group's partition yet: the progress there is that of the batch before
    """
    try:
        with KafkaClient(settings.for_protocol(), patience_s=_STABLE_S) as client:
            return Requests(client, pipeline, version=1, timeout_ms=0).read_committed(stable=True)
    except KafkaError:
        return read_committed(pipeline, settings)


def ends_of(
    bootstrap_servers: str,
    topics: Iterable[str],
    deadline: float | None = None,
    *,
    least: Mapping[str, int] = _NOTHING_KNOWN,
) -> pa.Table:
    """Beginning, last stable offset and end of every partition (``tables.ENDS``). Repeats what a broker's fault refused.

    ``least``: how many partitions each topic has at least. Raises KafkaError, and VerificationError if fewer are listed.
    """
    until = time.monotonic() + PATIENCE_S if deadline is None else deadline
    chosen = sorted(set(topics))
    return _insisted(lambda: _ends(bootstrap_servers, chosen, least), until)


def _insisted(ask: Callable[[], T], deadline: float) -> T:
    while True:
        try:
            return ask()
        except (KafkaError, VerificationError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def _ends(bootstrap_servers: str, topics: Sequence[str], least: Mapping[str, int]) -> pa.Table:
    known = ClusterAdmin(ClusterSettings.of(bootstrap_servers)).partitions()
    _check_listed(known, {topic: least.get(topic, 0) for topic in topics})
    places = [(topic, partition) for topic in topics for partition in known.get(topic, ())]
    # A client of its own each time: one that knew a broker before its restart asks with an outdated leader epoch.
    asker = Asker(bootstrap_servers)
    return asker.ends(places)


def _check_listed(known: Mapping[str, Sequence[int]], least: Mapping[str, int]) -> None:
    """Whatever looks at the end looks at what is listed, and misses nothing of what is not::

    a broker      was started again a moment ago, and does not know of out-b yet; it is asked for the cluster's topics
    the observer  has no end of out-b, and the final reader reads none of it
    the checker   is told of no place there where anybody looked, so that nothing of what is lost there is missing

    Raises VerificationError where fewer than the ``least`` are listed.
    """
    lacking = [
        f"{len(listed)} of {count} partitions of {topic}"
        for topic, count in least.items()
        if len(listed := set(known.get(topic, ())) & set(range(count))) < count
    ]
    if lacking:
        raise VerificationError(
            f"the cluster does not list all that there is, but {', '.join(lacking)}",
            action="see the brokers' logs: what is not listed nobody looks at, so that the run proves nothing",
        )


class Asker:
    """Asks for the ends of partitions over one connection."""

    def __init__(self, bootstrap_servers: str, *, request_s: float = _REQUEST_S) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
        self._request_s = request_s

    def ends(self, places: list[Place]) -> pa.Table:
        """A table of ``tables.ENDS``. The stable end is asked for first, so that it is never above the end by chance alone.

        Raises RequestFailed.
        """
        return self.beside(self.stable(places))

    def stable(self, places: list[Place]) -> dict[Place, int]:
        """The last stable offsets. Raises RequestFailed."""
        return self._ask(places, _LATEST, IsolationLevel.READ_COMMITTED)

    def beside(self, stable: dict[Place, int]) -> pa.Table:
        """A table of ``tables.ENDS`` for stable ends that were asked for before. Raises RequestFailed."""
        places = list(stable)
        end = self._ask(places, _LATEST, IsolationLevel.READ_UNCOMMITTED)
        start = self._ask(places, _EARLIEST, IsolationLevel.READ_UNCOMMITTED)
        rows = [(topic, partition, start[at], stable[at], end[at]) for at in places for topic, partition in [at]]
        columns = list(zip(*rows, strict=True)) or [()] * len(ENDS)
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, ENDS, strict=True)], schema=ENDS)

    def _ask(self, places: list[Place], spec: OffsetSpec, isolation: IsolationLevel) -> dict[Place, int]:
        if not places:
            return {}
        wanted = {TopicPartition(*at): spec for at in places}
        try:
            asked = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=self._request_s)
            return {(at.topic, at.partition): each.result(self._request_s + 5).offset for at, each in asked.items()}
        except KafkaException as error:
            raise RequestFailed(f"the ends of the logs: {error.args[0].str()}", error=error.args[0].name()) from None
        except TimeoutError:  # librdkafka did not answer in the time that it was given
            raise RequestFailed("the ends of the logs: no answer in time", error="_TIMED_OUT") from None
