"""Model of a partition leader: record batches, producer state (KIP-98), transaction markers, the last stable offset."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from onceflow.transaction.messages import Identity
from onceflow.verify.simulator.coverage import reach
from onceflow.verify.simulator.requests import INVALID_PRODUCER_EPOCH, OK, OUT_OF_ORDER, Answer, Produce

BATCHES_KEPT = 5  # ProducerStateEntry.NUM_BATCHES_TO_RETAIN


@dataclass(slots=True)
class _Producer:
    """What a leader knows of one producer id. ``batches``: the (first, last) sequences of its newest batches."""

    epoch: int
    batches: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    open: list[_Appended] = field(default_factory=list)

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][1] if self.batches else -1


@dataclass(slots=True)
class _Appended:
    offset: int
    values: tuple[int, ...]
    committed: bool = False


class Partition:
    """The leader of one output partition."""

    def __init__(self) -> None:
        self._log: list[_Appended] = []
        self._producers: dict[int, _Producer] = {}
        self._lowest: dict[int, tuple[int, int]] = {}  # producer id to (epoch, lowest sequence) that was to be verified
        self._end = 0
        self.refuses: Answer | None = None  # instead of appending: replicas are missing, or a batch is too large
        self.watch: Callable[[], object] = lambda: None  # hears of each change of the log, right behind it

    def verifying(self, request: Produce) -> None:
        """Before the coordinator is asked, the leader notes the lowest sequence that it saw of a transaction's first batch.

        So a later batch that overtakes a refused first one is not taken for the first (``VerificationStateEntry``).
        """
        pid, seen = request.identity.producer_id, (request.identity.epoch, request.sequence)
        epoch, lowest = self._lowest.get(pid, seen)
        if seen[0] > epoch or (seen[0] == epoch and seen[1] < lowest):
            epoch, lowest = seen
        self._lowest[pid] = (epoch, lowest)

    def is_open(self, identity: Identity) -> bool:
        """Whether the leader holds an open transaction of exactly this identity: then it asks no coordinator."""
        producer = self._producers.get(identity.producer_id)
        return producer is not None and producer.epoch == identity.epoch and bool(producer.open)

    def is_fenced(self, identity: Identity) -> bool:
        """Whether the leader knows a newer epoch of this producer id."""
        producer = self._producers.get(identity.producer_id)
        return producer is not None and identity.epoch < producer.epoch

    def append(self, request: Produce, *, strict: bool) -> Answer:
        """Epoch, duplicate and sequence are checked in this order. ``strict``: an unknown producer begins at 0 (KIP-890)."""
        pid, epoch = request.identity.producer_id, request.identity.epoch
        if self.is_fenced(request.identity):
            return INVALID_PRODUCER_EPOCH
        producer = self._producers.get(pid)
        span = (request.sequence, request.sequence + len(request.values) - 1)
        if producer is not None and producer.epoch == epoch and span in producer.batches:
            reach("partition: a resent batch is acknowledged and not appended")
            return OK
        overtook = pid in self._lowest and request.sequence > self._lowest[pid][1]
        if overtook or not _follows(producer, epoch, request.sequence, strict=strict):
            reach("partition: a sequence out of order")
            return OUT_OF_ORDER
        if producer is None or producer.epoch != epoch:
            opened = producer.open if producer else []
            producer = self._producers[pid] = _Producer(epoch, open=opened)
        self._lowest.pop(pid, None)
        appended = _Appended(self._end, request.values)
        self._log.append(appended)
        self._end += len(request.values)
        producer.open.append(appended)
        producer.batches.append(span)
        self.watch()
        return OK

    def begin_with(self, values: tuple[int, ...]) -> None:
        """Holds records that were written before the run, without a transaction."""
        self._log.append(_Appended(self._end, values, committed=True))
        self._end += len(values)
        self.watch()

    def expire(self) -> None:
        """``producer.id.expiration.ms`` has passed: forgets every producer without an open transaction, and what it noted."""
        self._producers = {pid: each for pid, each in self._producers.items() if each.open}
        self._lowest.clear()

    def move(self) -> None:
        """What a leader noted before it asked the coordinator is in its memory alone."""
        self._lowest.clear()

    def restart(self) -> None:
        """A broker that ended in order has of each producer the newest batch alone: its snapshot holds no more.

        ::

            three batches are in flight, two are in the log, nobody hears of it; the broker is restarted, and leads again
            the first one comes again: it is no duplicate that the leader knows, but out of order
        """
        self.move()
        for producer in self._producers.values():
            if len(producer.batches) > 1:
                reach("partition: a restarted leader knows the newest batch alone")
                producer.batches = deque([producer.batches[-1]], maxlen=BATCHES_KEPT)

    def mark(self, identity: Identity, commit: bool) -> None:
        """A marker ends the transaction; a marker of a newer epoch clears the sequences."""
        producer = self._producers.setdefault(identity.producer_id, _Producer(identity.epoch))
        for appended in producer.open:
            appended.committed = commit
        producer.open.clear()
        if identity.epoch > producer.epoch:
            producer.epoch = identity.epoch
            producer.batches.clear()
        self._end += 1
        self.watch()

    def may_lose_tail(self, identity: Identity, *, strict: bool) -> bool:
        """Whether the audit can find the loss.

        A leader that does not know a producer takes any first sequence where transactions are of version 1::

            the only batch of the transaction is acknowledged and lost; the next one, with a later sequence, is accepted
            LastSequence says that all is there
        """
        return strict or len(self._producers[identity.producer_id].batches) > 1

    def lose_tail(self, identity: Identity) -> None:
        """An unclean election: the newest batch of an open transaction is gone, although it was acknowledged.

        What comes next has other offsets than it had; in Kafka it has the same. No reader of committed records can tell.
        """
        producer = self._producers[identity.producer_id]
        self._log.remove(producer.open.pop())
        producer.batches.pop()
        if not producer.batches:
            del self._producers[identity.producer_id]
        self.watch()

    @property
    def producers(self) -> tuple[tuple[Identity, int], ...]:
        """DescribeProducers: each producer id with its epoch and LastSequence."""
        return tuple((Identity(pid, each.epoch), each.last_sequence) for pid, each in self._producers.items())

    @property
    def end(self) -> int:
        """The next offset."""
        return self._end

    @property
    def visible(self) -> list[int]:
        """What a reader of committed records gets in the end."""
        return self.committed(0, self._end)

    @property
    def readable(self) -> list[int]:
        """What a reader of committed records gets now: of what is visible in the end, what lies below the last stable offset."""
        return self.committed(0, self.last_stable_offset)

    def committed(self, first: int, end: int) -> list[int]:
        """The values of the batches from offset ``first`` to below ``end`` that are committed by now, in the log's order."""
        return [
            value
            for appended in self._log
            if appended.committed and first <= appended.offset < end
            for value in appended.values
        ]

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest transaction without a marker; where none is open the end.

        That is Kafka's high watermark, for followers of the model have everything: a batch that they lack is one whose answer
        was lost. A transaction holds it down whoever's it is, and whether or not it has been decided.
        """
        held = [producer.open[0].offset for producer in self._producers.values() if producer.open]
        return min(held, default=self._end)

    @property
    def hanging(self) -> bool:
        """Whether the last stable offset is below the end."""
        return self.last_stable_offset < self._end


def _follows(producer: _Producer | None, epoch: int, sequence: int, *, strict: bool) -> bool:
    if producer is None:
        return sequence == 0 or not strict
    if producer.epoch != epoch:
        return sequence == 0
    return sequence == producer.last_sequence + 1
