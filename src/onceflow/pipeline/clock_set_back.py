"""A wall clock that is set back under a query whose trigger goes by it.

::

    query   has a trigger of 10 seconds: behind a batch Spark waits until the wall clock says that the next one is due
    clock   is set back by an hour: by hand, by a time server, or because a virtual machine went on elsewhere
    Spark   waits for an hour and 10 seconds (``SystemClock.waitTillTime`` of 4.2); records come in, and no batch begins

    query   has no such trigger, and nothing to do; Spark says so every 10 seconds by the same clock
    clock   is set back by an hour
    Spark   says nothing for an hour, and who watches takes the query for one that hangs

So the clock is watched beside one that nobody sets, and whoever runs the query is told, to start it again. A few seconds are not
worth that: they pass by themselves. Nothing that is written depends on it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

LEAST_S = 5.0
_LOOK_EACH_S = 0.1  # a clock may be ahead for a moment only, in which Spark plans its next trigger
_AT_ONCE_S = 0.1  # for both clocks; where it took longer the process stood still in between, and the look says nothing


class Wall:
    """The wall clock beside the monotonic one."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._steady = steady
        self._furthest_ahead_s = wall() - steady()

    def set_back_s(self) -> float:
        """By how many seconds it was set back, at once or little by little, since that was told; 0 for less than ``LEAST_S``."""
        ahead_s = self._look()
        back_s = self._furthest_ahead_s - ahead_s
        if back_s >= LEAST_S or back_s < 0:
            self._furthest_ahead_s = ahead_s
        return back_s if back_s >= LEAST_S else 0.0

    def _look(self) -> float:
        """How far the wall clock is ahead of the steady one; if the process stood still between the two, what was seen before."""
        began = self._steady()
        now = self._wall()
        return now - began if self._steady() - began < _AT_ONCE_S else self._furthest_ahead_s


@contextlib.contextmanager
def watched(tell: Callable[[float], None], wall: Wall | None = None) -> Iterator[None]:
    """Calls ``tell``, on a thread of its own, with the seconds of each time that the clock is set back within the block."""
    left, watched_one = threading.Event(), wall or Wall()

    def watch() -> None:
        while not left.wait(_LOOK_EACH_S):
            if seconds := watched_one.set_back_s():
                tell(seconds)

    thread = threading.Thread(target=watch, name="onceflow-clock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()
