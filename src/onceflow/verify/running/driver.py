"""The driver of the pipeline: a process that is started again whenever it dies, and warm ones that wait to take over."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Self

from onceflow.errors import PipelineStuck, VerificationError
from onceflow.verify.cluster import processes
from onceflow.verify.engines import Engine
from onceflow.verify.engines.lines import Do, Message, Order, Told
from onceflow.verify.result import Happening, Lane
from onceflow.verify.running.encounters import NOTHING, UnderWay, under_way
from onceflow.verify.running.explained import explained
from onceflow.verify.running.process import EngineProcess
from onceflow.verify.running.timeline import Open, Timeline

Launch = Callable[[int, Callable[[Message | None], None]], EngineProcess]

MOST_FAILURES = 8  # in a row without a batch in between: then it is given up
_MOST_BACKOFF_S = 5.0
_TAKE_OVER_S = 600.0
_PASSED_BATCHES = 3


@dataclass(slots=True)
class Life:
    """One process, and what is known of it."""

    generation: int
    process: EngineProcess | None = None
    open: Open | None = None  # its bar on the timeline, from the order to run
    told: Message | None = None
    held: Message | None = None  # where it waits, until it is let go
    ended: bool = False
    learned: bool = False  # what its end means for the next one
    killed: bool = False  # by us
    jvm_killed: bool = False  # by us, and the rest of it is to end by itself
    asked_to_end: bool = False  # and to be followed by another
    finished: bool = False  # in order
    failure: Message | None = None
    batches: int = 0
    committed: int = -1  # the newest batch that it told to be committed
    first_seen: dict[int, float] = field(default_factory=dict)  # when each batch's first step came

    @property
    def running(self) -> EngineProcess:
        assert self.process is not None
        return self.process

    @property
    def is_warm(self) -> bool:
        return not self.ended and self.told is not None and self.told.told is Told.READY

    def is_held_at(self, step: str) -> bool:
        return self.held is not None and self.held.step == step


@dataclass(frozen=True, slots=True)
class Effect:
    """When a process began a step that makes something of a batch visible; ``at`` since the epoch."""

    generation: int
    batch: int
    at: float


class DriverProcess:
    """The supervised driver. Its methods may be called from any thread; a fault calls them one after the other.

    ``generation`` counts its lives from 1. ``committed_batches`` are those that some life has told to be committed.
    ``commits`` counts how often one was committed, also where batches are numbered anew. ``outputs`` is how many records
    each of these wrote, where the engine says so (``tells_outputs``).
    ``strikes`` are the times (since the epoch) at which a running driver was killed, ``pauses`` those at which it was stopped
    (of both also: one of its two processes, for the other one can bring nothing new without it),
    ``outages`` those at which the last one that lived had ended by itself. ``struck`` is what each driver did that was killed or
    stopped, at that moment. ``steps_told`` counts the steps of its protocol by name, over all lives.
    """

    def __init__(self, engine: Engine, launch: Launch, timeline: Timeline, standbys: int = 1) -> None:
        self.engine = engine
        self.generation = 0
        self.committed_batches: set[int] = set()
        self.commits = 0
        self.outputs: dict[int, int] = {}
        self.tells_outputs = False
        self._newest = -1  # of the batches that a life has told to be committed; a resume numbers them anew
        self.effects: list[Effect] = []
        self.strikes: list[float] = []
        self.pauses: list[float] = []
        self.outages: list[float] = []
        self.struck: list[UnderWay] = []
        self._steps_told: Counter[str] = Counter()
        self.conflicts = 0  # how often one ended since its checkpoint lacked what is committed
        self.gave_up = ""  # why it is not started any more
        self.is_refused = False  # because every start would meet the same, the first one already
        self.moved_at = time.monotonic()  # when a driver last began to run, or told of a batch
        self._launch = launch
        self._timeline = timeline
        self._changed = threading.Condition()
        self._current: Life | None = None
        self._standbys: list[Life] = []  # the warmest first; changed by the supervisor's thread
        self._wanted_standbys = standbys
        self._replaced: list[Life] = []
        self._processes = 0
        self._standby_losses = 0
        self._down = 0
        self._failures = 0  # in a row
        self._failed: list[Message] = []
        self._commits_at_end = 0  # when a driver was last killed, or the last one ended
        self._mode = "refuse"
        self._next_hold = ""
        self._closing = False
        self._supervisor = threading.Thread(target=self._supervise, name="onceflow-supervisor", daemon=True)

    # ------------------------------------------------------------------------------------------------- what faults use

    @property
    def pid(self) -> int:
        """The process group of the life that runs now."""
        return self._alive(_TAKE_OVER_S).running.pid

    @property
    def steps_told(self) -> Counter[str]:
        """So far: a copy, for the thread that hears drivers goes on counting."""
        with self._changed:
            return Counter(self._steps_told)

    @property
    def steps(self) -> tuple[str, ...]:
        """Where in a batch it can be killed: as the engine says, else what it has told so far."""
        return self.engine.steps or tuple(sorted(self.steps_told))

    @property
    def recovery_steps(self) -> tuple[str, ...]:
        """The same, while it takes over."""
        return self.engine.recovery_steps or self.steps

    @property
    def under_way(self) -> UnderWay:
        """What the present driver does, as far as it has told."""
        with self._changed:
            life = self._current
            return NOTHING if life is None or life.ended else self._doing(life)

    def has_recovered(self, commits: int) -> bool:
        """Whether there are more ``commits`` than so many, and the next drivers are warm.

        Raises VerificationError if it is given up.
        """
        self._raise_if_given_up()
        return not self.awaited(commits)

    def awaited(self, commits: int) -> str:
        """What is not there yet, in words; empty if nothing is."""
        return "the next batch" if self.commits <= commits else self.lacking_standbys

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

    def kill(self) -> bool:
        """SIGKILL to driver and JVM; returns when they are gone. The supervisor starts the next at once.

        False: it has just ended by itself, and nothing was killed.
        """
        return self._kill(self._alive(_TAKE_OVER_S))

    def kill_at(self, step: str, patience_s: float = _TAKE_OVER_S) -> bool | None:
        """The same, while it waits right before a step of its commit. False: the step did not come, it was killed anyway.

        None: it ended by itself before, and nothing was killed.
        """
        life = self._alive(_TAKE_OVER_S)
        passed = self._hold_before(life, step)
        return self._kill_held(life, step, patience_s if step else 0, passed)

    def kill_in_recovery(self, step: str, patience_s: float = _TAKE_OVER_S) -> bool | None:
        """Kills it, and its successor too when that comes to ``step`` of taking over. What it gives is said of the successor.

        That one is killed also where the first has just ended by itself; ``strikes`` tell how many were.
        """
        with self._changed:
            self._next_hold = step
            before = self.generation
        self.kill()
        self._await(lambda: self.generation > before, _TAKE_OVER_S, "no driver took over")
        return self._kill_held(self._alive(_TAKE_OVER_S), step, patience_s if step else 0, 1)

    def kill_jvm(self) -> Life | None:
        """SIGKILL to the JVM alone; the Python process is left to find out. Gives the life that ends so; None: it has no JVM.

        ::

            fault    kills the JVM while the driver waits for the answer to its commit
            Python   gets the answer, and tells of a batch; only then it misses the JVM, and ends
            watch    that end is no outage of its own: since the kill no other batch could come
        """
        life, jvm = self._with_jvm()
        with self._changed:
            met, at = self._doing(life), time.time()
            life.jvm_killed = jvm is not None and processes.send(jvm, signal.SIGKILL)
            if not life.jvm_killed:
                return None
            self.struck.append(met)
            self.strikes.append(at)
        return life

    def kill_python(self) -> Life | None:
        """SIGKILL to the Python process; the JVM is left to find out. Gives that life; None: it has no JVM, or has ended."""
        life, jvm = self._with_jvm()
        if jvm is None or not self._condemn(life):
            return None
        life.running.kill_alone()
        self._note_its_last_words(life)
        return life

    def pause_jvm(self) -> tuple[Life, int] | None:
        """SIGSTOP to the JVM alone. Gives that life, and whom to wake; None: it has no JVM."""
        life, jvm = self._with_jvm()
        if jvm is None or not processes.freeze(jvm):
            return None
        life.running.hear()
        self._note_pause(life)
        return life, jvm

    def pause_python(self) -> Life | None:
        """SIGSTOP to the Python process alone. Gives that life; None: it has no JVM, or has just ended by itself."""
        life, jvm = self._with_jvm()
        return None if jvm is None else self._pause(life, alone=True)

    def _pause(self, life: Life, *, alone: bool) -> Life | None:
        if not life.running.pause(alone=alone):
            return None
        if life.ended:  # and nobody had waited for it: then a signal still reaches its group
            life.running.resume()
            return None
        self._note_pause(life)
        return life

    def _note_pause(self, life: Life) -> None:
        """Its last words are heard."""
        self.pauses.append(time.time())
        with self._changed:
            self.struck.append(self._doing(life))

    def _with_jvm(self) -> tuple[Life, int | None]:
        """The life that runs, all heard that it has told, and its JVM."""
        life = self._alive(_TAKE_OVER_S)
        jvm = life.running.jvm
        life.running.hear()
        return life, jvm

    def kill_standby(self) -> bool | None:
        """SIGKILL to the warmest that waits to take over, with its JVM. Whether it was warm; None: none waits.

        ::

            fault        has chosen a standby
            driver       ends by itself; the supervisor sets that standby to work, or has found it killed and takes another
            fault        who killed it now would kill a driver, and say that the driver went on beside it
        """
        with self._changed:
            life = self._warmest()
            if life is None:
                return None
            was_warm, life.killed = life.is_warm, True
        life.running.kill()
        self._await(lambda: life.ended, _TAKE_OVER_S, "a killed standby did not end")
        return was_warm

    def pause_standby(self) -> Life | None:
        """SIGSTOP to the one that is to take over next, with its JVM. None: none is warm, or it has just died."""
        life = self._warmest()
        if life is None or not life.is_warm:
            return None
        return life if life.running.pause() else None

    def kill_for(self, successor: Life) -> None:
        """Kills the one that runs, whom ``successor`` follows, which waits: returns when that is told to take over.

        ::

            driver       ends by itself: it was fenced
            supervisor   waits a moment before it starts the successor
            fault        kills whoever runs next: the successor
        """
        running = self._current
        if running is not None and running is not successor and not running.ended:
            self._kill(running)

        def is_told() -> bool:
            return successor.generation > 0 or successor.ended

        self._await(is_told, _TAKE_OVER_S, "no driver took over")

    def _warmest(self) -> Life | None:
        return next((each for each in list(self._standbys) if not each.ended), None)

    def pause(self) -> Life | None:
        """SIGSTOP to driver and JVM. Gives that life; None: it has just ended by itself."""
        return self._pause(self._alive(_TAKE_OVER_S), alone=False)

    def end_in_order(self, patience_s: float = 120, *, step: str = "") -> UnderWay:
        """Ends the running life as an operator does, after its batch; the supervisor starts the next at once.

        With a ``step`` it is asked right before that, if it comes: without, most likely between two batches. Gives what was under
        way then. Raises VerificationError if it does not end so.
        """
        life = self._alive(_TAKE_OVER_S)
        if step:
            passed = self._hold_before(life, step)
            self._await_held(life, step, _TAKE_OVER_S, passed)
        with self._changed:
            met = self._doing(life)
        life.asked_to_end = True
        life.running.order(Order(Do.STOP))
        self.go(life)
        self._await(lambda: life.ended, patience_s, "the driver did not end in order")
        if not life.finished:
            raise VerificationError(f"driver {life.generation} was to end in order, and did not{self._why(life)}")
        return met

    def hold(self, step: str, patience_s: float = _TAKE_OVER_S) -> Life | None:
        """The running life, once it waits right before ``step``; it waits until ``go``. None: the step did not come."""
        life = self._alive(_TAKE_OVER_S)
        passed = self._hold_before(life, step)
        self._await_held(life, step, patience_s, passed)
        if life.is_held_at(step) and not life.ended:
            return life
        self.go(life)
        return None

    def _hold_before(self, life: Life, step: str) -> int:
        """Tells it to wait there. How many batches it will have committed when the step has come and gone.

        ::

            engine   has committed three batches that nobody has heard of yet
            fault    orders, and counts three from the last one that was heard
            engine   waits at the step; the three are heard before that, and it seems to have come and gone
        """
        life.running.order(Order(Do.HOLD, step=step))
        life.running.hear()
        return life.batches + _PASSED_BATCHES

    def go(self, life: Life) -> None:
        """Lets one go on that was told to hold. It takes the step, and tells nothing before the next one comes.

        ::

            fault   lets it go on right before AUDIT, and is over
            fault   the next one of the row, at once: to be killed right before COMMIT, and it is in AUDIT
        """
        with self._changed:
            if life.held is not None and not life.ended:
                self._take(life, replace(life.held, told=Told.STEP, at=time.time()))
        life.running.order(Order(Do.GO))

    @contextmanager
    def down(self) -> Iterator[None]:
        """Killed, and not started before the block ends: the time to do something to its checkpoint."""
        with self._not_started() as life:
            if life is not None:
                self._kill(life)
            yield

    @contextmanager
    def resting(self, patience_s: float = 120) -> Iterator[None]:
        """Ended as an operator does, and not started before the block ends. One that does not end in time is killed."""
        with self._not_started() as life:
            if life is not None:
                life.asked_to_end = True
                life.running.order(Order(Do.STOP))
                self.go(life)
                if not self._await(lambda: life.ended, patience_s):
                    self._kill(life)
            yield

    @contextmanager
    def _not_started(self) -> Iterator[Life | None]:
        """No driver is started before the block ends. Gives the one that runs, if one does.

        ::

            driver       ends by itself: it was fenced
            supervisor   waits a moment before it starts the next one
            fault        wants the driver down: it is, and who waited for one that could be ended would wait in vain
        """
        with self._changed:
            self._down += 1
            life = self._current
        try:
            yield None if life is None or life.ended else life
        finally:
            with self._changed:
                self._down -= 1
                self._changed.notify_all()

    def replace(self, old: Life | None = None) -> Life:
        """Another takes over while the present one lives (or is paused): two drivers at once. Gives the one replaced.

        That is ``old``, of which only a part may live. It may have ended meanwhile, and another have taken over: that one stays.
        """
        old = old or self._alive(_TAKE_OVER_S)
        with self._changed:
            self._replaced.append(old)
            if self._current is old:
                self._current = None
            self._changed.notify_all()
        self._await(lambda: self.generation > old.generation, _TAKE_OVER_S, "no driver took over")
        return old

    def await_end(self, life: Life, patience_s: float = 60) -> bool:
        """Whether a life that was replaced, or half killed, ended by itself in time; else it is killed.

        ::

            zombie   wakes, and does not end; its successor has no batch yet
            fault    kills it: the last one with output has not ended by itself, and that is no outage
        """
        self._await(lambda: life.ended, patience_s)
        with self._changed:
            by_itself = life.ended
            life.killed = life.killed or not by_itself
        life.running.kill()
        return by_itself

    def await_batches(self, count: int, patience_s: float = _TAKE_OVER_S) -> bool:
        """Whether so many more batches are committed in time, by whichever life. Raises VerificationError if it is given up.

        Commits are counted, and not numbers of batches::

            199 is committed; the checkpoint is lost, the pipeline resumes, and commits 0, 1, 2, …
            who waited for a number that is new would wait for 200 batches
        """
        wanted = self.commits + count
        return self._await(lambda: self.commits >= wanted, patience_s)

    def await_output(self, patience_s: float) -> None:
        """Waits until the newest batch has written records, or an engine does not say how many; no longer than the patience."""
        self._await(lambda: self.outputs.get(self._newest) != 0, patience_s)

    def await_failure_or_batch(self, patience_s: float = _TAKE_OVER_S) -> bool:
        """Which comes first: False for the end of a life that failed, True for a batch."""
        commits, failures = self.commits, len(self._failed)
        self._await(lambda: self.commits > commits or len(self._failed) > failures, patience_s)
        return self.commits > commits

    def await_failure(self, words: Collection[str], batches: int, patience_s: float = _TAKE_OVER_S) -> bool:
        """Whether a life fails in time with one of these words in its error, before so many batches more are committed."""
        wanted, before = self.commits + batches, len(self._failed)

        def has_failed() -> bool:
            return any(word in f"{each.code} {each.error}" for each in self._failed[before:] for word in words)

        self._await(lambda: has_failed() or self.commits >= wanted, patience_s)
        return has_failed()

    # ---------------------------------------------------------------------------------------------------- start and end

    def start(self) -> None:
        self._supervisor.start()

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

    def close(self) -> None:
        """Kills all that is left."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._supervisor.is_alive():
            self._supervisor.join(_TAKE_OVER_S)
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
        if life.killed or (life.asked_to_end and life.finished):
            return
        failure = life.failure or Message(
            Told.FAILED, code="ENDED", error="its process ended by itself, without a word"
        )
        self._failures = 0 if life.batches else self._failures + 1
        first_line = failure.error.partition("\n")[0]
        self._timeline.note(f"driver {life.generation} ended with {failure.code}: {first_line}")
        if failure.code == "PROGRESS_CONFLICT":
            self.conflicts += 1
            self._mode = "resume"
        with self._changed:
            if failure.lasting and not self.commits:  # before any fault, so that no fault can be the reason
                self.is_refused = True
                self.gave_up = f"the pipeline cannot run, and every start would end the same way: {failure.error}"
                self._changed.notify_all()
                return
            if self._failures >= MOST_FAILURES:
                self.gave_up = (
                    f"the driver failed {self._failures} times in a row without a batch, last with {failure.code}: "
                    f"{failure.error}. The end of its log:{life.running.said()}"
                )
                self._changed.notify_all()
                return
            self._changed.wait_for(lambda: self._closing, _backoff_s(self._failures))

    def _launched(self) -> Life:
        self._processes += 1
        life = Life(0)
        life.process = self._launch(self._processes, partial(self._heard, life))
        return life

    # -------------------------------------------------------------------------------------------------------- messages

    def _heard(self, life: Life, message: Message | None) -> None:
        with self._changed:
            if message is None:
                life.ended = True
                if life.open is not None:
                    self._timeline.end(life.open)
                self._note_outage(life)
            else:
                self._note(life, message)
            self._changed.notify_all()

    def _note_outage(self, life: Life) -> None:
        """The last one with output has ended, and nobody asked for it: of two that fence each other none may be left, or one that
        only starts. While none shall run, nobody misses one.

        One that follows and ends without a batch is still the same outage.
        """
        if life.jvm_killed:  # its end is no other one's, whatever it has still committed
            self._commits_at_end = self.commits
        if life.open is None or life.killed or life.asked_to_end or self._closing or self._down:
            return
        others = (each for each in (*self._replaced, self._current) if each is not None)
        is_last = all(each.ended or each.killed or not each.batches for each in others)
        if is_last and self.commits > self._commits_at_end:
            self.outages.append(time.time())
            self._commits_at_end = self.commits

    def _note(self, life: Life, message: Message) -> None:
        life.told = message
        match message.told:
            case Told.STEP | Told.HELD:
                self._step(life, message)
            case Told.READY:
                self._standby_losses = 0
            case Told.STARTED:
                self.moved_at = time.monotonic()
            case Told.COMMITTED:
                self._committed(life, message)
            case Told.FAILED:
                life.failure = message
                self._failed.append(message)
                if life.open is not None:
                    life.open.detail += f", ended with {message.code}"
            case Told.FINISHED:
                life.finished = True
            case Told.MALFORMED:
                self.gave_up = self.gave_up or f"the engine says what is no message: {message.error}"

    def _step(self, life: Life, message: Message) -> None:
        life.first_seen.setdefault(message.batch, message.at)
        self._steps_told[message.step] += 1
        if message.told is Told.HELD:
            life.held = message
        else:
            self._take(life, message)

    def _take(self, life: Life, step: Message) -> None:
        """It begins the step. One that waits right before it has made nothing visible, and may be killed there."""
        life.told, life.held = step, None
        if step.step == self.engine.visible_from and step.batch >= 0:
            self.effects.append(Effect(life.generation, step.batch, step.at))

    def _committed(self, life: Life, message: Message) -> None:
        life.batches += 1
        life.committed = message.batch
        self.commits += message.written
        if message.batch < self._newest:
            self.outputs.clear()  # it has resumed, and numbers them anew
        if message.written and message.records is not None:
            self.tells_outputs = True
            self.outputs[message.batch] = message.records
        self._newest = message.batch
        self._failures = 0
        self.moved_at = time.monotonic()
        if message.batch in self.committed_batches and not message.written:
            return
        self.committed_batches.add(message.batch)
        if not self.engine.visible_from:
            self.effects.append(Effect(life.generation, message.batch, message.at))
        began = self._timeline.seconds(life.first_seen.get(message.batch, message.at))
        ended = self._timeline.seconds(message.at)
        detail = "" if message.written else "was committed before"
        self._timeline.add(Happening(Lane.BATCH, f"batch {message.batch}", began, ended, detail))

    # --------------------------------------------------------------------------------------------------------- waiting

    def _alive(self, patience_s: float) -> Life:
        """The life that runs, once there is one that was set to work."""
        self._raise_if_given_up()
        self._await(self._runs, patience_s, "there is no driver to act on")
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

    def _kill(self, life: Life) -> bool:
        """False: it has ended by itself, and nothing is killed.

        ::

            fault        waits for AUDIT, to kill it there
            driver       ends by itself in WRITE: an outage, whose reason the supervisor learns
            fault        goes on; who noted a kill now would say that it had met batch 7 in WRITE, and count the loss twice
            supervisor   would take a PROGRESS_CONFLICT for the end of one that was killed, and start the next without a resume
        """
        if not self._condemn(life):
            return False
        life.running.kill()
        self._await(lambda: life.ended, _TAKE_OVER_S, "a killed driver did not end")
        self._note_its_last_words(life)
        return True

    def _condemn(self, life: Life) -> bool:
        """It is killed now, which is a strike. False: it has ended by itself."""
        with self._changed:
            if life.ended:
                return False
            self.strikes.append(time.time())
            life.killed = True
            return True

    def _note_its_last_words(self, life: Life) -> None:
        """What it did when it was killed, now that all that it had told is heard."""
        with self._changed:
            self.struck.append(self._doing(life))
            self._commits_at_end = self.commits

    def _doing(self, life: Life) -> UnderWay:
        return under_way(self.engine, life.told, life.committed)

    def _kill_held(self, life: Life, step: str, patience_s: float, batches: int) -> bool | None:
        """Kills it where it waits; at the latest when it has committed so many batches, for then the step came and went.

        Whether it waited there; None: it ended by itself before.
        """
        self._await_held(life, step, patience_s, batches)
        is_held = life.is_held_at(step)
        return is_held if self._kill(life) else None

    def _await_held(self, life: Life, step: str, patience_s: float, batches: int) -> None:
        """Until it waits there, has ended, or has gone past it. Raises PipelineStuck where it did nothing for so long.

        ::

            driver   stands still in PRODUCE, and a fault has nothing to do with it
            fault    waits for COMMIT, and while it lasts nothing is taken for stuck; after ten minutes it kills the driver
            next     goes on, as if nothing had been wrong
        """
        before = life.batches
        came = self._await(lambda: life.is_held_at(step) or life.ended or life.batches >= batches, patience_s)
        if not came and life.batches == before and patience_s >= _TAKE_OVER_S:
            raise PipelineStuck(f"no batch for {patience_s:.0f} s, and {step} did not come")

    def _why(self, life: Life | None) -> str:
        if self.gave_up:
            return f": {self.gave_up}"
        if life is None or life.failure is None:
            return ""
        return f": {life.failure.code}: {life.failure.error}"


def _backoff_s(times: int) -> float:
    """0.2, 0.4, 0.8, … seconds, and not longer than some."""
    return min(0.1 * 2.0 ** min(times, 10), _MOST_BACKOFF_S)
