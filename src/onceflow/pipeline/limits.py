"""When the supervisor gives up a driver process, when it counts one as lost, and when it gives up all of it."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass, field

from onceflow.errors import OnceflowError

AT_ONCE = 2  # so many takeovers in a row without a pause
LONGEST_PAUSE_S = 60.0
IDLE_S = 15.0  # without data there is no first batch to wait for
START_S = 120.0  # until the first sign of life: Python has to start on a machine that may be busy
HEALTHY_S = 60.0  # a driver that went on for so long was no failure from the start, though it may have had no data
END_S = 20.0
DEATH_S = 5.0  # from SIGKILL until nobody waits for the end any more


@dataclass(frozen=True, slots=True)
class Limits:
    """When a driver is given up, and when all of it is; seconds.

    ``silence_s`` without any sign of life (it is paused, or its JVM is): it is killed. ``stall_s`` without the end of a
    trigger: it is killed too; longer than the longest batch and the trigger's interval. So is one that was told to run and
    has started no query for ``start_s``, or for ``stall_s`` where that is finite and longer, and a standby that is not warm
    after ``warm_s``: a start and the longest rehearsal. ``tries`` losses in a row without a committed batch: the pipeline ends.
    """

    silence_s: float = 10.0
    stall_s: float = math.inf
    start_s: float = 300.0
    warm_s: float = 660.0
    tries: int = 5

    @property
    def longest_start_s(self) -> float:
        """From being told to run until the query runs; a library may have to be downloaded first."""
        return self._or_stall_s(self.start_s)

    @property
    def longest_warming_s(self) -> float:
        """From the start of a standby until it is warm; likewise."""
        return self._or_stall_s(self.warm_s)

    def _or_stall_s(self, seconds: float) -> float:
        return seconds if math.isinf(self.stall_s) else max(seconds, self.stall_s)


@dataclass(slots=True)
class Signs:
    """When a driver was last heard of, and what of; seconds of the monotonic clock."""

    made: float = field(default_factory=time.monotonic)
    alive: float = field(default_factory=lambda: time.monotonic() + START_S)
    progress: float = field(default_factory=time.monotonic)
    is_warm: bool = False
    told: float | None = None  # to run
    started: float | None = None
    has_committed: bool = False  # a batch, since it was told to run
    ended: float | None = None  # the run; the process has only to clean up
    error: OnceflowError | None = None
    killed: float | None = None
    late: str = ""  # why it was killed

    def overdue(self, limits: Limits, now: float) -> str:
        """Why it has to be killed now; empty if it has not."""
        if now - self.alive > limits.silence_s:
            return f"gave no sign of life for {limits.silence_s:.0f} s and was killed"
        if self.ended is not None:
            return f"did not end for {END_S:.0f} s and was killed" if now - self.ended > END_S else ""
        if self.started is not None:
            is_late = now - self.progress > limits.stall_s
            return f"ended no trigger for {limits.stall_s:.0f} s and was killed" if is_late else ""
        if self.told is not None:
            is_late = now - self.told > limits.longest_start_s
            return f"started no query for {limits.longest_start_s:.0f} s and was killed" if is_late else ""
        return self._why_not_warm(limits.longest_warming_s, now)

    def _why_not_warm(self, limit_s: float, now: float) -> str:
        """A standby's::

        its JVM freezes while it starts; its Python goes on, and gives signs of life, for there is no session to be asked
        it is never warm, so no other one is started; the driver is lost, and the only standby does not run
        """
        is_late = not self.is_warm and now - self.made > limit_s
        return f"was not warm after {limit_s:.0f} s and was killed" if is_late else ""

    def begin(self) -> None:
        """Its query runs. One that is started again (clock_set_back.py) makes no new driver, or one that has gone on for long
        would be lost as if it had failed from the start.
        """
        self.progress = self.alive
        if self.started is None:
            self.started = self.alive

    def has_settled(self, now: float) -> bool:
        """Whether it is through with its first batch, or seems to have none."""
        return self.has_committed or (self.started is not None and now - self.started > IDLE_S)

    def end(self, error: OnceflowError | None = None) -> None:
        """Its run is over; no trigger has ended by that."""
        self.ended, self.error = self.alive, error

    @property
    def was_healthy(self) -> bool:
        """Whether it went on for long::

        a batch never ends, or takes all memory after a minute: each driver that takes it up is killed at last
        each has run for long by then, and would count as the first that was lost, for ever
        """
        return self.started is not None and self.progress - self.started > HEALTHY_S

    def forgive(self, seconds: float) -> None:
        """That much time has not passed for the limits."""
        self.made += seconds
        self.alive += seconds
        self.progress += seconds
        self.told = None if self.told is None else self.told + seconds
        self.started = None if self.started is None else self.started + seconds
        self.ended = None if self.ended is None else self.ended + seconds
        self.killed = None if self.killed is None else self.killed + seconds

    def why_gone(self, exit_code: int) -> str:
        """What is told of its end, behind "the driver"."""
        if self.error is not None:
            return f"failed: [{self.error.code}] {self.error.message}"
        if self.late:
            return self.late
        if exit_code < 0:
            return f"was killed by {_name(-exit_code)}"
        return f"ended by itself with exit code {exit_code}"


@dataclass(slots=True)
class Losses:
    """The drivers that were lost in a row, without a committed batch in between."""

    tries: int
    count: int = 0
    since: float | None = None

    def add(self, signs: Signs, now: float) -> None:
        """One more; the first again, if it had gone on for long: it has made good those before, though without a batch."""
        if signs.was_healthy:
            self.count, self.since = 0, None
        self.count += 1
        self.since = now if self.since is None else self.since

    def end(self, now: float) -> float | None:
        """A batch is committed: how many seconds after the first of them; None if there was none."""
        lost_at, self.since, self.count = self.since, None, 0
        return None if lost_at is None else round(now - lost_at, 3)

    @property
    def are_too_many(self) -> bool:
        return self.count >= self.tries

    @property
    def pause_s(self) -> float:
        """Until the next one takes over."""
        return 0.0 if self.count <= AT_ONCE else growing_pause_s(self.count - AT_ONCE)


def _name(number: int) -> str:
    """Real-time signals have none, but for the first and the last."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def growing_pause_s(times: int) -> float:
    """2, 4, 8, … seconds, and not longer than a minute."""
    return min(2.0 ** min(times, 10), LONGEST_PAUSE_S)
