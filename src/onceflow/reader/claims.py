"""Claim, process, confirm: for effects outside the store.

What it survives::

    the process dies after an effect and before it is confirmed
    the next owner claims the event again and repeats the effect, with the same idempotency key: the one case of a repetition

    the store goes away after an effect
    the reader remembers that the effect happened, and only confirms when the store is back

    that, and before the store is back the reader is stopped, or the partition moves
    it tries to confirm once more as it gives the partition up; where that fails too it says so: the effect will be repeated, as
    after a death

    that, and then a batch handler fails for the events that came meanwhile, so that all of them are tried one by one
    confirming the first forgets nothing of the others whose effect happened

    the process is stopped inside the handler, its partition moves, it wakes
    its confirmation is refused (StoreFenced); the effect may have been repeated by the new owner, as after a death

    the process is stopped inside the handler for longer than its lease, and its event was sent to another partition as well
    that one's reader may repeat the effect, as after a death. So it may where the store is away for longer than the lease before
    the effect is confirmed, and that reader is quicker when it comes back

    the process is stopped between two events of a batch that it has claimed, its partition moves, it wakes
    it sees that it stood still, and claims the rest again before it handles any of it: refused, nothing repeats. So it does where
    the whole machine slept. A store that is the process's own refuses nobody: then Kafka is asked (fence.py)

    a batch takes longer than its lease, and its source has sent one of its events to another partition as well
    half of the lease is for handling: what is left then is claimed again, and is a duplicate if the other reader was quicker

    one handler takes longer than the lease, and the source has sent its event to another partition as well, whose reader gets it
    that reader waits: the lease is renewed while the handler runs (leases.py)

Events are claimed by the batch and confirmed one by one, so that only the event in hand can repeat; a batch handler's events
are confirmed together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from onceflow.errors import OnceflowError
from onceflow.reader.event import Event
from onceflow.reader.fence import STOOD_STILL_S, Fence, awake_and_asleep
from onceflow.reader.handling import Handler
from onceflow.reader.lane import Lane
from onceflow.reader.leases import Leases
from onceflow.reader.steps import OnStep, Step
from onceflow.reader.stores.interface import EventKey, Ownership, Standing, Store
from onceflow.reader.tally import Tally

log = logging.getLogger("onceflow.reader")
NAME = "claim, process, confirm"


class Held(Exception):
    """The event in front is claimed by another reader, under the same id in another partition."""


class Claims:
    """Handles batches of one partition. Raises Failed, Held and StoreError."""

    def __init__(
        self, store: Store, handler: Handler, on_step: OnStep, leases: Leases, tally: Tally, fence: Fence
    ) -> None:
        self._store = store
        self._handler = handler
        self._on_step = on_step
        self._leases = leases
        self._tally = tally
        self._fence = fence

    def handle(self, lane: Lane, events: Sequence[Event]) -> None:
        """Handles and confirms what is new of these, up to the first that is held by another reader.

        What is not handled when half of the lease is over stays pending, and is claimed again.
        """
        entries = [event.entry for event in events]
        half_over_at = awake_and_asleep() + self._leases.lease_s / 2
        standings = self._leases.claim(lane.ownership, entries)
        self._fence.store_answered()
        self._on_step(Step.CLAIMED)
        free = standings.index(Standing.HELD) if Standing.HELD in standings else len(events)
        if self._handler.batch:
            self._part(lane, events[:free], standings[:free])
        else:
            for number, (event, standing) in enumerate(zip(events[:free], standings, strict=False)):
                if number and awake_and_asleep() > half_over_at:
                    return
                self._part(lane, [event], [standing])
        if free < len(events):
            raise Held(str(events[free]))

    def _part(self, lane: Lane, events: Sequence[Event], standings: Sequence[Standing]) -> None:
        """Events that are confirmed together."""
        if not events or not self._fence.heard_within(STOOD_STILL_S):
            return  # what is not handled stays pending, and is claimed again
        done = lane.effects_done
        new = [e for e, standing in zip(events[done:], standings[done:], strict=True) if standing is Standing.NEW]
        with self._leases.kept(lane.ownership, [event.entry for event in new]):
            self._handler.run(new, None)
        lane.effects_done = max(done, len(events))
        self._on_step(Step.HANDLED)
        self._confirm(lane, events)
        self._tally.add(len(events), standings.count(Standing.NEW))

    def _confirm(self, lane: Lane, events: Sequence[Event]) -> None:
        self._store.confirm(lane.ownership, [event.entry for event in events])
        self._fence.store_answered()
        self._on_step(Step.COMMITTED)
        lane.advance(len(events))

    def settle(self, lane: Lane) -> None:
        """Confirms effects that happened while the store was away: once more, for here nobody will do it later."""
        done = lane.pending[: lane.effects_done]
        if not done:
            return
        try:
            self._confirm(lane, done)
        except OnceflowError as error:
            log.error(  # noqa: TRY400 (the store's error is told whole, where it comes from tells nothing)
                "%s: the effects of %d events from offset %d on happened, and the store does not know of it: "
                "they come again, with the same idempotency keys (%s, …): %s",
                lane.name,
                len(done),
                done[0].offset,
                done[0].idempotency_key,
                error.message,
            )

    def bury(self, lane: Lane, event: Event, send_letter: Callable[[], None]) -> None:
        """Books an event as handled whose dead letter is written first; dying in between repeats the letter, with its id."""
        (standing,) = self._leases.claim(lane.ownership, [event.entry])
        if standing is Standing.HELD:
            raise Held(str(event))
        if standing is Standing.NEW:
            with self._leases.kept(lane.ownership, [event.entry]):
                send_letter()
            self._on_step(Step.BURIED)
        self._confirm(lane, [event])
        self._tally.dead_letters += standing is Standing.NEW

    def book(self, ownership: Ownership, entries: Sequence[EventKey]) -> None:
        """Books events as handled without handling them."""
        self._leases.claim(ownership, entries)
        self._store.confirm(ownership, entries)
