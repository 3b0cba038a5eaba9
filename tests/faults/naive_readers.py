"""Readers of committed records as clients have got them wrong, on what a broker really answers to a Fetch (KIP-98).

Whoever reads committed records is given all of them below the last stable offset, and beside them the aborted transactions, each
by producer id and first offset; which records those are is for the client to find out, up to the control record that ends each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import FetchRequest
from kafka.record import MemoryRecords

from onceflow.kafka.client import KafkaClient

_COMMITTED = 1
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Fetched:
    """All batches of a partition below its last stable offset, and its aborted transactions, as the broker lists them."""

    batches: tuple[Any, ...]
    aborted: tuple[tuple[int, int], ...]
    """``(producer id, first offset)``"""

    def values(self, aborted: Iterable[tuple[int, int]] | None = None, *, filters_compressed: bool = True) -> list[str]:
        """What a client gives its user that is told of these ``aborted`` transactions, in the order in which they are listed.

        It takes the list for one that is sorted by first offset, as clients did (librdkafka, franz-go before 2026). Without
        ``filters_compressed`` it gives all records of compressed batches (librdkafka #3020).
        """
        listed, open_now, given = deque(self.aborted if aborted is None else aborted), set[int](), list[str]()
        for batch in self.batches:
            while listed and listed[0][1] <= batch.base_offset:
                open_now.add(listed.popleft()[0])
            if batch.is_control_batch:
                open_now.discard(batch.producer_id)
            elif batch.producer_id not in open_now or (batch.compression_type and not filters_compressed):
                given += [record.value.decode() for record in batch]
        return given


def fetched(client: KafkaClient, topic: str) -> Fetched:
    """From the first offset of partition 0 to its last stable one."""
    leader, batches, aborted = client.topics([topic])[topic].leaders[0], list[Any](), dict[tuple[int, int], None]()
    offset, end = 0, 1
    while offset < end:
        answer = _answer(client.ask(leader, _request(topic, offset)))
        batches += _batches(answer.records)
        aborted |= dict.fromkeys((each.producer_id, each.first_offset) for each in answer.aborted_transactions or ())
        offset, end = batches[-1].last_offset + 1, answer.last_stable_offset
    return Fetched(tuple(batches), tuple(aborted))


def _answer(response: Any) -> Any:
    """That of the one partition that was asked for; a fetch below the last stable offset has records."""
    (topic,) = response.responses
    (answer,) = topic.partitions
    assert not answer.error_code
    assert answer.records
    return answer


def _request(topic: str, offset: int) -> FetchRequest:
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=0, fetch_offset=offset, log_start_offset=-1, partition_max_bytes=_MOST_BYTES
    )
    asked = FetchRequest.FetchTopic(topic=topic, partitions=[partition])
    return FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=_COMMITTED, topics=[asked], max_version=12)


def _batches(records: bytes) -> Iterator[Any]:
    read = MemoryRecords(records)
    while read.has_next():
        yield read.next_batch()
