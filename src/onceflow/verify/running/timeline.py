"""What happened when, collected from many threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onceflow.verify.result import Happening, Lane

_LOOKS_AT_CLOCKS = 5


@dataclass(slots=True)
class Open:
    """Something that has begun and not ended; ``detail`` may grow."""

    lane: Lane
    name: str
    began_s: float
    detail: str = ""


class Timeline:
    """Happenings, in seconds since its own beginning. ``told`` is called with each note and each fault as it begins."""

    def __init__(self, told: Callable[[str], None] = lambda text: None) -> None:
        self.began_at = time.time()
        self._ahead_s = _clock_ahead_s()
        self._told = told
        self._lock = threading.Lock()
        self._happened: list[Happening] = []
        self._open: list[Open] = []

    def seconds(self, at: float | None = None) -> float:
        """A time of the clock (now by default) as seconds since the beginning.

        The wall clock, because engines are other processes that share no other.
        """
        return (time.time() if at is None else at) - self.began_at

    @property
    def clock_moved_s(self) -> float:
        """By how much the clock has gone ahead (below 0: back) of what has passed since the beginning, in seconds."""
        return _clock_ahead_s() - self._ahead_s

    def note(self, text: str) -> None:
        """Something the reader should know."""
        now = self.seconds()
        self.add(Happening(Lane.NOTE, text, now, now))
        self._told(text)

    def add(self, happening: Happening) -> None:
        with self._lock:
            self._happened.append(happening)

    def begin(self, lane: Lane, name: str, detail: str = "") -> Open:
        """Something begins now."""
        opened = Open(lane, name, self.seconds(), detail)
        with self._lock:
            self._open.append(opened)
        return opened

    def end(self, opened: Open) -> None:
        """It ends now; a second end is none."""
        with self._lock:
            if opened in self._open:
                self._open.remove(opened)
                self._happened.append(_closed(opened, self.seconds()))

    @contextmanager
    def during(self, lane: Lane, name: str, detail: str = "") -> Iterator[Open]:
        """Something that lasts as long as the block."""
        opened = self.begin(lane, name, detail)
        try:
            yield opened
        finally:
            self.end(opened)

    def is_open(self, lane: Lane) -> bool:
        """Whether anything of a lane goes on now."""
        with self._lock:
            return any(each.lane is lane for each in self._open)

    def was_open(self, lane: Lane, since_s: float = 0.0) -> bool:
        """Whether anything of a lane goes on now, or did so at some moment since then (seconds since the beginning)."""
        with self._lock:
            ended = any(each.lane is lane and each.ended_s >= since_s for each in self._happened)
            return ended or any(each.lane is lane for each in self._open)

    def happenings(self) -> tuple[Happening, ...]:
        """All of them by their beginning; what is still open ends now."""
        now = self.seconds()
        with self._lock:
            everything = [*self._happened, *(_closed(each, now) for each in self._open)]
        return tuple(sorted(everything, key=lambda each: (each.began_s, each.ended_s)))


def _closed(opened: Open, now: float) -> Happening:
    return Happening(opened.lane, opened.name, opened.began_s, now, opened.detail)


def _clock_ahead_s() -> float:
    """How far the wall clock is ahead of one that nobody sets. Who waits between both looks finds it less far."""
    return max(time.time() - time.monotonic() for _ in range(_LOOKS_AT_CLOCKS))
