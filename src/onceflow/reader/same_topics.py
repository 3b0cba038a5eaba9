"""Whether a topic is still the one whose events the group has handled: its positions are numbers, and fit any topic.

Which topic it is stands in the store, beside the positions, as the position of a partition that no topic can have (``NAME``).
Kafka's own place for it would go with the topic: it drops a group's offsets then, as it does when nobody commits for a week.

What it survives::

    100 events are handled and the reader ends; the topic is deleted and made anew, and gets 150 others
    EventsGone, before any is handled: at the position of the old topic 100 of them would be passed over without a word

    the same, while the reader runs; or the group's offsets are of the old topic still, because a reader committed them late
    what the topic was when its partitions were taken is compared again now and then (topic_watch.py), and an offset in Kafka
    says of which topic it is (offsets.py)

    the store is of an earlier version, or the broker gave no ids
    positions without an id are taken over, and get that of the topic as it is now

    two readers find nothing noted, and one is refused by the store because the other one took the place
    it looks again
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from onceflow.errors import EventsGone, StoreFenced
from onceflow.reader.event import position_source
from onceflow.reader.patience import patiently
from onceflow.reader.settings import ReaderSettings
from onceflow.reader.stores.interface import EventKey, Store
from onceflow.reader.topic_ids import TopicIds, shown
from onceflow.stop_flag import StopFlag

log = logging.getLogger("onceflow.reader")
NAME = "{topic}:id"  # no topic of Kafka's has a colon in its name; of its partition 1 beginnings.py makes use


class SameTopics:
    """Compares, and keeps what was found."""

    def __init__(self, settings: ReaderSettings, store: Store, owner: str, stop: StopFlag) -> None:
        self._settings = settings
        self._store = store
        self._owner = owner
        self._stop = stop
        self.ids = TopicIds(settings)
        self._known: dict[str, int] = {}

    def check(self, topics: Iterable[str]) -> None:
        """Before anything of them is handled. Raises EventsGone, KafkaError, StoreError, Stopped."""
        wanted = sorted(set(topics))
        if not wanted:
            return  # a rebalance that gives nothing
        found = patiently(lambda: self.ids.of(wanted), self._settings, self._stop)
        for topic, number in found.items():
            self._known[topic] = patiently(partial(self._noted, topic, number), self._settings, self._stop)
            self.compare(topic, number)

    def compare(self, topic: str, found: int) -> None:
        """Raises EventsGone where the topic is known as another one."""
        known = self._known.get(topic, found)
        if found and known != found:
            raise _made_anew(topic, known, found)

    def known(self, topic: str) -> str | None:
        """Which topic it is, if that is known."""
        number = self._known.get(topic)
        return None if number is None else shown(number)

    def _noted(self, topic: str, number: int) -> int:
        """What the store says that the topic is; where it says nothing, it is told."""
        name = NAME.format(topic=topic)
        while True:
            (ownership,) = self._store.take(name, [0], self._owner)
            if ownership.next_offset is not None:
                return ownership.next_offset - 1
            key = EventKey(number, position_source(name, 0), "", 0)  # with a sequence: no id that would expire
            try:
                self._store.claim(ownership, [key], self._settings.lease_s)
                self._store.confirm(ownership, [key])
            except StoreFenced as error:
                log.info("%s", error.message)
            else:
                return number


def _made_anew(topic: str, known: int, found: int) -> EventsGone:
    return EventsGone(
        f"{topic} was made anew: the group has handled events of the topic with the id {shown(known)}…, and this one has the id "
        f"{shown(found)}…",
        action="to handle the new topic from its beginning, take another group (and another store in memory), or delete the "
        "rows of the topic from the store (docs/stores.md). If it has the same events at the same offsets (it was copied, or "
        f"restored), delete the row of {NAME.format(topic=topic)} alone",
        topic=topic,
        known_id=shown(known),
        id=shown(found),
    )
