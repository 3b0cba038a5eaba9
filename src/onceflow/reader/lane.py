"""One partition that this reader owns: what waits to be handled, and what became of the tries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from onceflow.reader.event import Event, position_source
from onceflow.reader.stores.interface import Ownership

_NOWHERE = -1


@dataclass(slots=True)
class Failure:
    """What became of the tries of one event. ``is_final``: no try would change it."""

    attempts: int
    reason: Exception
    retry_at: float = 0.0  # on the monotonic clock
    is_final: bool = False


@dataclass(slots=True)
class Lane:
    """Events wait in the order of their offsets; the one in front decides whether the lane may go on."""

    ownership: Ownership
    position: int | None  # the offset that comes next: what the store has, or where it was told to go on after a loss
    topic_id: str | None = None  # which topic it is, for Kafka to tell later
    begins_at: int | None = None  # where the group has begun, as far as Kafka's offset still tells
    handles_from: int | None = None  # where Kafka was told that the group handles events from there on
    is_witnessed: bool = True  # Kafka's offset would tell that the store was lost
    sent_position: int | None = None  # what Kafka was told
    sent_until: int | None = None
    unanswered: int = 0  # of what Kafka was told without waiting
    read_until: int | None = None  # every event before it has come
    place: str = ""
    pending: list[Event] = field(default_factory=list)
    effects_done: int = 0  # events in front whose effect happened, but is not confirmed (claims)
    doubtful: bool = False  # the store must be asked for the position before anything else
    paused: bool = False
    at_end: bool = False
    failures: dict[int, Failure] = field(default_factory=dict)  # by offset, of events that are pending
    single_until: int = _NOWHERE  # up to this offset each event is a batch of its own
    held_at: int | None = None  # the last offset at which another reader's claim was met
    times_held: int = 0  # in a row
    not_before: float = 0.0  # the store's next try
    troubled_since: float | None = None
    trouble_is_of_the_store: bool = False  # and not of the brokers, which are asked for a dead letter
    troubles: int = 0
    waited_s: float = 0.0  # in the pauses between them

    def __post_init__(self) -> None:
        self.place = position_source(self.ownership.topic, self.ownership.partition)

    @property
    def name(self) -> str:
        return f"{self.ownership.topic}-{self.ownership.partition}"

    @property
    def stored(self) -> int | None:
        """The position that the store is known to have: one that has less has lost something (``stores/rules.py``)."""
        return self.ownership.next_offset

    @property
    def empty_until(self) -> int | None:
        """From the position up to here there is nothing to handle: ends of transactions, aborted records, letters of others."""
        if self.pending or self.position is None or self.read_until is None:
            return self.position
        return max(self.position, self.read_until)

    def has_news(self) -> bool:
        """Whether Kafka does not know yet what it can be told."""
        if self.position is None or self.empty_until is None:
            return False
        return self.position != self.sent_position or self.empty_until > max(self.position, self.sent_until or 0)

    def due_at(self) -> float | None:
        """When there is something to do, on the monotonic clock; None if nothing waits."""
        if not self.pending:
            return None
        failure = self.failures.get(self.pending[0].offset)
        return max(self.not_before, failure.retry_at if failure else 0.0)

    def upcoming(self, most: int) -> list[Event]:
        """The events of the next try: up to the first that has failed, which is then tried alone.

        ::

            event 9 fails always, event 5 every other time; both in one unit with what is between
            5 succeeds, 9 fails, all is rolled back; then 5 fails, and so on: neither would ever be committed, or given up
        """
        first = self.pending[0].offset
        if first <= self.single_until or first in self.failures:
            return self.pending[:1]
        failing = min((offset for offset in self.failures if offset > first), default=None)
        if failing is None:
            return self.pending[:most]
        before = next((i for i, event in enumerate(self.pending) if event.offset >= failing), most)
        return self.pending[: min(before, most)]

    def begin(self, ownership: Ownership) -> None:
        """The store knows where the group begins."""
        self.ownership = ownership
        self.position = ownership.next_offset

    def advance(self, count: int) -> None:
        """The store has committed that the first ``count`` events are handled."""
        self.position = self.pending[count - 1].offset + 1
        self.ownership = self.ownership.at(self.position)
        del self.pending[:count]
        self._forget_failures()
        self.effects_done = max(0, self.effects_done - count)
        self.store_answered()

    def store_answered(self) -> None:
        """What stands in front was decided, whatever was said: a later trouble is another one."""
        self.troubled_since, self.troubles, self.waited_s = None, 0, 0.0

    def store_is_there(self) -> None:
        """It answers, and may break again before anything is decided: the pauses go on growing, and they have an end."""
        if self.trouble_is_of_the_store:
            self.troubled_since = None

    def troubled(self, now: float, patience_s: float, *, by_the_store: bool) -> bool:
        """Whether the patience is over: with what is away for so long, or a store that keeps breaking."""
        self.troubled_since = self.troubled_since or now
        self.trouble_is_of_the_store = by_the_store
        return now - self.troubled_since > patience_s or self.waited_s > patience_s

    def wait(self, now: float, pause_s: float) -> None:
        """Until the next try."""
        self.troubles += 1
        self.doubtful = True
        self.waited_s += pause_s
        self.not_before = now + pause_s

    def held(self) -> int:
        """Another reader has claimed the event in front: what stands behind is not claimed until it is free.

        How often in a row that was met of this event.
        """
        offset = self.pending[0].offset
        self.times_held = self.times_held + 1 if offset == self.held_at else 1
        self.held_at = offset
        self.single_until = max(self.single_until, offset)
        return self.times_held

    def failed(self, event: Event, reason: Exception) -> Failure:
        """Counts a failure of one event; all that it had."""
        before = self.failures.get(event.offset)
        failure = self.failures[event.offset] = Failure(1 + (before.attempts if before else 0), reason)
        return failure

    def unreadable(self, event: Event, reason: Exception) -> None:
        """No handler can have it: it is poison when it comes to the front."""
        self.failures[event.offset] = Failure(0, reason, is_final=True)

    def poison(self, retries: int) -> Failure | None:
        """The failure of the event in front, if that has failed once and ``retries`` times more, or no try would help it."""
        failure = self.failures.get(self.pending[0].offset)
        return failure if failure is not None and (failure.is_final or failure.attempts > retries) else None

    def _forget_failures(self) -> None:
        """Of what is not pending any more."""
        if self.failures and self.position is not None:
            self.failures = {offset: each for offset, each in self.failures.items() if offset >= self.position}

    def taken(self, ownership: Ownership) -> None:
        """The partition was taken anew: what the store has committed meanwhile is not handled again."""
        self.ownership = ownership
        self.doubtful = False
        self.position = max((p for p in (ownership.next_offset, self.position) if p is not None), default=None)
        waiting = len(self.pending)
        self.pending = self.unhandled(self.pending)
        self._forget_failures()
        self.effects_done = max(0, self.effects_done - (waiting - len(self.pending)))

    def unhandled(self, events: Sequence[Event]) -> list[Event]:
        """Those at or above the position."""
        position = self.position
        if position is None or not events or events[0].offset >= position:
            return list(events)
        return [event for event in events if event.offset >= position]
