"""The logs as their leaders have them: every batch of records with its producer, and every marker (KIP-98, KIP-101).

What no reader of committed records is given: attempts that were aborted, which records are of one transaction, and which
positions were committed with them. A pipeline cannot tell it better, for what it tells is what it meant::

    driver    sends 40 records, is killed
    broker    has 25 of them, and the marker that aborts them; nobody ever hears of these 25 again
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceflow.errors import VerificationError
from onceflow.kafka.client import Again, KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.kafka_python import FetchRequest, MemoryRecords
from onceflow.transaction.questions import transactional_id
from onceflow.verify.recording.offset_commits import position_of
from onceflow.verify.recording.tables import BATCHES, GIVEN, Chunks

WHOLE_GROUP_LOG: Mapping[str, str] = {"offsets.topic.segment.bytes": str(1 << 30)}
"""Broker settings without which the log of the groups is compacted some ten thousand transactions later: only a segment that is
full is.
"""
PATIENCE_S = 120.0
_MOST_BYTES = 16 << 20  # of one answer
_WAIT_MS = 500
_UNCOMMITTED = 0


@dataclass(frozen=True, slots=True)
class Log:
    """``batches`` (``tables.BATCHES``) of the output and of the partition that keeps the group, and the positions that this was
    ``given`` there (``tables.GIVEN``).
    """

    batches: pa.Table = field(default_factory=BATCHES.empty_table)
    given: pa.Table = field(default_factory=GIVEN.empty_table)


def read_log(
    bootstrap_servers: str, ends: pa.Table, group: pa.Table | None, pipeline: str, *, patience_s: float = PATIENCE_S
) -> Log:
    """The logs of the partitions in ``ends`` (``tables.ENDS``), and of the one in ``group``, which keeps the pipeline's group.

    Each from its beginning to its end, which is that of a moment when nobody wrote any more. ``pipeline`` is the plan's name.
    Raises KafkaError; a broker that does not answer is asked again for ``patience_s``. Raises VerificationError where something
    of them is not there any more, or not known.
    """
    settings = ClusterSettings.of(bootstrap_servers)
    with KafkaClient(settings.for_protocol(), patience_s=patience_s) as client:
        reader = _Reader(client, transactional_id(pipeline))
        for row in ends.to_pylist():
            reader.read(row["topic"], row["partition"], row["start"], row["end"], keeps_group=False)
        for row in [] if group is None else group.to_pylist():
            reader.read(row["topic"], row["partition"], row["start"], row["end"], keeps_group=True)
        return reader.log()


class _Reader:
    def __init__(self, client: KafkaClient, group: str) -> None:
        self._client = client
        self._group = group
        self._batches, self._given = Chunks(BATCHES), Chunks(GIVEN)

    def log(self) -> Log:
        return Log(self._batches.table(), self._given.table())

    def read(self, topic: str, partition: int, start: int, end: int, *, keeps_group: bool) -> None:
        """From one offset to the other. A batch is given whole, also to who asks for an offset in the middle of it."""
        offset = start
        while offset < end:
            fetch = partial(self._fetched, topic, partition, offset)
            for batch in self._client.repeat(fetch, f"the log of {topic}-{partition}"):
                if batch.base_offset >= end:  # written since
                    return
                if batch.base_offset > offset:
                    raise _incomplete(topic, partition, offset)
                offset = batch.next_offset
                given = self._positions(topic, partition, batch) if keeps_group and not batch.is_control_batch else []
                self._given.extend(given)
                if given or batch.is_control_batch or not keeps_group:  # else it is of other groups
                    self._batches.extend([_row(topic, partition, batch)])

    def _fetched(self, topic: str, partition: int, offset: int) -> list[Any]:
        """Raises RequestFailed; and Again where the leader does not answer, is another one now, or has not come so far."""
        leader = self._client.topics([topic], refresh=True)[topic].leaders[partition]
        response = self._client.ask(leader, _request(topic, partition, offset))
        answer = response.responses[0].partitions[0]
        self._client.check(answer.error_code, f"the log of {topic}-{partition} from {offset} on", "READ")
        found = list(MemoryRecords(answer.records or b""))
        if not found:
            raise Again(f"no record batch at {offset}")
        return found

    def _positions(self, topic: str, partition: int, batch: Any) -> list[tuple[Any, ...]]:
        """A batch that was compacted keeps its first offset and its last one: what it lacks shows between its records alone."""
        records = list(batch)
        if gone := {*range(batch.base_offset, batch.next_offset)}.difference(record.offset for record in records):
            raise _incomplete(topic, partition, min(gone))
        positions = (position_of(self._group, record.key, record.value) for record in records)
        return [(batch.base_offset, *astuple(position)) for position in positions if position is not None]


def _incomplete(topic: str, partition: int, offset: int) -> VerificationError:
    return VerificationError(
        f"{topic}-{partition} has no offset {offset} any more: it was compacted, or cut off",
        action="run for less long: what the pipeline's transactions gave is not known",
    )


def _request(topic: str, partition: int, offset: int) -> FetchRequest:
    wanted = FetchRequest.FetchTopic.FetchPartition(
        partition=partition, fetch_offset=offset, log_start_offset=-1, partition_max_bytes=_MOST_BYTES
    )
    asked = FetchRequest.FetchTopic(topic=topic, partitions=[wanted])
    return FetchRequest(
        max_wait_ms=_WAIT_MS, min_bytes=1, max_bytes=_MOST_BYTES, isolation_level=_UNCOMMITTED, topics=[asked],
        max_version=12,
    )  # fmt: skip


def _row(topic: str, partition: int, batch: Any) -> tuple[Any, ...]:
    place = (topic, partition, batch.base_offset, batch.next_offset)
    return *place, batch.producer_id, batch.producer_epoch, _kind(batch)


def _kind(batch: Any) -> str:
    if batch.is_control_batch:
        return "commit" if next(iter(batch)).commit else "abort"
    return "records" if batch.is_transactional else "plain"


def records_of(batches: pa.Table) -> int:
    """How many records these batches hold."""
    return int(pc.sum(pc.subtract(batches["until"], batches["first"])).as_py() or 0)
