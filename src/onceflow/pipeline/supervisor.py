"""``onceflow run --standby``: a small process without Java that keeps one driver running and the next ones warm.

::

    the driver that runs is gone      its group is killed, the standby is told to run at once: it fences, aborts what was
    (or silent, or stalled)           open and goes on behind the newest committed batch
    it does not die of SIGKILL        it is waited for some seconds only: fencing needs no proof of its death
    the new driver's first batch      another standby is started; not before, they would compete for the processors
    a standby does not get warm       it is killed, and another one is started, longer behind it each time
    a standby is warm                 the next one is started, where more than one is wanted
    the same again, without progress  it waits between takeovers, longer each time, and gives up after some
    none can be started               (no memory, no room for its scratch) counts as one that was lost
    nobody takes its output           it goes on all the same, and tells of all that later
    it was paused itself              (Ctrl-Z, SIGSTOP) that time counts for nobody
    the run ends with an error        the driver is killed while its Spark still ends, and the standby is told to run
    an error that a user must mend    ends it, as it ends ``onceflow run``: the standby would only meet it again
    Ctrl-C, SIGTERM                   the standby ends at once, the driver after its running batch

Fenced is such an error: only one driver at a time is told to run, and only after the one before was killed, so whoever
fenced it and claimed the name is a stranger. Where nobody claims it, it is lost as by any other error (``displaced``).
"""

from __future__ import annotations

import math
import queue
import signal
import time
from collections.abc import Callable, Sequence
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
    ProgressGone,
    RestartsExhausted,
    SetupError,
    TopicMissing,
    UnsafeSession,
)
from onceflow.pipeline.cluster import connect
from onceflow.pipeline.control import Control, Heard, StopAsked, Untold
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
from onceflow.pipeline.limits import DEATH_S, LONGEST_PAUSE_S, Limits, Losses, Signs, growing_pause_s
from onceflow.pipeline.standby import PROGRAM, Failed, Gone, Hear, Pulse, Ready, Said, Triggered, WarmDriver
from onceflow.pipeline.teller import Teller
from onceflow.transaction.progress import OnMismatch

__all__ = ["Limits", "run_with_standby"]

_LOOK_S = 0.5
_PAUSED_S = 4 * _LOOK_S  # between two looks: nobody else takes so long
_USUAL = Limits()
_FOR_A_USER = (
    ConfigurationError, SetupError, InputError, Fenced, ProgressConflict, ProgressGone, UnsafeSession, NotAuthorized,
    AuthenticationFailed, TopicMissing,
)  # fmt: skip


def run_with_standby(
    file: PlanFile,
    *,
    tell: Listener,
    control: Control,
    mode: OnMismatch = OnMismatch.REFUSE,
    spark_log: str = "off",
    limits: Limits = _USUAL,
    standbys: int = 1,
    program: Sequence[str] = PROGRAM,
) -> Finished:
    """Runs a plan as ``onceflow.pipeline.run`` does, in processes that take over from each other.

    ``standbys`` are kept warm: so many drivers may be lost in a row, faster than a new one warms up, without a cold start.
    Raises what a driver raises if a user must mend it, or if none came as far as starting the query; RestartsExhausted when
    driver after driver is lost; what ``tell`` raises, which is called on a thread of its own. ``program`` is the command of a
    driver. Leaves no process behind that SIGKILL can end. Blocks.
    """
    start = partial(WarmDriver, file, connect(file, tell), spark_log=spark_log, program=program)
    with Teller(tell, lambda error: control.inbox.put(Untold(error))) as teller:
        supervisor = _Supervisor(file.plan.name, start, teller.tell, control, mode, limits, standbys)
        try:
            return supervisor.run()
        finally:
            supervisor.close()


class _Supervisor:
    def __init__(
        self,
        name: str,
        start: Callable[[Hear], WarmDriver],
        tell: Listener,
        control: Control,
        mode: OnMismatch,
        limits: Limits,
        standbys: int,
    ) -> None:
        self._name = name
        self._start_driver = start
        self._tell = tell
        self._inbox = control.inbox
        self._mode = mode
        self._limits = limits
        self._wanted_standbys = standbys
        self._drivers: list[WarmDriver] = []  # those of which something may be left
        self._signs: dict[WarmDriver, Signs] = {}  # those that count: neither gone nor given up
        self._running: WarmDriver | None = None
        self._standbys: list[WarmDriver] = []  # the warmest first
        self._standby_due = -math.inf  # not before
        self._standby_losses = 0
        self._takeover_due = -math.inf
        self._looked = time.monotonic()
        self._losses = Losses(limits.tries)
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
            elif isinstance(message, Untold):
                raise message.error
        return self._finished

    def close(self) -> None:
        """Kills what still runs, and waits until it is gone."""
        for driver in self._drivers:
            driver.kill()
        for driver in self._drivers:
            driver.close()

    # ------------------------------------------------------------------------------------------------------ what is due

    def _look(self) -> None:
        now = time.monotonic()
        self._forgive(now - self._looked)
        self._looked = now
        # What waits in the inbox comes first: it may hold signs of life.
        if not self._inbox.empty():
            return
        if self._running is None and now >= self._takeover_due:
            self._take_over(now)
        if self._lacks_standby and now >= self._standby_due and self._has_settled(now):
            self._start_standby(now)
        for driver, signs in list(self._signs.items()):
            self._check(driver, signs, now)

    def _forgive(self, gap_s: float) -> None:
        """Time in which nobody looked::

        Ctrl-Z, which reaches the supervisor alone; its drivers run on, and their signs of life wait in the sockets
        fg: it looks before the threads that listen have read them; each driver has been silent for too long
        """
        if gap_s > _PAUSED_S:
            for signs in self._signs.values():
                signs.forgive(gap_s)

    def _check(self, driver: WarmDriver, signs: Signs, now: float) -> None:
        """Kills what is late, and does not wait for long until it is dead, which fencing makes needless::

        the driver waits for a disk that does not answer, where no signal reaches it, SIGKILL neither
        the supervisor waits for its end: nothing runs, though a warm standby could
        the disk answers: the process dies before it can do anything more, and if it could, it would be refused
        """
        if signs.killed is None:
            signs.late = signs.overdue(self._limits, now)
            if signs.late:
                signs.killed = now
                driver.kill()
        elif now - signs.killed > DEATH_S:
            self._gone(driver, -signal.SIGKILL)

    @property
    def _lacks_standby(self) -> bool:
        """One warms up at a time: together they would be warm no sooner, and the first much later."""
        is_wanted = self._stop is None and len(self._standbys) < self._wanted_standbys
        return is_wanted and all(self._signs[each].is_warm for each in self._standbys)

    def _has_settled(self, now: float) -> bool:
        """Whether the driver that runs has taken over, and a JVM that starts beside it does not hold that up::

        the standby is killed, and two seconds later another one is due; meanwhile the driver is killed as well
        its successor starts from cold; with one more JVM beside it, on the same processors, that takes twice as long
        """
        return self._running is not None and self._signs[self._running].has_settled(now)

    def _start_standby(self, now: float) -> None:
        try:
            self._standbys.append(self._start())
        except (OSError, RuntimeError) as error:  # no memory, no process, no thread: the pipeline runs on without
            self._standby_due = now + LONGEST_PAUSE_S
            self._tell(Note(f"no standby can be started ({error}); tried again in {LONGEST_PAUSE_S:.0f} s"))

    def _start(self) -> WarmDriver:
        driver = self._start_driver(self._heard)
        self._signs[driver] = Signs()
        self._drivers = [each for each in self._drivers if not each.is_over] + [driver]
        return driver

    def _heard(self, driver: WarmDriver, said: Said) -> None:
        """Runs on the driver's own thread."""
        self._inbox.put(Heard(driver, said))

    def _take_over(self, now: float) -> None:
        try:
            self._running = self._next()
        except (OSError, RuntimeError) as error:  # no memory, no process, no thread, no room for its scratch
            self._lose_start(error, now)
            return
        self._running.go(self._mode, self._begun)
        self._signs[self._running].told = time.monotonic()

    def _next(self) -> WarmDriver:
        """The warmest standby, but none that is killed already and not gone yet."""
        for standby in self._standbys:
            if self._signs[standby].killed is None:
                self._standbys.remove(standby)
                return standby
        return self._start()

    def _end(self, stop: StopAsked) -> None:
        self._stop = stop
        for standby in self._standbys:
            standby.kill()
        if self._running is not None:
            self._running.stop(stop.reason)
        else:
            self._finish(stop.reason)

    # ------------------------------------------------------------------------------------------------------ what is said

    def _hear(self, driver: WarmDriver, said: Said) -> None:
        signs = self._signs.get(driver)
        if signs is None:  # given up before
            return
        signs.alive = time.monotonic()
        match said:
            case Failed(error):
                signs.end(error)
                self._hurry(driver, signs, error)
            case Gone(exit_code):
                self._gone(driver, exit_code)
            case Finished(reason=reason):
                signs.end()
                self._finish(reason)
            case Ready():
                self._standby_losses = 0
                signs.is_warm = True
                if driver in self._standbys:
                    self._tell(StandbyReady(driver.pid))
            case Triggered():
                signs.progress = signs.alive
            case Pulse():
                pass
            case _:
                self._tell(said)
                self._note(said, driver, signs)

    def _note(self, event: Event, driver: WarmDriver, signs: Signs) -> None:
        """What an event of the pipeline means here."""
        if isinstance(event, Started):
            self._begun = event.query_id
            signs.begin()
        elif isinstance(event, BatchCommitted):
            self._mode = OnMismatch.REFUSE
            signs.has_committed = True
            self._batches += 1
            self._records += event.records
            seconds = self._losses.end(signs.alive)
            if seconds is not None:
                self._tell(TookOver(driver.pid, seconds))

    def _finish(self, reason: str) -> None:
        self._finished = Finished(self._name, self._batches, self._records, reason)
        self._tell(self._finished)

    # ------------------------------------------------------------------------------------------------------ what is lost

    def _gone(self, driver: WarmDriver, exit_code: int) -> None:
        signs = self._signs.pop(driver)
        if driver in self._standbys:
            self._standbys.remove(driver)
            self._lose_standby(signs, exit_code)
        elif driver is self._running:
            self._running = None
            if self._finished is None:
                self._lose_running(driver, signs, exit_code)

    def _lose_standby(self, signs: Signs, exit_code: int) -> None:
        if self._stop is not None:
            return
        self._standby_losses += 1
        pause_s = growing_pause_s(self._standby_losses)
        self._standby_due = time.monotonic() + pause_s
        self._tell(Note(f"the standby {signs.why_gone(exit_code)}; another one is started in {pause_s:.0f} s"))

    def _lose_start(self, error: Exception, now: float) -> None:
        """A loss as any other, but never made good at once: a moment later there may be memory or room again."""
        why = f"could not be started ({error})"
        self._losses.add(Signs(), now)
        if self._losses.are_too_many:
            raise self._given_up(why) from error
        pause_s = growing_pause_s(self._losses.count)
        self._takeover_due = now + pause_s
        self._tell(Note(f"the driver {why}; tried again in {pause_s:.0f} s"))

    def _lose_running(self, driver: WarmDriver, signs: Signs, exit_code: int) -> None:
        now = time.monotonic()
        why = signs.why_gone(exit_code)
        if signs.error is not None and self._is_for_a_user(signs.error):
            raise signs.error
        self._losses.add(signs, now)
        if self._stop is not None or self._losses.are_too_many:
            raise self._given_up(why) from signs.error
        pause_s = self._losses.pause_s
        self._takeover_due = now + pause_s
        self._tell(DriverLost(driver.pid, why, pause_s))

    def _is_for_a_user(self, error: OnceflowError) -> bool:
        return isinstance(error, _FOR_A_USER) or not self._begun

    def _hurry(self, driver: WarmDriver, signs: Signs, error: OnceflowError) -> None:
        """Its run is over; where another one is to take over, that does not wait for the end of its Spark, which takes seconds.

        It would be no other end if it were killed in the middle of its batch. Where this is the end of all, it ends in order.
        """
        if driver is self._running and self._stop is None and not self._is_for_a_user(error):
            signs.killed = signs.alive
            driver.kill()

    def _given_up(self, why: str) -> RestartsExhausted:
        losses = self._losses.count
        text = f", without a committed batch: {losses} drivers in a row, last: it {why}"
        return RestartsExhausted(
            f"pipeline {self._name!r}{f': while it ended, the driver {why}' if self._stop else text}",
            action="see the cause (--spark-log info shows more); start again: it finds out what was open and goes on",
            name=self._name,
            losses=losses,
        )
