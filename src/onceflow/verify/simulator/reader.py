"""A reader of committed records beside a run: it reads as far as the last stable offset, and takes nothing back."""

from __future__ import annotations

from collections.abc import Callable

from onceflow.verify.simulator.anomalies import Anomaly
from onceflow.verify.simulator.broker import MARKER_DELAYS, TRANSACTION_TIMEOUT
from onceflow.verify.simulator.partition import Partition
from onceflow.verify.simulator.scheduler import Scheduler

LONGEST_HOLD = TRANSACTION_TIMEOUT + max(MARKER_DELAYS)
"""A transaction ends after so many ticks whatever becomes of its driver: the coordinator aborts it, and markers take their time.

The model's coordinator looks at every moment; a real one every ten seconds
(``transaction.abort.timed.out.transaction.cleanup.interval.ms``).
"""


class Reader:
    """Of partition ``number``. Whenever the log has changed it reads on, as far as it may. ``got``: the values, in their order.

    ``tell`` hears of anomalies in the moment in which they come about.
    """

    def __init__(
        self, number: int, partition: Partition, scheduler: Scheduler, tell: Callable[[Anomaly, int, int, int], None]
    ) -> None:
        self.got: list[int] = []
        self._number = number
        self._partition = partition
        self._scheduler = scheduler
        self._tell = tell
        self._offset = 0  # where it reads on
        self._held_since: int | None = None
        partition.watch = self.look

    def look(self) -> None:
        """Reads what may be read by now."""
        stable = self._partition.last_stable_offset
        if stable > self._offset:
            self._read_to(stable)
        elif stable < self._offset:
            self._tell(Anomaly.WENT_BACK, self._number, self._offset, stable)
        if self._held_since is None and stable < self._partition.end:
            self._held_since = self._scheduler.now

    def _read_to(self, stable: int) -> None:
        held_for = 0 if self._held_since is None else self._scheduler.now - self._held_since
        if held_for > LONGEST_HOLD:
            self._tell(Anomaly.HELD, self._number, self._offset, held_for)
        self.got += self._partition.committed(self._offset, stable)
        self._offset, self._held_since = stable, None
