"""An event that a signal's handler may set.

What it survives::

    the main thread waits in threading.Event.wait, and holds the Event's lock for a moment, as at each beginning and end of a wait
    a signal comes; its handler runs in that very thread, and Event.set waits for the lock: for ever
"""

from __future__ import annotations

import queue
from contextlib import suppress


class StopFlag:
    """Set once, from anywhere; waited for by any thread."""

    def __init__(self) -> None:
        self._is_set = False
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()  # put interrupts itself without harm

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Takes no lock."""
        self._is_set = True
        self._woken.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Returns whether it is set, when it is or after ``timeout_s``."""
        if not self._is_set:
            with suppress(queue.Empty):
                self._woken.get(timeout=timeout_s)
                self._woken.put(None)  # for the next who waits
        return self._is_set
