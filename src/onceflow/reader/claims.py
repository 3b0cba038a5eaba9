"""Claim, process, confirm: for effects outside the store.

What it survives::

    the process dies after an effect and before it is confirmed
    the next owner claims the event again and repeats the effect, with the same idempotency key: the one case of a repetition

    the store goes away after an effect
    the reader remembers that the effect happened, and only confirms when the store is back

    the process is stopped inside the handler, its partition moves, it wakes
    its confirmation is refused (StoreFenced); the effect may have been repeated by the new owner, as after a death

Events are claimed by the batch and confirmed one by one, so that only the event in hand can repeat; a batch handler's events
are confirmed together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onceflow.reader.event import Event
from onceflow.reader.handling import Handler
from onceflow.reader.lane import Lane
from onceflow.reader.steps import OnStep, Step
from onceflow.reader.stores.interface import EventKey, Ownership, Standing, Store

NAME = "claim, process, confirm"


class Held(Exception):
    """The event in front is claimed by another reader, under the same id in another partition."""


class Claims:
    """Handles batches of one partition. Raises Failed, Held and StoreError."""

    def __init__(self, store: Store, handler: Handler, on_step: OnStep, lease_s: float) -> None:
        self._store = store
        self._handler = handler
        self._on_step = on_step
        self._lease_s = lease_s

    def handle(self, lane: Lane, events: Sequence[Event]) -> None:
        """Handles and confirms what is new of these, up to the first that is held by another reader."""
        entries = [event.entry for event in events]
        standings = self._store.claim(lane.ownership, entries, self._lease_s)
        self._on_step(Step.CLAIMED)
        free = standings.index(Standing.HELD) if Standing.HELD in standings else len(events)
        if self._handler.batch:
            self._part(lane, events[:free], standings[:free])
        else:
            for event, standing in zip(events[:free], standings, strict=False):
                self._part(lane, [event], [standing])
        if free < len(events):
            raise Held(str(events[free]))

    def _part(self, lane: Lane, events: Sequence[Event], standings: Sequence[Standing]) -> None:
        """Events that are confirmed together."""
        if not events:
            return
        done = lane.effects_done
        new = [e for e, standing in zip(events[done:], standings[done:], strict=True) if standing is Standing.NEW]
        self._handler.run(new, None)
        lane.effects_done = len(events)
        self._on_step(Step.HANDLED)
        self._confirm(lane, events)

    def _confirm(self, lane: Lane, events: Sequence[Event]) -> None:
        self._store.confirm(lane.ownership, [event.entry for event in events])
        self._on_step(Step.COMMITTED)
        lane.advance(len(events))

    def bury(self, lane: Lane, event: Event, send_letter: Callable[[], None]) -> None:
        """Books an event as handled whose dead letter is written first; dying in between repeats the letter, with its id."""
        (standing,) = self._store.claim(lane.ownership, [event.entry], self._lease_s)
        if standing is Standing.HELD:
            raise Held(str(event))
        if standing is Standing.NEW:
            send_letter()
            self._on_step(Step.BURIED)
        self._confirm(lane, [event])

    def book(self, ownership: Ownership, entries: Sequence[EventKey]) -> None:
        """Books events as handled without handling them."""
        self._store.claim(ownership, entries, self._lease_s)
        self._store.confirm(ownership, entries)
