"""``onceflow run --standby``: a small process without Java that keeps one driver running and the next one warm.

::

    the driver that runs is gone      its group is killed, the standby is told to run at once: it fences, aborts what was
    (or silent, or stalled)           open and goes on behind the newest committed batch
    the new driver's first batch      another standby is started; not before, they would compete for the processors
    the same again, without progress  it waits between takeovers, longer each time, and gives up after some
    an error that a user must mend    ends it, as it ends ``onceflow run``: the standby would only meet it again
    Ctrl-C, SIGTERM                   the standby ends at once, the driver after its running batch

Fenced is such an error: only one driver at a time is told to run, and only after the one before was killed, so whoever
fenced it is a stranger.
"""

from __future__ import annotations

import math
import queue
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from onceflow.config import PlanFile
from onceflow.errors import (
    AuthenticationFailed,
    ConfigurationError,
    Fenced,
    InputError,
    NotAuthorized,
    OnceflowError,
    ProgressConflict,
    RestartsExhausted,
    SetupError,
    TopicMissing,
    UnsafeSession,
)
from onceflow.pipeline.cluster import connect
from onceflow.pipeline.control import Control, Heard, StopAsked
from onceflow.pipeline.events import (
    BatchCommitted,
    DriverLost,
    Event,
    Finished,
    Listener,
    Note,
    StandbyReady,
    Started,
    TookOver,
)
from onceflow.pipeline.standby import PROGRAM, Failed, Gone, Hear, Pulse, Ready, Said, Triggered, WarmDriver
from onceflow.transaction.progress import OnMismatch

AT_ONCE = 2  # so many takeovers in a row without a pause
LONGEST_PAUSE_S = 60.0
START_S = 120.0  # until the first sign of life: Python has to start on a machine that may be busy
HEALTHY_S = 60.0  # a driver that ran so long was no failure from the start, though it may have had no data
IDLE_S = 15.0  # without data there is no first batch to wait for
END_S = 20.0
_LOOK_S = 0.5
_FOR_A_USER = (
    ConfigurationError, SetupError, InputError, Fenced, ProgressConflict, UnsafeSession, NotAuthorized,
    AuthenticationFailed, TopicMissing,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """When a driver is given up, and when all of it is; seconds.

    ``silence_s`` without any sign of life (it is paused, or its JVM is): it is killed. ``stall_s`` without the end of a
    trigger: it is killed too; longer than the longest batch and the trigger's interval. ``tries`` losses in a row without a
    committed batch: the pipeline ends.
    """

    silence_s: float = 10.0
    stall_s: float = math.inf
    tries: int = 5


def run_with_standby(
    file: PlanFile,
    *,
    tell: Listener,
    control: Control,
    mode: OnMismatch = OnMismatch.REFUSE,
    spark_log: str = "off",
    limits: Limits = Limits(),
    program: Sequence[str] = PROGRAM,
) -> Finished:
    """Runs a plan as ``onceflow.pipeline.run`` does, in processes that take over from each other.

    Raises what a driver raises if a user must mend it, or if none came as far as starting the query; RestartsExhausted when
    driver after driver is lost. ``program`` is the command of a driver. Leaves no process behind. Blocks.
    """
    start = partial(WarmDriver, file, connect(file, tell), spark_log=spark_log, program=program)
    supervisor = _Supervisor(file.plan.name, start, tell, control, mode, limits)
    try:
        return supervisor.run()
    finally:
        supervisor.close()


@dataclass(slots=True)
class _Signs:
    """When a driver was last heard of, and what of; seconds of the monotonic clock."""

    alive: float = field(default_factory=lambda: time.monotonic() + START_S)
    progress: float = field(default_factory=time.monotonic)
    started: float | None = None
    has_ended: bool = False  # the run; the process has only to clean up
    error: OnceflowError | None = None
    late: str = ""  # why it was killed


class _Supervisor:
    def __init__(
        self,
        name: str,
        start: Callable[[Hear], WarmDriver],
        tell: Listener,
        control: Control,
        mode: OnMismatch,
        limits: Limits,
    ) -> None:
        self._name = name
        self._start_driver = start
        self._tell = tell
        self._inbox = control.inbox
        self._mode = mode
        self._limits = limits
        self._drivers: list[WarmDriver] = []  # those of which something may be left
        self._signs: dict[WarmDriver, _Signs] = {}  # those that are not gone
        self._running: WarmDriver | None = None
        self._standby: WarmDriver | None = None
        self._standby_due = math.inf
        self._standby_losses = 0
        self._takeover_due = -math.inf
        self._losses = 0
        self._lost_at: float | None = None
        self._begun = ""
        self._stop: StopAsked | None = None
        self._finished: Finished | None = None
        self._batches = 0
        self._records = 0

    def run(self) -> Finished:
        """Until the driver has ended in order, or an error ends it."""
        while self._finished is None or self._running is not None:
            self._look()
            try:
                message = self._inbox.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if isinstance(message, StopAsked):
                self._end(message)
            elif isinstance(message, Heard):
                self._hear(cast(WarmDriver, message.driver), cast(Said, message.message))
        return self._finished

    def close(self) -> None:
        """Kills what still runs, and waits until it is gone."""
        for driver in self._drivers:
            driver.kill()
        for driver in self._drivers:
            driver.close()

    # ------------------------------------------------------------------------------------------------------ what is due

    def _look(self) -> None:
        # What waits in the inbox comes first: if we were paused ourselves, it holds the signs of life of that time.
        if not self._inbox.empty():
            return
        now = time.monotonic()
        if self._running is None and now >= self._takeover_due:
            self._take_over()
        if self._standby is None and now >= self._standby_due:
            self._start_standby(now)
        for driver, signs in self._signs.items():
            self._check(driver, signs, now)

    def _check(self, driver: WarmDriver, signs: _Signs, now: float) -> None:
        if now - signs.alive > self._limits.silence_s:
            signs.late = f"gave no sign of life for {self._limits.silence_s:.0f} s and was killed"
        elif signs.started and now - signs.progress > self._limits.stall_s:
            signs.late = f"ended no trigger for {self._limits.stall_s:.0f} s and was killed"
        if signs.late or (signs.has_ended and now - signs.progress > END_S):
            driver.kill()

    def _start_standby(self, now: float) -> None:
        self._standby_due = math.inf
        try:
            self._standby = self._start()
        except OSError as error:  # no memory, no process: the pipeline runs on without
            self._standby_due = now + LONGEST_PAUSE_S
            self._tell(Note(f"no standby can be started ({error}); tried again in {LONGEST_PAUSE_S:.0f} s"))

    def _start(self) -> WarmDriver:
        driver = self._start_driver(self._heard)
        self._signs[driver] = _Signs()
        self._drivers = [each for each in self._drivers if not each.is_over] + [driver]
        return driver

    def _heard(self, driver: WarmDriver, said: Said) -> None:
        """Runs on the driver's own thread."""
        self._inbox.put(Heard(driver, said))

    def _take_over(self) -> None:
        self._running, self._standby = self._standby or self._start(), None
        self._running.go(self._mode, self._begun)

    def _end(self, stop: StopAsked) -> None:
        self._stop = stop
        self._standby_due = math.inf
        if self._standby is not None:
            self._standby.kill()
        if self._running is not None:
            self._running.stop(stop.reason)
        else:
            self._finish(stop.reason)

    # ------------------------------------------------------------------------------------------------------ what is said

    def _hear(self, driver: WarmDriver, said: Said) -> None:
        signs = self._signs[driver]
        signs.alive = time.monotonic()
        match said:
            case Failed(error):
                signs.error, signs.has_ended, signs.progress = error, True, signs.alive
            case Gone(exit_code):
                del self._signs[driver]
                self._gone(driver, signs, exit_code)
            case Finished(reason=reason):
                signs.has_ended, signs.progress = True, signs.alive
                self._finish(reason)
            case Ready():
                self._standby_losses = 0
                if driver is self._standby:
                    self._tell(StandbyReady(driver.pid))
            case Triggered():
                signs.progress = signs.alive
            case Pulse():
                pass
            case _:
                self._tell(said)
                self._note(said, driver, signs)

    def _note(self, event: Event, driver: WarmDriver, signs: _Signs) -> None:
        """What an event of the pipeline means here."""
        if isinstance(event, Started):
            signs.started = signs.progress = signs.alive
            self._begun = event.query_id
            self._standby_due = signs.alive + IDLE_S
        elif isinstance(event, BatchCommitted):
            self._mode = OnMismatch.REFUSE
            self._losses = 0
            self._batches += 1
            self._records += event.records
            if self._lost_at is not None:
                self._tell(TookOver(driver.pid, round(signs.alive - self._lost_at, 3)))
                self._lost_at = None
            if self._standby is None and self._stop is None:
                self._standby_due = min(self._standby_due, signs.alive)

    def _finish(self, reason: str) -> None:
        self._finished = Finished(self._name, self._batches, self._records, reason)
        self._tell(self._finished)

    # ------------------------------------------------------------------------------------------------------ what is lost

    def _gone(self, driver: WarmDriver, signs: _Signs, exit_code: int) -> None:
        if driver is self._standby:
            self._standby = None
            self._lose_standby(signs, exit_code)
        elif driver is self._running:
            self._running = None
            if self._finished is None:
                self._lose_running(driver, signs, exit_code)

    def _lose_standby(self, signs: _Signs, exit_code: int) -> None:
        if self._stop is not None:
            return
        self._standby_losses += 1
        pause_s = min(2.0**self._standby_losses, LONGEST_PAUSE_S)
        self._standby_due = time.monotonic() + pause_s
        self._tell(Note(f"the standby {_why(signs, exit_code)}; another one is started in {pause_s:.0f} s"))

    def _lose_running(self, driver: WarmDriver, signs: _Signs, exit_code: int) -> None:
        now = time.monotonic()
        why = _why(signs, exit_code)
        if signs.error is not None and (isinstance(signs.error, _FOR_A_USER) or not self._begun):
            raise signs.error
        if signs.started and now - signs.started > HEALTHY_S:
            self._losses = 0
        self._losses += 1
        if self._stop is not None or self._losses >= self._limits.tries:
            raise self._given_up(why) from signs.error
        pause_s = 0.0 if self._losses <= AT_ONCE else min(2.0 ** (self._losses - AT_ONCE), LONGEST_PAUSE_S)
        self._takeover_due = now + pause_s
        self._lost_at = self._lost_at or now
        self._tell(DriverLost(driver.pid, why, pause_s))

    def _given_up(self, why: str) -> RestartsExhausted:
        text = f"while it ended, the driver {why}" if self._stop else f"{self._losses} drivers in a row, last: it {why}"
        return RestartsExhausted(
            f"pipeline {self._name!r}, without a committed batch: {text}",
            action="see the cause (--spark-log info shows more); start again: it finds out what was open and goes on",
            name=self._name,
            losses=self._losses,
        )


def _why(signs: _Signs, exit_code: int) -> str:
    if signs.late:
        return signs.late
    if signs.error is not None:
        return f"failed: [{signs.error.code}] {signs.error.message}"
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended by itself with exit code {exit_code}"
