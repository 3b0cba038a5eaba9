"""What a deduplication store promises, and how the reader uses it.

A store remembers, per group: the *position* of each partition (the offset that comes next, and the epoch of the reader that owns
the partition) and the *ids* of the events that were handled. Both change together, and only under the epoch of the owner::

    reader A owns partition 0 with epoch 4, is stopped (SIGSTOP, a long pause), and its partition moves to B
    B takes the partition: epoch 5; it handles offsets 10 to 19
    A wakes in the middle of a handler, before its heartbeat tells it anything, and writes: epoch 4 is refused

so the fence is in the store, where the effects are; Kafka fences only what goes through Kafka.

Positions never expire: an offset below the position was handled, whatever became of its id. So expiry of ids can let through
only what the source sent again at another, later offset, after the time or number that the user stated.

Two modes, chosen by the handler: one that takes ``tx`` needs a store that is ``transactional``.

*transactional inbox* (such a store): effect, ids and position are one transaction of the store. A unit is
opened, ``admit`` tells which events are new, the handler writes through ``unit.handle``, and leaving the unit commits all of it.

*claim, process, confirm* (every store): for effects elsewhere. ``claim`` books events under a lease, the handler runs with a
stable idempotency key, ``confirm`` books them as handled. While the handler runs its events are claimed again, which renews their
lease. An effect may repeat only if the process dies between the two, or is stopped there until its partition moves; with a store
that goes with its process, if it dies before Kafka has heard of it.

``onceflow.testing`` has the conformance kit that every store passes; a store of your own can run it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do; a handler that takes ``tx`` needs one that is ``transactional``.

    ``transactional``: effects written through a unit's handle are in the same transaction as ids and position.
    ``durable``: what was committed survives the process. A store that is not, and holds no effects (it is not transactional),
    is rebuilt from the topic; where effects may be lost with it, ``lost_store`` decides.
    ``shared``: several processes may use it at once, so that the readers of a group have one store, which refuses those that were
    replaced. Where each has its own, the reader asks Kafka before it handles anything.
    """

    transactional: bool
    durable: bool
    shared: bool


@dataclass(frozen=True, slots=True)
class Ownership:
    """One partition as its owner holds it; ``next_offset`` is None if the group never handled anything of it.

    It moves with what the owner has booked: a store that knows less has lost something, and its epoch need not tell::

        A owns the partition and has handled offsets 0 to 99; the store's server fails over to a replica that lagged, or is
        restored from a backup that was made a minute ago; A's connection is a pooler's, or is made anew between two units
        the epoch is A's own, and the position 90. Offsets 100 to 109 booked behind that would hide that 90 to 99 are lost
    """

    topic: str
    partition: int
    epoch: int
    next_offset: int | None

    def at(self, next_offset: int) -> Ownership:
        """The same, when the store has moved the position."""
        return Ownership(self.topic, self.partition, self.epoch, next_offset)


class EventKey(NamedTuple):
    """What identifies one event: CloudEvents' (source, id); ``sequence`` where ids of a source are rising numbers.

    With a sequence the compact form holds: one number per (partition, source) is kept, not one id per event. It must rise
    along each partition for each source, so that everything at or below the number is known to be handled.
    """

    offset: int
    source: str
    id: str
    sequence: int | None = None


class Standing(Enum):
    """What the store says of one event."""

    NEW = "new"
    DUPLICATE = "duplicate"  # handled before: at this offset, or with this id at another
    HELD = "held"  # claimed under a lease that has not run out, and not confirmed


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ids are kept: until both bounds that are given are exceeded; None is no bound. Positions are kept for ever."""

    seconds: float | None = 7 * 24 * 3600.0
    count: int | None = None  # per group; the newest ids


class CommitRefused(Exception):
    """The store said no to a unit's commit because of what was written through its handle; nothing of the unit is there.

    Raised from the database's own error. That is a failure of the events in the unit, as if their handler had raised it.
    """


class Unit(Protocol):
    """One transaction of a transactional store. Leaving its context commits; an exception rolls back everything."""

    @property
    def handle(self) -> Any:
        """What the handler writes its effects through (a database connection or cursor, a Redis command buffer)."""

    def admit(self, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
        """Books these events of one partition (in offset order) as handled, and moves its position behind the last.

        Answers NEW or DUPLICATE for each. Raises StoreFenced when another reader took the partition, and StoreLost when its
        position is below the owner's ``next_offset``. Nothing is booked unless the unit commits.
        """

    def savepoint(self) -> AbstractContextManager[None]:
        """A part of the unit that can fail alone: an exception undoes the effects written inside it, and is raised on.

        Its end checks what the store would otherwise check at the commit, if it can. StoreUnavailable is what no event is
        guilty of: the store broke, or is full, whatever the handler made of the error.
        """


@runtime_checkable
class Store(Protocol):
    """One group's memory of what was handled. Safe to use from one thread at a time, and if it is shared from any thread: while a
    handler runs, another one renews its claims.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    def open(self, group: str, retention: Retention) -> None:
        """Connects and creates what is missing. Raises StoreUnavailable, or StoreMismatch for a newer or foreign layout."""

    def close(self) -> None: ...

    def take(self, topic: str, partitions: Sequence[int], owner: str) -> list[Ownership]:
        """Takes partitions for ``owner`` (a name for people): raises each one's epoch, which fences the owner before."""

    def unit(self) -> AbstractContextManager[Unit]:
        """Opens a transaction. Raises NotImplementedError where ``capabilities.transactional`` is false.

        The context's exit raises StoreFenced if a partition that was admitted has moved, CommitRefused for what handlers wrote
        (a deferred constraint), and CommitUnknown when the connection broke after the commit was sent: then the reader takes
        its partitions again, and their positions tell.
        """

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        """Books events as being handled until the lease runs out. Atomic with the check of the epoch; raises as ``admit``.

        A claim of an earlier epoch does not wait for its lease: the fence has stopped whoever held it from confirming. Nor
        does the owner wait for itself: the same offset claimed again under the same epoch is NEW, with a fresh lease.
        """

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        """Books claimed events as handled and moves the position behind the last. Idempotent; raises as ``admit``."""

    def forget_expired(self) -> int:
        """Deletes ids beyond the retention; how many. The reader calls it now and then; cheap when there is nothing to do."""
