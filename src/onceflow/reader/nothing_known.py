"""Said once, where a group begins and may have handled all of it before: nobody is left to tell.

What it is for::

    a reader with a store in memory rests for longer than the cluster keeps a group's offsets, and is started again
    the store went with its process, and Kafka has forgotten the group: it looks like a new one, and begins as a new one does.
    Nobody can tell the two apart, so that is what is said, at the first start of a new group too

    a store that lasts is lost while its group rests for that long
    the same. It takes two losses at once, and most of those who read it have a new group; but a line too much at a group's first
    start is cheaper than effects that repeat in silence

    a group is reset to offset 0, and its store is lost before the next start (in memory: with the process)
    Kafka has an offset, so the group is no new one; and 0 is behind no store, so it is no witness (offsets.py). That is said

    a partition is added to a topic, or gets its first event, when the group has begun in others
    not said: the store or Kafka knows of those. Nor where the topic was made anew, as long as Kafka has offsets of the old one
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer

from onceflow.errors import KafkaError
from onceflow.kafka.admin import ClusterAdmin
from onceflow.reader.beginnings import begun, ends_of, partitions_of
from onceflow.reader.offsets import Committed, Place, beginning, committed_offsets
from onceflow.reader.settings import ReaderSettings, Start
from onceflow.reader.stores.interface import Ownership, Store

log = logging.getLogger("onceflow.reader")


class NothingKnown:
    """Looks at partitions when they are taken, and says it once of each topic."""

    def __init__(self, settings: ReaderSettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._seen: set[str] = set()

    def look(self, consumer: Consumer, owned: Sequence[Ownership], committed: Mapping[Place, Committed]) -> None:
        """``committed``: what Kafka knows of them. Where it does not tell what is needed, it is asked with the next ones.

        Nothing but a line in the log depends on it: a partition without a leader must not keep the others from being read.
        """
        known = self._seen.union(each.topic for each in owned if each.next_offset is not None)
        unknown = [(each.topic, each.partition) for each in owned if each.topic not in known]
        reset = [place for place in unknown if place in committed and committed[place].tells_nothing]
        silent = [place for place in unknown if place not in committed]
        try:
            if reset or silent:
                self._tell(consumer, reset, silent)
        except KafkaError as error:
            log.info("whether %s is a new group cannot be told: %s", self._settings.group, error.message)
        else:
            self._seen.update(begun(unknown))

    def _tell(self, consumer: Consumer, reset: Sequence[Place], silent: Sequence[Place]) -> None:
        admin = ClusterAdmin(self._settings.cluster, patience_s=self._settings.answer_s)
        places = sorted(partitions_of(admin, begun(silent))) if silent else []
        known = begun(committed_offsets(consumer, places))
        of_no_group = [place for place in silent if place[0] not in known]
        for topic in sorted(_with_events(consumer, admin, reset)):
            log.warning("%s", self._was_reset(topic))
        for topic in sorted(_with_events(consumer, admin, of_no_group)):
            log.warning("%s", self._looks_new(topic))

    def _was_reset(self, topic: str) -> str:
        return (
            f"{topic}: the group {self._settings.group} was reset to offset 0, and the store knows of nothing that it has "
            "handled: it handles all that is in the topic. If the store was lost, effects repeat"
        )

    def _looks_new(self, topic: str) -> str:
        what, loss = (
            ("handles all that is in the topic", "effects repeat")
            if self._settings.start is Start.EARLIEST
            else ("passes over what is in the topic", "what came meanwhile is not handled")
        )
        lost = "if its store was lost too" if self._store.capabilities.durable else "as its store is not durable"
        return (
            f"{topic}: the group {self._settings.group} begins, and {what}. That is right for a new group. One that rested for "
            f"longer than the cluster keeps offsets (offsets.retention.minutes) looks the same, {lost}: then {loss}"
        )


def _with_events(consumer: Consumer, admin: ClusterAdmin, places: Sequence[Place]) -> set[str]:
    """The topics of those that have some."""
    if not places:
        return set()
    found: set[str] = set()
    for place, end in ends_of(admin, places).items():
        if end and place[0] not in found and beginning(consumer, place) < end:
            found.add(place[0])
    return found
