"""Kafka as a witness of the store, from before the first effect of a partition.

A store was lost if Kafka's offset is ahead of it. But Kafka hears of positions behind the store's commits, about once a second;
until the first time there is no offset, or one that says nothing (where the group begins, or a 0 that somebody has reset it
to). So before the first event of such a partition is handled the store books where the group begins, and then Kafka is told
that the group handles events from there on. In this order, because that note makes a store without a position a lost one.

What it survives::

    the reader takes the partition, and dies
    neither the store nor Kafka knows of a position: the group begins at the next start, and nothing was handled

    it dies between the booking and the note
    the store has the position and goes on there; if it is lost too, the group begins anew, as nothing was handled

    it dies after the note, before the first effect or behind it, and before Kafka hears of another position
    the store has a position, be it the one of the beginning, and goes on there

    the same, and the store is lost
    StoreLost: nobody can tell whether there was an effect. A take gives the new store an epoch and no position, so the next start
    says the same

    the group begins, and there are no events
    nothing is booked and nothing noted. Of ``start="latest"`` Kafka has where the group begins (beginnings.py), which says that
    nothing was handled: a store that is lost then has lost nothing

    Kafka's offsets have expired, or were reset to 0, and the store has a position; events are handled; the store is lost
    that position was told to Kafka before the first of them: without it everything would be handled again

    the reader is put out of its group, or fenced in the store, between the two
    the store or Kafka refuses it, and it handles nothing (loop.py)
"""

from __future__ import annotations

from confluent_kafka import Consumer

from onceflow.reader.beginnings import book
from onceflow.reader.lane import Lane
from onceflow.reader.offsets import note_handling
from onceflow.reader.steps import OnStep, Step
from onceflow.reader.stores.interface import Store


class Witness:
    """Sees to it that a store which is lost from now on is told. Costs nothing where Kafka's offset does that already."""

    def __init__(self, store: Store, lease_s: float, on_step: OnStep) -> None:
        self._store = store
        self._lease_s = lease_s
        self._on_step = on_step

    def call(self, consumer: Consumer, lane: Lane) -> None:
        """Before an event of the lane is handled. Raises StoreError, BrokerUnreachable, PutOut; it can be repeated."""
        if lane.is_witnessed:
            return
        if lane.position is None:  # what came before the first event is none: ends of transactions, letters of others
            lane.begin(book(self._store, lane.ownership, lane.pending[0].offset, self._lease_s))
            self._on_step(Step.BEGUN)
        note_handling(consumer, lane)
        lane.is_witnessed = True
        self._on_step(Step.WITNESSED)
