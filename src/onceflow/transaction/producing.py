"""Step 4 as talks: which batches go out together, when, and what becomes of each answer. No I/O, no clock of its own.

``producer.py`` holds the talks with a real cluster, ``verify/simulator`` with its model. A lane is one target partition: its
sequence numbers start at 0, because each attempt runs under an epoch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from onceflow.errors import BrokerUnreachable, InputError, NotAuthorized, RecordTooLarge
from onceflow.kafka import codes
from onceflow.kafka.client import ALL_RIGHTS, Topic
from onceflow.kafka_python import ProduceRequest
from onceflow.transaction.enrolling import enrol
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.lane import Lane, Meaning, Sealed, final_meaning
from onceflow.transaction.led import led
from onceflow.transaction.messages import Counts, Identity
from onceflow.transaction.questions import At
from onceflow.transaction.talk import Leaders, Pace, Talk

IN_FLIGHT_PER_BROKER = 5
REQUEST_BYTES = 4 << 20
BUFFER_BYTES = 32 << 20
ACK_TIMEOUT_MS = 30_000

Seal = Callable[[int], Sized]
"""The bytes of a batch, given its first sequence."""

Batches = Sequence[tuple[Lane, Sealed]]
"""What one produce request carries, at most one batch of each lane."""


@dataclass(frozen=True, slots=True)
class Target:
    """Under what a producer writes. Without ``transactional_id`` the records are visible at once (no transaction)."""

    identity: Identity
    transactional_id: str | None
    transaction_version: int


@dataclass(frozen=True, slots=True)
class Send:
    """A turn: send a produce request and do not wait. What becomes of it is an ``Answered``."""

    leader: int
    request: Any
    batches: Batches


@dataclass(frozen=True, slots=True)
class Await:
    """A turn: wait for one answer to what was sent, until ``until`` or for as long as seems right. None: there is none yet."""

    until: float | None


@dataclass(frozen=True, slots=True)
class Answered:
    """A ProduceResponse, or the exception that stands for it."""

    leader: int
    batches: Batches
    answer: Any


class Producing:
    """The writing of one attempt. After an error the attempt must be aborted."""

    def __init__(self, target: Target, pace: Pace) -> None:
        self._target = target
        self._pace = pace
        self._lanes: dict[At, Lane] = {}
        self._requests_in_flight: dict[int, int] = {}
        self._buffered_bytes = 0
        self._enrolled: set[At] = set()  # partitions added to the transaction (version 1)
        self._last_progress = pace.now()

    def submitted(self, topic: str, partition: int, count: int, seal: Seal) -> Talk[None]:
        """Takes over one batch; its records follow all earlier ones of the same partition."""
        self._last_progress = self._pace.now()  # until now it was the query that took its time, not the brokers
        lane = yield from self._lane(topic, partition)
        data = seal(lane.base_sequence)
        lane.append(count, data)
        self._buffered_bytes += len(data)
        yield from self._pump()
        while self._buffered_bytes > BUFFER_BYTES:
            yield from self._wait()

    def finished(self) -> Talk[Counts]:
        """Waits until every record is acknowledged; the acknowledged records per (topic, partition)."""
        while any(lane.unfinished for lane in self._lanes.values()):
            yield from self._pump()
            yield from self._wait()
        return {at: lane.acknowledged for at, lane in self._lanes.items()}

    def _lane(self, topic: str, partition: int) -> Talk[Lane]:
        lane = self._lanes.get((topic, partition))
        if lane is None:
            topics: Mapping[str, Topic] = yield Leaders(frozenset({topic}))
            lane = self._lanes[topic, partition] = Lane(topic, partition, led(topics, topic, partition), self._pace)
        return lane

    # --------------------------------------------------------------------------------------------------------- sending

    def _pump(self) -> Talk[None]:
        """Sends what may be sent, as few requests as possible."""
        now = self._pace.now()
        by_leader: dict[int, list[Lane]] = {}
        for lane in self._lanes.values():
            if lane.ready(now):
                by_leader.setdefault(lane.leader, []).append(lane)
        for leader, lanes in by_leader.items():
            ready = lanes
            while ready and self._requests_in_flight.get(leader, 0) < IN_FLIGHT_PER_BROKER:
                yield from self._send(leader, _taken(ready))
                ready = [lane for lane in ready if lane.ready(now)]

    def _send(self, leader: int, batches: Batches) -> Talk[None]:
        yield from self._enrol(batches)
        self._requests_in_flight[leader] = self._requests_in_flight.get(leader, 0) + 1
        yield Send(leader, produce_request(self._target, batches), batches)

    def _enrol(self, batches: Batches) -> Talk[None]:
        """Transaction version 1: partitions are added to the transaction before the first write (KIP-98)."""
        target = self._target
        if target.transactional_id is None or target.transaction_version >= 2:
            return
        new = {(lane.topic, lane.partition) for lane, _ in batches} - self._enrolled
        if new:
            yield from enrol(target.transactional_id, target.identity, new, self._pace)
            self._enrolled |= new

    # --------------------------------------------------------------------------------------------------------- answers

    def _wait(self) -> Talk[None]:
        """Handles one answer, or lets a lane's pause pass."""
        answered: Answered | None = yield Await(self._next_due())
        if answered is None:
            self._check_patience()
        else:
            self._requests_in_flight[answered.leader] -= 1
            self._read(answered.batches, answered.answer)
            yield from self._settle()
        yield from self._pump()

    def _next_due(self) -> float | None:
        """When the next lane's pause ends."""
        now = self._pace.now()
        return min(
            (lane.not_before for lane in self._lanes.values() if lane.waiting and lane.not_before > now), default=None
        )

    def _check_patience(self) -> None:
        if self._pace.now() - self._last_progress > self._pace.patience:
            stuck = [lane for lane in self._lanes.values() if lane.unfinished]
            named = "; ".join(f"{lane.topic}-{lane.partition} ({lane.reason or 'no answer'})" for lane in stuck[:5])
            raise BrokerUnreachable(
                f"no record was acknowledged for {self._pace.patience:g} s; waiting: {named}",
                action="check the brokers that lead these partitions, and min.insync.replicas",
            )

    def _read(self, batches: Batches, answer: Any) -> None:
        if isinstance(answer, Exception):
            for lane, sealed in batches:
                lane.retry_later(sealed, f"{type(answer).__name__}: {answer}")
            return
        parts = {(t.name, p.index): p for t in answer.responses for p in t.partition_responses}
        for lane, sealed in batches:
            self._read_one(lane, sealed, parts[lane.topic, lane.partition])

    def _read_one(self, lane: Lane, sealed: Sealed, part: Any) -> None:
        meaning = self.meaning(lane, sealed, part.error_code)
        if meaning is Meaning.ACKNOWLEDGED:
            lane.acknowledge(sealed)
            self._buffered_bytes -= len(sealed.data)
            self._last_progress = self._pace.now()
        elif meaning in (Meaning.LATER, Meaning.AFTER_GAP):
            lane.retry_later(sealed, codes.name_of(part.error_code))
        else:
            where = f"produce to {lane.topic}-{lane.partition}"
            refused = _refused_records(lane, sealed, part)
            said = part.error_message or next(iter(refused.get("records", {}).values()), None)
            raise error_of(part.error_code, where, said, **refused)

    def meaning(self, lane: Lane, sealed: Sealed, code: int) -> Meaning:
        """What an answer means; a simulator notes it."""
        return lane.meaning(sealed, code)

    def _settle(self) -> Talk[None]:
        """Repairs lanes whose batches failed, with fresh leaders."""
        now = self._pace.now()
        broken = [lane for lane in self._lanes.values() if lane.broken]
        if not broken:
            return
        self._check_patience()
        topics: Mapping[str, Topic] = yield Leaders(frozenset(lane.topic for lane in broken), refresh=True)
        for lane in broken:
            lane.repair(led(topics, lane.topic, lane.partition), now)


def _taken(lanes: Iterable[Lane]) -> Batches:
    taken: list[tuple[Lane, Sealed]] = []
    size = 0
    for lane in lanes:  # the broker accepts one batch per partition and request
        if taken and size + len(lane.waiting[0].data) > REQUEST_BYTES:
            break
        sealed = lane.take()
        taken.append((lane, sealed))
        size += len(sealed.data)
    return taken


def produce_request(target: Target, batches: Batches) -> Any:
    """ProduceRequest: version 12 adds partitions to the transaction by itself (KIP-890), and no version below it does."""
    topic_type = ProduceRequest.TopicProduceData
    by_topic: dict[str, list[Any]] = {}
    for lane, sealed in batches:
        part = topic_type.PartitionProduceData(index=lane.partition, records=sealed.data)
        by_topic.setdefault(lane.topic, []).append(part)
    return ProduceRequest(
        transactional_id=target.transactional_id,
        acks=-1,
        timeout_ms=ACK_TIMEOUT_MS,
        topic_data=[topic_type(name=name, partition_data=parts) for name, parts in by_topic.items()],
        max_version=12 if target.transaction_version >= 2 else 11,
        min_version=12 if target.transaction_version >= 2 and target.transactional_id else 3,
    )


def _refused_records(lane: Lane, sealed: Sealed, part: Any) -> dict[str, Any]:
    """What a broker says of single records of a batch (KIP-467): why, by their number in all that is written to the partition.

    A batch that is too large it names none of; one that is alone in its batch is the one.
    """
    said = {sealed.sequence + each.batch_index: each.batch_index_error_message for each in part.record_errors or ()}
    if part.error_code in codes.TOO_LARGE and sealed.count == 1:
        said = {
            sealed.sequence: f"it takes {len(sealed.data):,} bytes as a batch of its own, which the topic does not accept"
        }
    return {"topic": lane.topic, "partition": lane.partition, "records": said} if said else {}


def _mend_of(code: int) -> str:
    if code in codes.TOO_LARGE:
        return (
            "raise the topic's max.message.bytes, which was lowered since it was learned (the next start names the record that "
            "is too large, if one is) or is not told to the principal: then grant it DESCRIBE_CONFIGS on the topic, so that "
            "batches are kept below it"
        )
    return "correct the records or the topic's configuration"


def error_of(code: int, where: str, message: str | None, **fields: Any) -> Exception:
    """What ends the attempt: IdentityRefused, NotAuthorized, InputError (with ``fields``) when the records are refused, of
    which RecordTooLarge when it is known which one, or AttemptFailed.
    """
    meaning = final_meaning(code)
    text = f"{where}: {codes.name_of(code)}" + (f": {message}" if message else "")
    if meaning is Meaning.REFUSED:
        return IdentityRefused(text)
    if meaning is Meaning.DENIED:
        right = codes.lacking(code, "WRITE")
        return NotAuthorized(f"{text}: the principal lacks {right}", action=f"grant it {right}; {ALL_RIGHTS}")
    if meaning is Meaning.UNWRITABLE:
        kind = RecordTooLarge if fields and code in codes.TOO_LARGE else InputError
        return kind(text, action=_mend_of(code), **fields)
    return AttemptFailed(text)
