"""One target partition of a producer: its sequences, what waits, what is in flight, and its repair. No I/O, no clock.

What a lane survives::

    the connection breaks with batches 3, 4, 5 in flight; the broker has 3 and 4
    all three are sent again, oldest first, one at a time: 3 and 4 are answered as duplicates with success, 5 is appended

    batch 3 is answered NOT_ENOUGH_REPLICAS, 4 and 5 OUT_OF_ORDER_SEQUENCE_NUMBER (they came after the gap)
    nothing more is sent until all are answered, then 3, 4, 5 again in order

    OUT_OF_ORDER_SEQUENCE_NUMBER for the oldest batch of a lane
    somebody else wrote under our sequence, or the broker forgot it: the attempt is lost, and said so
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sized
from dataclasses import dataclass, field
from enum import Enum

from onceflow.kafka import codes
from onceflow.transaction.talk import Pace

IN_FLIGHT_PER_PARTITION = 5  # the broker remembers the last five batches of a producer id (KIP-98)
SEQUENCE_SPACE = 2**31


class Meaning(Enum):
    """What a leader's answer to one batch means."""

    ACKNOWLEDGED = "it is in the log"
    LATER = "send the same bytes again"
    AFTER_GAP = "it came after one that was not taken: send both again, in order"
    REFUSED = "the identity or its transaction is gone"
    DENIED = "the principal may not"
    UNWRITABLE = "the records themselves are at fault"
    LOST = "the attempt is lost"


@dataclass(slots=True)
class Sealed:
    """A ready record batch; ``sequence`` counts on where the wire's wraps."""

    sequence: int
    count: int
    data: Sized


@dataclass(slots=True)
class Lane:
    """Decides what of one partition may be sent, and what an answer means. Times are those of ``pace``."""

    topic: str
    partition: int
    leader: int
    pace: Pace
    next_sequence: int = 0
    acknowledged: int = 0
    waiting: deque[Sealed] = field(default_factory=deque)
    in_flight: deque[Sealed] = field(default_factory=deque)
    failed: list[Sealed] = field(default_factory=list)
    repair_until: int = -1  # the newest sequence that failed: one batch at a time until it is acknowledged
    not_before: float = 0.0
    pause: float = 0.0
    reason: str = ""  # why a batch had to be sent again

    def __post_init__(self) -> None:
        self.pause = self.pace.first_pause

    @property
    def base_sequence(self) -> int:
        """The sequence of the next batch, as it goes over the wire."""
        return self.next_sequence % SEQUENCE_SPACE

    @property
    def unfinished(self) -> bool:
        return bool(self.waiting or self.in_flight or self.failed)

    @property
    def broken(self) -> bool:
        """Whether it has something to repair, and all that was in flight is answered."""
        return bool(self.failed) and not self.in_flight

    def append(self, count: int, data: Sized) -> None:
        """Takes over one batch, sealed with ``base_sequence``."""
        self.waiting.append(Sealed(self.next_sequence, count, data))
        self.next_sequence += count

    def ready(self, now: float) -> bool:
        """Whether its oldest waiting batch may be sent now."""
        limit = 1 if self.repair_until >= 0 else IN_FLIGHT_PER_PARTITION
        return bool(self.waiting) and not self.failed and len(self.in_flight) < limit and now >= self.not_before

    def take(self) -> Sealed:
        """The oldest waiting batch; from now on it is in flight."""
        sealed = self.waiting.popleft()
        self.in_flight.append(sealed)
        return sealed

    def meaning(self, sealed: Sealed, code: int) -> Meaning:
        """What the leader's error code means for a batch that is in flight."""
        if code == codes.NONE:
            return Meaning.ACKNOWLEDGED
        if code in codes.RETRIABLE:
            return Meaning.LATER
        if code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER and self._after_gap(sealed):
            return Meaning.AFTER_GAP
        return final_meaning(code)

    def _after_gap(self, sealed: Sealed) -> bool:
        return bool(self.failed) or self.in_flight[0] is not sealed

    def acknowledge(self, sealed: Sealed) -> None:
        """It is in the log."""
        self.in_flight.remove(sealed)
        self.acknowledged += sealed.count
        if sealed.sequence >= self.repair_until:
            self.repair_until, self.pause = -1, self.pace.first_pause

    def retry_later(self, sealed: Sealed, reason: str) -> None:
        """It will be sent again, once all that is in flight is answered."""
        self.reason = reason
        self.in_flight.remove(sealed)
        self.failed.append(sealed)

    def repair(self, leader: int, now: float) -> None:
        """Puts what failed back in front, oldest first, for the partition's present leader."""
        self.leader = leader
        self.failed.sort(key=lambda sealed: sealed.sequence)
        self.repair_until = max(self.repair_until, self.failed[-1].sequence)
        self.waiting.extendleft(reversed(self.failed))
        self.failed.clear()
        self.not_before = now + self.pause
        self.pause = self.pace.longer(self.pause)


def final_meaning(code: int) -> Meaning:
    """What an error code means that no repetition changes."""
    if code in codes.REFUSED:
        return Meaning.REFUSED
    if code in codes.UNAUTHORISED:
        return Meaning.DENIED
    return Meaning.UNWRITABLE if code in codes.UNWRITABLE else Meaning.LOST
