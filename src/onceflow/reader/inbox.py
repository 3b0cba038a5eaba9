"""The transactional inbox: effect, event id and position are one transaction of the store.

What it survives::

    the process dies anywhere before the store's commit
    nothing of the batch is there: no effect, no id; the position still stands before it, and it comes again

    it dies after the store's commit and before Kafka hears of the offsets
    the next reader starts at the store's position, not at Kafka's: nothing comes twice

    the commit was sent and its answer was lost
    CommitUnknown: the partition is taken anew, and the position that this gives tells (loop.py)

    the database is killed while the handler works; the handler sees an error of its client library
    the savepoint tells StoreUnavailable from a failure of the event: it is not counted, and no event becomes poison by it

    the database refuses what the handler wrote when the savepoint ends, or at the commit (a deferred constraint)
    that is a failure of the events in it, as if the handler had raised it: of a batch nobody can say which, so each of them is
    tried alone, and the one that fails alone becomes poison

    the same, and none of the events is new, or it is a dead letter that is booked
    no event is guilty of what the store alone has written (a trigger of the user's on its tables): StoreError, which ends the
    reader and says so. Counted as a failure it would be tried for ever, and buried by a booking that is refused as well

    the handler fails at event 7 of 100
    the unit is rolled back whole; events 0 to 6 are handled again in a unit of their own, and then event 7 is tried alone
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onceflow.errors import OnceflowError, StoreError
from onceflow.reader.event import Event
from onceflow.reader.handling import Failed, Handler
from onceflow.reader.lane import Lane
from onceflow.reader.steps import OnStep, Step
from onceflow.reader.stores.blame import nobody_else_writes, own_refused
from onceflow.reader.stores.interface import CommitRefused, EventKey, Ownership, Standing, Store, Unit
from onceflow.reader.tally import Tally

NAME = "transactional inbox"


class Inbox:
    """Handles batches of one partition, each in one unit of the store. Raises Failed and StoreError."""

    def __init__(self, store: Store, handler: Handler, on_step: OnStep, tally: Tally) -> None:
        self._store = store
        self._handler = handler
        self._on_step = on_step
        self._tally = tally

    def handle(self, lane: Lane, events: Sequence[Event]) -> None:
        """Handles what is new of these, and commits."""
        new: list[Event] = []
        try:
            with self._store.unit() as unit:
                standings = unit.admit(lane.ownership, [event.entry for event in events])
                self._on_step(Step.ADMITTED)
                new += [event for event, standing in zip(events, standings, strict=True) if standing is Standing.NEW]
                self._run(unit, new)
                self._on_step(Step.HANDLED)
        except CommitRefused as refused:
            raise _failed(new, refused) from refused
        self._on_step(Step.COMMITTED)
        lane.advance(len(events))
        self._tally.add(len(events), len(new))

    def _run(self, unit: Unit, events: Sequence[Event]) -> None:
        """The savepoint tells a connection that broke in the handler from a handler that failed."""
        try:
            with unit.savepoint():
                self._handler.run(events, unit.handle)
        except (Failed, OnceflowError):
            raise
        except Exception as error:
            raise _failed(events, error) from error

    def settle(self, lane: Lane) -> None:
        """Nothing: effect and position were committed together, or neither was."""

    def bury(self, lane: Lane, event: Event, send_letter: Callable[[], None]) -> None:
        """Books an event as handled whose dead letter is written first.

        Dying between letter and commit writes the letter again, with the same id; the event's effect is never there.
        """
        with nobody_else_writes(), self._store.unit() as unit:
            is_new = unit.admit(lane.ownership, [event.entry]) == [Standing.NEW]
            if is_new:
                send_letter()
                self._on_step(Step.BURIED)
        self._on_step(Step.COMMITTED)
        lane.advance(1)
        self._tally.dead_letters += is_new

    def book(self, ownership: Ownership, entries: Sequence[EventKey]) -> None:
        """Books events as handled without handling them."""
        with nobody_else_writes(), self._store.unit() as unit:
            unit.admit(ownership, entries)


def _failed(events: Sequence[Event], error: Exception) -> Failed | StoreError:
    """The failure of these events; where it is one, it is that one's. The reason is what the database said."""
    if not events:
        return own_refused(error)
    cause = error.__cause__ if isinstance(error, CommitRefused) else error
    reason = cause if isinstance(cause, Exception) else error
    return Failed(events[0] if len(events) == 1 else None, reason)
