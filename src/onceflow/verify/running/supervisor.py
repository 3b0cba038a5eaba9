"""Keeps a driver running: starts the next whenever one ends, and has warm ones wait to take over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from onceflow.errors import ProgressConflict, VerificationError
from onceflow.verify.engines import Engine
from onceflow.verify.engines.failing import is_foreseen
from onceflow.verify.engines.lines import Do, Message, Order, Told
from onceflow.verify.result import Lane
from onceflow.verify.running.course import Course
from onceflow.verify.running.explained import explained
from onceflow.verify.running.life import Life
from onceflow.verify.running.process import EngineProcess
from onceflow.verify.running.timeline import Timeline

Launch = Callable[[int, Callable[[Message | None], None]], EngineProcess]

MOST_FAILURES = 8  # in a row without a batch in between: then it is given up
TAKE_OVER_S = 600.0
_MOST_BACKOFF_S = 5.0
_UNEXPLAINED = "though nothing was done to it that ends it so"


class Supervisor:
    """A driver that is started again whenever it ends, and those that wait to take over. It may be used from any thread.

    ``generation`` counts the lives of the driver from 1, ``course`` is the course that they take. What they say of an error is
    put in other ``words`` before it is told to anybody.
    """

    take_over_s = TAKE_OVER_S
    """So long may a driver take to come, or to end."""

    def __init__(
        self, engine: Engine, launch: Launch, timeline: Timeline, standbys: int = 1, words: Callable[[str], str] = str
    ) -> None:
        self.generation = 0
        self.unexplained: list[str] = []  # ends of what no fault ends
        self.lacks_committed = (
            False  # a fault may have taken it, or made it unreadable, and no driver has gone on since
        )
        self.conflicts = 0  # how often one said that it lacks what is committed, though no fault had taken that
        self.gave_up = ""  # why it is not started any more
        self.is_refused = False  # because every start would meet the same, the first one already
        self._changed = threading.Condition()
        self.course = Course(engine, timeline, self._changed)
        self._launch = launch
        self._words = words
        self._timeline = timeline
        self._current: Life | None = None
        self._standbys: list[Life] = []  # the warmest first; changed by the supervisor's thread
        self._wanted_standbys = standbys
        self._replaced: list[Life] = []
        self._processes = 0
        self._standby_losses = 0
        self._down = 0
        self._failures = 0  # in a row
        self._mode = "refuse"
        self._next_hold = ""
        self._closing = False
        self._thread = threading.Thread(target=self._supervise, name="onceflow-supervisor", daemon=True)

    @property
    def engine(self) -> Engine:
        """What it is the driver of."""
        return self.course.engine

    # ---------------------------------------------------------------------------------------------------- start and end

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience_s: float = 120) -> str:
        """Ends the running life in order. A reason, if it did not end so."""
        with self._changed:
            self._closing = True
            life = self._current
            self._changed.notify_all()
        if life is None or life.ended or life.process is None:
            return f"no driver ran at the end{self._why(life)}"
        self.go(life)
        life.running.order(Order(Do.STOP))
        with self._changed:
            ended = self._changed.wait_for(lambda: life.ended, patience_s)
        if not ended:
            return f"the driver did not end in order within {patience_s:.0f} s"
        if life.failure or self.gave_up:
            return f"the driver failed at its end{self._why(life)}"
        if not life.finished:  # a JVM that crashed, a process that the system has killed
            return f"the driver ended at its end, and not in order: without a word. The end of its log:{life.running.said()}"
        return ""

    def close(self) -> None:
        """Kills all that is left."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(self.take_over_s)
        # All of them, also when one cannot be killed; that is raised afterwards.
        with ExitStack() as kills:
            for life in (*self._replaced, self._current, *self._standbys):
                if life is not None and life.process is not None:
                    kills.callback(life.process.kill)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---------------------------------------------------------------------------------------------------- while it runs

    def go(self, life: Life) -> None:
        """Lets one go on that was told to hold. It takes the step, and tells nothing before the next one comes.

        ::

            fault   lets it go on right before AUDIT, and is over
            fault   the next one of the row, at once: to be killed right before COMMIT, and it is in AUDIT
        """
        with self._changed:
            if life.held is not None and not life.ended:
                self.course.note_taken(life, replace(life.held, told=Told.STEP, at=time.time()))
        life.running.order(Order(Do.GO))

    def give_up(self, why: str) -> None:
        """No other is started any more, and whoever waits raises VerificationError. One that stops has a patience of its own.

        ::

            writer   ends by itself: the pipeline gets no input, so no step and no batch ever comes
            fault    waits for a step, for ten minutes; while it lasts nothing is taken for stuck
        """
        with self._changed:
            if not self._closing:
                self.gave_up = self.gave_up or why
                self._changed.notify_all()

    # ------------------------------------------------------------------------------------------------ what is waited for

    def has_recovered(self, commits: int) -> bool:
        """Whether there are more ``commits`` than so many, and the next drivers are warm.

        Raises VerificationError if it is given up.
        """
        self._raise_if_given_up()
        return not self.awaited(commits)

    def awaited(self, commits: int) -> str:
        """What is not there yet, in words; empty if nothing is."""
        return "the next batch" if self.course.commits <= commits else self.lacking_standbys

    @property
    def lacking_standbys(self) -> str:
        """Those that are not warm yet, in words; empty if all are."""
        warm = sum(standby.is_warm for standby in list(self._standbys))
        if warm == self._wanted_standbys:
            return ""
        return (
            "the standby to be warm"
            if self._wanted_standbys == 1
            else f"{self._wanted_standbys} warm standbys ({warm} so far)"
        )

    def _alive(self) -> Life:
        """The life that runs, once there is one that was set to work."""
        self._raise_if_given_up()
        self._await(self._runs, self.take_over_s, "there is no driver to act on")
        life = self._current
        assert life is not None
        return life

    def _runs(self) -> bool:
        return self._current is not None and not self._current.ended

    def _raise_if_given_up(self) -> None:
        if self.gave_up:
            raise VerificationError(self.gave_up)

    def _await(self, condition: Callable[[], bool], patience_s: float, otherwise: str = "") -> bool:
        """Whether it is met in time. Raises VerificationError if it is given up; with ``otherwise`` also if it is not met."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or self.gave_up, patience_s)
            met = condition()
        if not met:
            self._raise_if_given_up()
        if not met and otherwise:
            raise VerificationError(f"{otherwise} within {patience_s:.0f} s")
        return met

    def _why(self, life: Life | None) -> str:
        if self.gave_up:
            return f": {self.gave_up}"
        if life is None or life.failure is None:
            return ""
        return f": {life.failure.code}: {life.failure.error}"

    # ----------------------------------------------------------------------------------------------------- supervision

    def _supervise(self) -> None:
        try:
            self._start_whenever_wanted()
        except Exception as error:  # noqa: BLE001  whoever waits for a driver hears of it
            with self._changed:
                self.gave_up = f"no driver can be started any more: {explained(error)}"
                self._changed.notify_all()

    def _start_whenever_wanted(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._is_wanted() or self._wants_standby())
                if self._closing:
                    return
                wanted = self._is_wanted()
                ended = self._current
            if wanted:
                self._next(ended)
            else:
                self._warm_another()

    def _warm_another(self) -> None:
        """Also for one that died while it waited; not faster and faster, and not before the running one's successor."""
        self._put_away_dead_standbys()
        with self._changed:
            pause_s = _backoff_s(self._standby_losses)
            if self._standby_losses and self._changed.wait_for(lambda: self._closing or self._is_wanted(), pause_s):
                return
        self._standbys.append(self._launched())

    def _put_away_dead_standbys(self) -> None:
        """One that ended is a loss until another process is warm; it is told if it ended by itself.

        What it is counted for is the pause before the next one: it grows where none comes as far as waiting.
        """
        for dead in [each for each in self._standbys if each.ended]:
            dead.running.kill()
            if not dead.killed:
                self._timeline.note(f"the standby ended by itself{self._why(dead)}")
                self._judge_standby(dead)
            with self._changed:
                self._standbys.remove(dead)
                self._standby_losses += 1

    def _is_wanted(self) -> bool:
        return not self._down and not self.gave_up and (self._current is None or self._current.ended)

    def _wants_standby(self) -> bool:
        """One after the other, and only after the running one's first batch, so that its start is not held up by the next one's.

        But at once while two run, for they may end each other.
        """
        current = self._current
        living = [each for each in self._standbys if not each.ended]
        if current is None or current.ended or len(living) == self._wanted_standbys:
            return False
        if not all(each.is_warm for each in living):
            return False
        return current.batches > 0 or any(not (each.ended or each.killed) for each in self._replaced)

    def _next(self, ended: Life | None) -> None:
        if ended is not None and not ended.learned:
            ended.running.reap()
            self._learn(ended)
            ended.learned = True  # once, also where the next one may not start yet, and this comes again
            if self.gave_up or self._closing:
                return
        life = self._ready()
        with self._changed:
            if self._closing or self._down:
                self._standbys.insert(0, life)
                return
            self.generation += 1
            life.generation = self.generation
            life.open = self._timeline.begin(Lane.DRIVER, f"driver {life.generation}", f"pid {life.running.pid}")
            self._current = life
            hold, self._next_hold = self._next_hold, ""
            if hold:
                life.running.order(Order(Do.HOLD, step=hold))
            life.running.order(Order(Do.RUN, mode=self._mode))
            self._mode = "refuse"
            self._changed.notify_all()

    def _ready(self) -> Life:
        """The warmest one that has not died meanwhile, and is not about to."""
        self._put_away_dead_standbys()
        with self._changed:
            ready = next((each for each in self._standbys if not each.killed), None)
            if ready is not None:
                self._standbys.remove(ready)
                return ready
        return self._launched()

    def _learn(self, life: Life) -> None:
        """What an end means for the next start: killed or asked for, simply again; a failure, by its advice, and not for ever."""
        failure = unasked_end(life)
        if failure is None:
            return
        self._judge(life, failure)
        self._failures = 0 if life.batches else self._failures + 1
        self._timeline.note(ended_with(life, failure))
        if failure.code == ProgressConflict.code:
            self._mode = "resume"
        with self._changed:
            if failure.lasting and not self.course.commits:  # before any fault, so that no fault can be the reason
                self.is_refused = True
            self.gave_up = self.gave_up or self._reason_to_give_up(life, failure)
            self._changed.notify_all()
            if not self.gave_up:
                self._changed.wait_for(lambda: self._closing, _backoff_s(self._failures))

    def _judge(self, life: Life, failure: Message) -> None:
        """Once: a fault that waits for the end of one, and the supervisor, may both come upon it."""
        with self._changed:
            if not (life.judged or self._is_explained(life, failure)):
                self.unexplained.append(f"{ended_with(life, failure)}, {_UNEXPLAINED}")
            life.judged = True

    def _judge_standby(self, dead: Life) -> None:
        """Of one that waits one of onceflow's errors is no failure: another one is started, and whoever works goes on."""
        failure = unasked_end(dead)
        if failure is not None and not is_foreseen(failure.code):
            self._judge(dead, failure)

    def _is_explained(self, life: Life, failure: Message) -> bool:
        """Whether a fault may have made it end so. None brings to light an error that onceflow has no name for, unless its JVM
        was killed, or it was only starting: the next driver goes on, and nothing else would show it. A control may end as it
        likes. ::

            fault     stops Spark's master
            driver    has just been started, and gets no session: an error of Spark's, for which onceflow has no name

        One of onceflow's errors needs a fault, too, or another driver. When that was is not asked, for what a fault has left
        behind may come to light much later. (A PROGRESS_CONFLICT is counted by itself.)
        """
        if not self.engine.is_ours or life.jvm_killed or failure.code == ProgressConflict.code:
            return True
        if is_foreseen(failure.code):
            return self._timeline.was_open(Lane.FAULT) or bool(self._replaced)
        return not life.first_seen and self._timeline.was_open(Lane.FAULT, life.launched_s)

    def _reason_to_give_up(self, life: Life, failure: Message) -> str:
        if self.is_refused:
            return f"the pipeline cannot run, and every start would end the same way: {failure.error}"
        if self._failures >= MOST_FAILURES:
            return (
                f"the driver failed {self._failures} times in a row without a batch, last with {failure.code}: "
                f"{failure.error}. The end of its log:{life.running.said()}"
            )
        return ""

    def _launched(self) -> Life:
        self._processes += 1
        life = Life(0, launched_s=self._timeline.seconds())
        life.process = self._launch(self._processes, partial(self._heard, life))
        return life

    # -------------------------------------------------------------------------------------------------------- messages

    def _heard(self, life: Life, message: Message | None) -> None:
        with self._changed:
            if message is None:
                life.ended = True
                if life.open is not None:
                    self._timeline.end(life.open)
                self.course.note_end(life, is_missed=self._is_missed(life))
            else:
                self._note(life, self._worded(message))
            self._changed.notify_all()

    def _worded(self, message: Message) -> Message:
        return replace(message, error=self._words(message.error)) if message.error else message

    def _is_missed(self, ended: Life) -> bool:
        """Whether nobody asked for its end, and no other one is left that has output: of two that fence each other none may be
        left, or one that only starts. While none shall run, nobody misses one.
        """
        if ended.open is None or ended.killed or ended.asked_to_end or self._closing or self._down:
            return False
        others = (each for each in (*self._replaced, self._current) if each is not None)
        return all(each.ended or each.killed or not each.batches for each in others)

    def _note(self, life: Life, message: Message) -> None:
        life.told = message
        match message.told:
            case Told.STEP | Told.HELD:
                self.course.note_step(life, message)
            case Told.READY:
                self._standby_losses = 0
            case Told.STARTED:
                self.course.note_start()
            case Told.COMMITTED:
                self._failures = 0
                self.lacks_committed = self.lacks_committed and not message.written
                self.course.note_commit(life, message)
            case Told.FAILED:
                life.failure = message
                self._note_conflict(life, message)
                self.course.note_failure(message)
                if life.open is not None:
                    life.open.detail += f", ended with {message.code}"
            case Told.FINISHED:
                life.finished = True
            case Told.MALFORMED:
                self.gave_up = self.gave_up or f"the engine says what is no message: {message.error}"

    def _note_conflict(self, life: Life, failure: Message) -> None:  # noqa: ARG002  of whose words count
        """When it is told, and not when the next one starts: a fault that comes in between explains nothing of it."""
        self.conflicts += failure.code == ProgressConflict.code and not self.lacks_committed


def unasked_end(life: Life) -> Message | None:
    """What one ended with that has ended; None: it was killed or asked for."""
    if life.killed or (life.asked_to_end and life.finished):
        return None
    return life.failure or Message(Told.FAILED, code="ENDED", error="its process ended by itself, without a word")


def ended_with(life: Life, failure: Message) -> str:
    """The same in a line."""
    first_line = failure.error.partition("\n")[0]
    return f"{life.title} ended with {failure.code}: {first_line}"


def _backoff_s(times: int) -> float:
    """0.2, 0.4, 0.8, … seconds, and not longer than some."""
    return min(0.1 * 2.0 ** min(times, 10), _MOST_BACKOFF_S)
