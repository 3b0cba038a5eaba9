"""Readers that stop themselves at a step (SIGSTOP), are replaced, and wake: many of them at once.

That a group waits for its silent member takes seconds, whatever the step; so they are waited for together.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.conftest import Reader as ReadAll
from tests.reader.conftest import soon_missed
from tests.reader.effects import Effects
from tests.reader.light import Job
from tests.reader.support import TIMEOUT_S, LightReader, Place, eventually

EVENTS = [str(number) for number in range(40)]
POISON = "7"
AT_THE_LETTER = "buried"

_ANYWHERE = ("taken", "polled", "begun", "witnessed", "committed", "offsets")
STEPS_WITHOUT_A_LOCK: Mapping[str, Mapping[str, int]] = {
    "inbox": dict.fromkeys(_ANYWHERE, 0),
    "claims": {**dict.fromkeys((*_ANYWHERE, "claimed", AT_THE_LETTER), 0), "handled": 1},
}
"""Where a reader holds no lock of its store, by mode; and how many effects repeat: the one in hand, which is the stated limit."""

AT_EACH = {mode: [(mode, step) for step in steps] for mode, steps in STEPS_WITHOUT_A_LOCK.items()}


@dataclass
class Zombie:
    """A reader that stops itself at a step, and the one that takes over."""

    protocol: str
    mode: str
    step: str
    place: Place
    effects: Effects
    stopped: LightReader = field(init=False)

    @property
    def repeated(self) -> int:
        return STEPS_WITHOUT_A_LOCK[self.mode][self.step]

    @property
    def job(self) -> Job:
        options = {"batch_size": 10, "retries": 0, "group_protocol": self.protocol}
        poison = POISON if self.step == AT_THE_LETTER else None
        return self.place.job(options=options, until_end=False, poison=poison, **self.effects.job)

    @property
    def events(self) -> list[str]:
        """Those that have an effect."""
        return [text for text in EVENTS if text != self.job.poison]

    def start(self) -> None:
        self.place.send(EVENTS)
        self.stopped = self.place.start(replace(soon_missed(self.job), interrupt=(self.step, 0, signal.SIGSTOP)))

    def replace(self) -> None:
        eventually(self.stopped.state, "T".__eq__, f"{self.step}: state")
        self.place.start(self.job)

    def until_replaced(self) -> None:
        eventually(lambda: set(self.effects.texts()), set(self.events).__eq__, f"{self.step}: the new owner's effects")

    def wake(self) -> None:
        """The store refuses it, or Kafka: whom it asks first, or who tells it first."""
        self.stopped.signal(signal.SIGCONT)
        self.stopped.until_it_says("is owned under epoch", "put out of the group", "lost to other readers")
        self.place.send(["more"])

    def end(self) -> None:
        eventually(self.effects.texts, lambda effects: "more" in effects, f"{self.step}: what came after")
        assert [process.stop() for process in self.place.processes] == [0, 0]


def stop_at_each_and_wake(
    at: Sequence[tuple[str, str]],
    make: Callable[[str, str], tuple[Place, Effects]],
    read: ReadAll,
    protocol: str = "classic",
) -> None:
    """Nothing is lost, and no more repeats than is stated. ``make`` gives a place of its own to each mode and step."""
    zombies = [Zombie(protocol, mode, step, *make(mode, step)) for mode, step in at]
    for what in (Zombie.start, Zombie.replace, Zombie.until_replaced, Zombie.wake, Zombie.end):
        for each in zombies:
            what(each)
    found = {each.step: each.effects.texts() for each in zombies}
    assert found == {each.step: [*EVENTS[: each.repeated], *each.events, "more"] for each in zombies}
    written = {each.step: letters(each.place, read) for each in zombies}
    twice = [POISON.encode()] * 2  # by the one that stopped behind it, and by the new owner
    assert written == {each.step: twice if each.step == AT_THE_LETTER else [] for each in zombies}


def letters(place: Place, read: ReadAll) -> list[bytes]:
    """The ids of the dead letters."""
    topic = f"{place.topic}.dead-letter"
    if topic not in place.admin.list_topics(timeout=TIMEOUT_S).topics:
        return []
    found: list[Any] = [dict(letter.headers() or ())["ce_id"] for letter in read(topic, on=place.broker)]
    return found
