"""Which run ``stop()`` is for: the one that is going on; before the first, that one.

What it survives::

    a run ends by itself, and is told to end a moment later (a task is cancelled that is done, a signal comes with the end)
    nobody runs, so nobody is meant. Kept for the next run, it would end that at once, with nothing handled

    a service starts its reader on a thread, and is shut down before the thread has begun
    the first run ends at once
"""

from __future__ import annotations

import threading

from onceflow.stop_flag import StopFlag


class Stops:
    """Flags, one a run: each is set by the first ``set`` behind its run's beginning."""

    def __init__(self) -> None:
        first = StopFlag()
        self._of_the_first: StopFlag | None = first
        self._going_on: tuple[StopFlag, ...] = (first,)
        self._turn = threading.Lock()

    def set(self) -> None:
        """Takes no lock: it may be called from a signal's handler, in the midst of anything."""
        for each in self._going_on:
            each.set()

    def begin(self) -> StopFlag:
        """What tells a new run that it is to end."""
        with self._turn:
            event, self._of_the_first = self._of_the_first, None
            if event is None:
                event = StopFlag()
                self._going_on = (*self._going_on, event)
            return event

    def over(self, event: StopFlag) -> None:
        """The run has ended."""
        with self._turn:
            self._going_on = tuple(each for each in self._going_on if each is not event)
