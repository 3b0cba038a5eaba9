"""Who refuses a reader whose partitions have moved: the store, or Kafka where nobody else uses the store.

A shared store knows each new owner, and compares epochs. One that is the process's own (memory) hears of none: to it what another
process has handled is new. So before such a reader handles anything it asks Kafka, by a commit, whether it is a member of its
group still, unless Kafka has said so within the last second.

What it survives, with a store in memory::

    A has polled a batch and is stopped (SIGSTOP, the machine sleeps); its partition moves to B, which handles it; A wakes
    what Kafka has said is too old: A asks before the first of these events, is refused, and handles none of them

    A is stopped inside its handler, or between two events of a batch that it has claimed
    the effect in hand is done, and its own store confirms it; before the next event it asks, and is refused

    A is not stopped, but its handler takes longer than max_poll_interval_s; or A alone does not reach the coordinator of its
    group for longer than its session
    the same: what is too old is what Kafka has said, whatever A did meanwhile

    A wakes, and librdkafka has not heard yet that it is no member any more, or it has, and nobody has polled since
    the commit has the member and the generation of before, so Kafka refuses it either way. librdkafka does not join again before
    the loop has polled, and with that A has lost its partitions

    Kafka does not answer
    nothing is handled until it does, as with a store that is away

    Kafka takes seconds for each answer
    that is valid for as long again, or nothing would ever be handled; but for half a session at most, behind the question: A may
    have been stopped while it waited. A group keeps a member for its whole session behind what it has heard of it. (With the
    consumer protocol the session is the brokers' and not told to a member; theirs is taken for the usual one, which is also the
    least that they allow unless ``group.consumer.min.session.timeout.ms`` was lowered)

What it cannot help: the event in hand, and what A has handled before it stood still and Kafka has not heard of. B begins at
Kafka's offset, as after A's death.
"""

from __future__ import annotations

import math
import time

from onceflow.reader.stores.interface import Store

STOOD_STILL_S = 1.0  # far longer than nothing takes, far shorter than a group waits for a member
USUAL_SESSION_S = 45.0  # librdkafka's, and the brokers' own


def awake_and_asleep() -> float:
    """Seconds that pass while the machine sleeps too: Linux's monotonic clock stands still then, those of others do not."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Fence:
    """When it was last heard that the partitions are this reader's, from whoever would refuse it."""

    def __init__(self, store: Store, session_s: float | None = None) -> None:
        self._store = store
        self._longest_s = (session_s or USUAL_SESSION_S) / 2
        self._heard_at = -math.inf
        self._valid_s = 0.0

    @property
    def is_kafka(self) -> bool:
        """Whether Kafka has to be asked: the store would refuse nobody."""
        return not self._store.capabilities.shared

    def heard_within(self, seconds: float) -> bool:
        """Whether it is no longer ago, or not longer than a slow answer is valid."""
        return awake_and_asleep() - self._heard_at <= max(seconds, self._valid_s)

    def store_answered(self) -> None:
        """It has just compared the epoch."""
        if not self.is_kafka:
            self._heard_at = awake_and_asleep()

    def kafka_answered(self, asked_at: float) -> None:
        """The reader was a member when it was asked, or later. ``asked_at`` is of ``awake_and_asleep``."""
        if self.is_kafka:
            self._heard_at = asked_at
            self._valid_s = min(2 * (awake_and_asleep() - asked_at), self._longest_s)
