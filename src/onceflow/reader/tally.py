"""What a reader has done so far, told now and then: a reader that works says so."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger("onceflow.reader")

EVERY_S = 10.0


@dataclass(slots=True)
class Tally:
    """Counts of one run; ``handled`` are the events whose effects happened in it."""

    say: Callable[[str], None] = log.info
    handled: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    _began: float = field(default_factory=time.monotonic)
    _said: float = field(default_factory=time.monotonic)

    def add(self, events: int, new: int) -> None:
        """Events that the store has committed, and how many of them were new."""
        self.handled += new
        self.duplicates += events - new

    def now_and_then(self) -> None:
        """Says how far it is, if the last time is long ago."""
        if time.monotonic() - self._said >= EVERY_S:
            self.tell("so far")

    def tell(self, when: str) -> None:
        """Says it now."""
        self._said = time.monotonic()
        self.say(f"{when}: {self} in {self._said - self._began:,.1f} s")

    def __str__(self) -> str:
        return f"{self.handled:,} events handled, {self.duplicates:,} duplicates, {self.dead_letters:,} dead letters"
