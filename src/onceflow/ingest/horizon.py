"""Up to which value of a rising column no row is missing, and none will appear later.

1. The largest visible value M is read.
2. Where values are not unique (a time of change), ``delay_s`` passes twice: whatever is drawn after the first is larger than M,
   and whoever drew before that has begun its transaction by the end of the second (or, where none can be noted, has committed).
3. The transactions that may hold a value up to M and are not committed yet are noted.
4. Once all of them have ended, every row up to M that will ever be there is visible.

Why the delay comes before the noting::

    A begins and takes its time of change, 10:00:00; A's first statement is slow to arrive
    M = 10:00:01 is read, and the open transactions are noted; A is not among them
    A writes 10:00:00 and commits: behind M, and never read
    with the delay A is open when the transactions are noted, or its clock and its way are slower than the user has vouched for

Why it passes twice::

    A's clock is late by almost the delay: almost a delay after M became visible A draws a value up to M
    A begins its transaction almost a delay after that, as it may
    one delay after M was read A is not open yet: not noted, and behind M

Why more are waited for than were noted::

    A is noted, and prepares its transaction for a second phase (PREPARE TRANSACTION): its process has none any more
    the prepared one has a name of its own, was not noted, and its rows appear behind M when it is committed
    each time that a noted transaction of a process is gone, the prepared ones of that moment are noted too
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SETTLE_S = 10.0
_POLL_S = 0.02

Writer = tuple[str, int | None]
"""A transaction, and the id of its process; a prepared one has none."""


class Horizon:
    """``largest`` gives the largest visible value (None: no row), ``writers`` the transactions to wait for."""

    def __init__(
        self, largest: Callable[[], Any], writers: Callable[[], set[Writer]] = set, *, delay_s: float = 0.0
    ) -> None:
        self._largest = largest
        self._writers = writers
        self._delay_s = delay_s
        self._found: Any = None
        self._found_at = 0.0
        self._noted: set[Writer] | None = None
        self._reached: Any = None
        self._is_stopped = False

    def stop(self) -> None:
        """``reached`` waits no more, and gives None. From any thread or a signal handler."""
        self._is_stopped = True

    def reached(self) -> Any:
        """The value; None if there is nothing new, or if transactions keep it back for longer than some seconds.

        What they keep back is tried again with the next call.
        """
        if self._found is None and not self._look():
            return None
        self._wait(self._found_at + 2 * self._delay_s)
        deadline = time.monotonic() + SETTLE_S
        while self._is_stopped or self._still_open():
            if self._is_stopped or time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        self._reached, self._found, self._noted = self._found, None, None
        return self._reached

    def _wait(self, until: float) -> None:
        """In short steps: a signal handler runs in the thread that waits, so it can set a flag, and must not take a lock."""
        while not self._is_stopped and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))

    def _look(self) -> bool:
        found = self._largest()
        if found is None or found == self._reached:
            return False
        self._found, self._found_at = found, time.monotonic()
        return True

    def _still_open(self) -> set[Writer]:
        now = self._writers()
        if self._noted is None:
            self._noted = now
        else:
            perhaps_prepared = any(process is not None for _, process in self._noted - now)
            prepared = {writer for writer in now if writer[1] is None} if perhaps_prepared else set()
            self._noted = (self._noted & now) | prepared
        return self._noted

    def kept_back_by(self) -> str:
        """Who keeps it back, for people; empty if nobody does."""
        if not self._noted:
            return ""
        named = [f"process {process}" if process else name for name, process in sorted(self._noted, key=str)]
        return "open transactions (" + ", ".join(named) + ")"
