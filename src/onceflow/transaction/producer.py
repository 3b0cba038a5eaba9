"""Step 4: produces chunks under one identity, in order per partition, up to five batches of a partition in flight.

All decisions are made on the caller's thread; the client's I/O thread only delivers answers to a queue. A lane is one target
partition: its sequence numbers start at 0, because each attempt runs under an epoch of its own.

What a lane survives::

    the connection breaks with batches 3, 4, 5 in flight; the broker has 3 and 4
    all three are sent again, oldest first, one at a time: 3 and 4 are answered as duplicates with success, 5 is appended

    batch 3 is answered NOT_ENOUGH_REPLICAS, 4 and 5 OUT_OF_ORDER_SEQUENCE_NUMBER (they came after the gap)
    nothing more is sent until all are answered, then 3, 4, 5 again in order

    OUT_OF_ORDER_SEQUENCE_NUMBER for the oldest batch of a lane
    somebody else wrote under our sequence, or the broker forgot it: the attempt is lost, and said so
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.producer import AddPartitionsToTxnRequest, ProduceRequest

from onceflow.errors import BrokerUnreachable, InputError, NotAuthorized
from onceflow.kafka import codes
from onceflow.kafka.client import ALL_RIGHTS, MAX_RETRY_PAUSE_S, RETRY_PAUSE_S, TRANSACTION, Again, KafkaClient
from onceflow.transaction.chunk import Chunk, seal
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.messages import Counts, Identity

IN_FLIGHT_PER_PARTITION = 5  # the broker remembers the last five batches of a producer id (KIP-98)
IN_FLIGHT_PER_BROKER = 5
REQUEST_BYTES = 4 << 20
BUFFER_BYTES = 32 << 20
ACK_TIMEOUT_MS = 30_000
_OPERATION_NOT_ATTEMPTED = 55
SEQUENCE_SPACE = 2**31


@dataclass(slots=True)
class _Sealed:
    """A ready record batch; ``sequence`` counts on where the wire's wraps."""

    sequence: int
    count: int
    data: bytes | bytearray


@dataclass(slots=True)
class _Lane:
    """One target partition: what waits, what is in flight, and whether it is being repaired."""

    topic: str
    partition: int
    leader: int
    next_sequence: int = 0
    acknowledged: int = 0
    waiting: deque[_Sealed] = field(default_factory=deque)
    in_flight: deque[_Sealed] = field(default_factory=deque)
    failed: list[_Sealed] = field(default_factory=list)
    repair_until: int = -1  # the newest sequence that failed: one batch at a time until it is acknowledged
    not_before: float = 0.0
    pause_s: float = RETRY_PAUSE_S
    reason: str = ""  # why a batch had to be sent again

    def ready(self, now: float) -> bool:
        """Whether its oldest waiting batch may be sent now."""
        limit = 1 if self.repair_until >= 0 else IN_FLIGHT_PER_PARTITION
        return bool(self.waiting) and not self.failed and len(self.in_flight) < limit and now >= self.not_before

    def settle(self, now: float) -> None:
        """Once all that was in flight is answered, puts what failed back in front, oldest first."""
        if self.failed and not self.in_flight:
            self.failed.sort(key=lambda sealed: sealed.sequence)
            self.repair_until = max(self.repair_until, self.failed[-1].sequence)
            self.waiting.extendleft(reversed(self.failed))
            self.failed.clear()
            self.not_before = now + self.pause_s
            self.pause_s = min(self.pause_s * 1.5, MAX_RETRY_PAUSE_S)


_Answer = tuple[int, list[tuple[_Lane, _Sealed]], Any]


@dataclass(frozen=True, slots=True)
class Target:
    """Under what a producer writes. Without ``transactional_id`` the records are visible at once (no transaction)."""

    identity: Identity
    transactional_id: str | None
    transaction_version: int


class BatchProducer:
    """Writes the chunks of one attempt. ``submit`` as they come (blocks while too much is buffered), then ``finish``.

    Raises IdentityRefused, AttemptFailed, BrokerUnreachable (no answer for the client's patience), NotAuthorized, or
    InputError when a broker refuses the records themselves. After an error the attempt must be aborted. ``on_request`` is
    called before each produce request, for tests that stop in the middle of a write.
    """

    def __init__(self, client: KafkaClient, target: Target, on_request: Callable[[], None] | None = None) -> None:
        self._client = client
        self._target = target
        self._on_request = on_request or (lambda: None)
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._requests_in_flight: dict[int, int] = {}
        self._buffered_bytes = 0
        self._enrolled: set[tuple[str, int]] = set()  # partitions added to the transaction (version 1)
        self._last_progress = time.monotonic()

    def submit(self, topic: str, chunk: Chunk) -> None:
        """Takes over one chunk; its records follow all earlier ones of the same partition."""
        self._last_progress = time.monotonic()  # until now it was the query that took its time, not the brokers
        lane = self._lane(topic, chunk.partition)
        identity = self._target.identity
        data = seal(
            chunk,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=lane.next_sequence % SEQUENCE_SPACE,
            transactional=self._target.transactional_id is not None,
        )
        lane.waiting.append(_Sealed(lane.next_sequence, chunk.count, data))
        lane.next_sequence += chunk.count
        self._buffered_bytes += len(data)
        self._pump()
        while self._buffered_bytes > BUFFER_BYTES:
            self._wait()

    def finish(self) -> Counts:
        """Waits until every record is acknowledged; the acknowledged records per (topic, partition)."""
        while self._unfinished():
            self._pump()
            self._wait()
        return {at: lane.acknowledged for at, lane in self._lanes.items()}

    def _unfinished(self) -> bool:
        return any(lane.waiting or lane.in_flight or lane.failed for lane in self._lanes.values())

    def _lane(self, topic: str, partition: int) -> _Lane:
        lane = self._lanes.get((topic, partition))
        if lane is None:
            leader = self._client.topics([topic])[topic].leaders[partition]
            lane = self._lanes[topic, partition] = _Lane(topic, partition, leader)
        return lane

    # --------------------------------------------------------------------------------------------------------- sending

    def _pump(self) -> None:
        """Sends what may be sent, as few requests as possible."""
        now = time.monotonic()
        by_leader: dict[int, list[_Lane]] = {}
        for lane in self._lanes.values():
            if lane.ready(now):
                by_leader.setdefault(lane.leader, []).append(lane)
        for leader, lanes in by_leader.items():
            ready = lanes
            while ready and self._requests_in_flight.get(leader, 0) < IN_FLIGHT_PER_BROKER:
                self._send(leader, self._take(ready))
                ready = [lane for lane in ready if lane.ready(now)]

    def _take(self, lanes: Iterable[_Lane]) -> list[tuple[_Lane, _Sealed]]:
        taken: list[tuple[_Lane, _Sealed]] = []
        size = 0
        for lane in lanes:  # the broker accepts one batch per partition and request
            if taken and size + len(lane.waiting[0].data) > REQUEST_BYTES:
                break
            sealed = lane.waiting.popleft()
            lane.in_flight.append(sealed)
            taken.append((lane, sealed))
            size += len(sealed.data)
        return taken

    def _send(self, leader: int, batches: list[tuple[_Lane, _Sealed]]) -> None:
        self._enrol(batches)
        topic_type = ProduceRequest.TopicProduceData
        by_topic: dict[str, list[Any]] = {}
        for lane, sealed in batches:
            part = topic_type.PartitionProduceData(index=lane.partition, records=sealed.data)
            by_topic.setdefault(lane.topic, []).append(part)
        request = ProduceRequest(
            transactional_id=self._target.transactional_id,
            acks=-1,
            timeout_ms=ACK_TIMEOUT_MS,
            topic_data=[topic_type(name=name, partition_data=parts) for name, parts in by_topic.items()],
            max_version=12 if self._target.transaction_version >= 2 else 11,
            min_version=12 if self._target.transaction_version >= 2 and self._target.transactional_id else 3,
        )
        self._on_request()
        self._requests_in_flight[leader] = self._requests_in_flight.get(leader, 0) + 1
        self._client.send(leader, request, lambda answer: self._answers.put((leader, batches, answer)))

    def _enrol(self, batches: list[tuple[_Lane, _Sealed]]) -> None:
        """Transaction version 1: partitions are added to the transaction before the first write (KIP-98)."""
        if self._target.transactional_id is None or self._target.transaction_version >= 2:
            return
        new = {(lane.topic, lane.partition) for lane, _ in batches} - self._enrolled
        if new:
            self._client.repeat(lambda: self._add_partitions(new), "AddPartitionsToTxn")
            self._enrolled |= new

    def _add_partitions(self, new: set[tuple[str, int]]) -> None:
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(new):
            topics.setdefault(topic, []).append(partition)
        topic_type = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        transactional_id = self._target.transactional_id or ""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=self._target.identity.producer_id,
            v3_and_below_producer_epoch=self._target.identity.epoch,
            v3_and_below_topics=[topic_type(name=name, partitions=parts) for name, parts in topics.items()],
            max_version=3,
        )
        answer = self._client.ask_coordinator(TRANSACTION, transactional_id, request)
        results = [
            (part.partition_error_code, f"{topic_result.name}-{part.partition_index}")
            for topic_result in answer.results_by_topic_v3_and_below
            for part in topic_result.results_by_partition
        ]
        # OPERATION_NOT_ATTEMPTED last: it only says that another partition of the request has the real error.
        for code, where in sorted(results, key=lambda result: result[0] == _OPERATION_NOT_ATTEMPTED):
            self._check_added(code, where)

    def _check_added(self, code: int, where: str) -> None:
        if code in codes.REFUSED:
            raise IdentityRefused(f"AddPartitionsToTxn of {where}: {codes.name_of(code)}")
        if code in codes.ABORTABLE or code == _OPERATION_NOT_ATTEMPTED:
            raise AttemptFailed(f"AddPartitionsToTxn of {where}: {codes.name_of(code)}")
        try:
            self._client.check(code, f"AddPartitionsToTxn of {where}", "WRITE")
        except Again as again:
            if again.moved:
                self._client.forget_coordinator(TRANSACTION, self._target.transactional_id or "")
            raise

    # --------------------------------------------------------------------------------------------------------- answers

    def _wait(self) -> None:
        """Handles one answer, or lets a lane's pause pass."""
        try:
            leader, batches, answer = self._answers.get(timeout=self._next_pause())
        except queue.Empty:
            self._check_patience()
        else:
            self._requests_in_flight[leader] -= 1
            self._read(batches, answer)
            self._settle()
        self._pump()

    def _next_pause(self) -> float:
        now = time.monotonic()
        pauses = [lane.not_before - now for lane in self._lanes.values() if lane.waiting and lane.not_before > now]
        return max(0.001, min([*pauses, 1.0]))

    def _check_patience(self) -> None:
        if time.monotonic() - self._last_progress > self._client.patience_s:
            stuck = [lane for lane in self._lanes.values() if lane.waiting or lane.in_flight or lane.failed]
            named = "; ".join(f"{lane.topic}-{lane.partition} ({lane.reason or 'no answer'})" for lane in stuck[:5])
            raise BrokerUnreachable(
                f"no record was acknowledged for {self._client.patience_s:g} s; waiting: {named}",
                action="check the brokers that lead these partitions, and min.insync.replicas",
            )

    def _read(self, batches: list[tuple[_Lane, _Sealed]], answer: Any) -> None:
        if isinstance(answer, Exception):
            for lane, sealed in batches:
                self._retry_later(lane, sealed, f"{type(answer).__name__}: {answer}")
            return
        parts = {(t.name, p.index): p for t in answer.responses for p in t.partition_responses}
        for lane, sealed in batches:
            self._read_one(lane, sealed, parts[lane.topic, lane.partition])

    def _read_one(self, lane: _Lane, sealed: _Sealed, part: Any) -> None:
        code = part.error_code
        if code == codes.NONE:
            self._acknowledge(lane, sealed)
        elif code in codes.RETRIABLE or (code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER and self._after_gap(lane, sealed)):
            self._retry_later(lane, sealed, codes.name_of(code))
        else:
            raise _error_of(code, f"produce to {lane.topic}-{lane.partition}", part.error_message)

    def _after_gap(self, lane: _Lane, sealed: _Sealed) -> bool:
        return bool(lane.failed) or lane.in_flight[0] is not sealed

    def _acknowledge(self, lane: _Lane, sealed: _Sealed) -> None:
        lane.in_flight.remove(sealed)
        lane.acknowledged += sealed.count
        self._buffered_bytes -= len(sealed.data)
        self._last_progress = time.monotonic()
        if sealed.sequence >= lane.repair_until:
            lane.repair_until, lane.pause_s = -1, RETRY_PAUSE_S

    def _retry_later(self, lane: _Lane, sealed: _Sealed, reason: str) -> None:
        lane.reason = reason
        lane.in_flight.remove(sealed)
        lane.failed.append(sealed)

    def _settle(self) -> None:
        """Repairs lanes whose batches failed, with fresh leaders."""
        now = time.monotonic()
        failed = [lane for lane in self._lanes.values() if lane.failed and not lane.in_flight]
        if not failed:
            return
        self._check_patience()
        topics = self._client.topics({lane.topic for lane in failed}, refresh=True)
        for lane in failed:
            lane.settle(now)
            lane.leader = topics[lane.topic].leaders[lane.partition]


def _error_of(code: int, where: str, message: str | None) -> Exception:
    text = f"{where}: {codes.name_of(code)}" + (f": {message}" if message else "")
    if code in codes.REFUSED:
        return IdentityRefused(text)
    if code in codes.UNAUTHORISED:
        right = codes.lacking(code, "WRITE")
        return NotAuthorized(f"{text}: the principal lacks {right}", action=f"grant it {right}; {ALL_RIGHTS}")
    if code in codes.UNWRITABLE:
        return InputError(
            text, action="correct the records or the topic's configuration; nothing of the batch is visible"
        )
    return AttemptFailed(text)
