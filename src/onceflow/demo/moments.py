"""In a worker: tells the demo each step of the commit, and waits where the assignment says so."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from onceflow.demo.assignment import Hold, Message, Moment, Told


class Moments:
    """The ``on_step`` of a sink. Called from any thread of the worker."""

    def __init__(self, hold: Hold | None, tell: Callable[[Message], None], wait_for_go: Callable[[], None]) -> None:
        self._hold = hold
        self._tell = tell
        self._wait_for_go = wait_for_go
        self._seen: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()

    def __call__(self, step: str, batch_id: int) -> None:
        """Tell the step that comes next; at the planned one, come back when the demo says go, if it ever does."""
        with self._lock:
            self._seen[step, batch_id] += 1
            held = self._hold == Hold(Moment(step), batch_id, self._seen[step, batch_id]) if step in _KNOWN else False
        self._tell(Message(Told.HELD if held else Told.STEP, step, batch_id))
        if held:
            self._wait_for_go()

    def holds(self, moment: Moment, batch_id: int) -> bool:
        """Whether something is planned at ``moment`` of this batch."""
        return self._hold is not None and (self._hold.moment, self._hold.batch) == (moment, batch_id)


_KNOWN = frozenset(moment.value for moment in Moment)
