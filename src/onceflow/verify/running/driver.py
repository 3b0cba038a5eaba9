"""What is done to the driver of a pipeline while it works: it is killed, paused, held at a step, ended, replaced, waited for."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from onceflow.errors import PipelineStuck, VerificationError
from onceflow.verify.cluster import processes
from onceflow.verify.engines.lines import Do, Order
from onceflow.verify.running.course import Kill
from onceflow.verify.running.encounters import NOTHING, UnderWay
from onceflow.verify.running.life import Life
from onceflow.verify.running.supervisor import TAKE_OVER_S, Supervisor, unasked_end

_PASSED_BATCHES = 3


class DriverProcess(Supervisor):
    """The supervised driver, and what faults do to it: one after the other."""

    @property
    def pid(self) -> int:
        """The process group of the life that runs now."""
        return self._alive().running.pid

    @property
    def steps(self) -> tuple[str, ...]:
        """Where in a batch it can be killed: as the engine says, else what it has told so far."""
        return self.engine.steps or tuple(sorted(self.course.steps_told))

    @property
    def recovery_steps(self) -> tuple[str, ...]:
        """The same, while it takes over."""
        return self.engine.recovery_steps or self.steps

    @property
    def under_way(self) -> UnderWay:
        """What the present driver does, as far as it has told."""
        with self._changed:
            life = self._current
            return NOTHING if life is None or life.ended else self.course.doing(life)

    # ----------------------------------------------------------------------------------------------------------- killed

    def kill(self) -> bool:
        """SIGKILL to driver and JVM; returns when they are gone. The supervisor starts the next at once.

        False: it has just ended by itself, and nothing was killed.
        """
        return self._kill(self._alive())

    def kill_at(self, step: str, patience_s: float = TAKE_OVER_S) -> bool | None:
        """The same, while it waits right before a step of its commit. False: the step did not come, it was killed anyway.

        None: it ended by itself before, and nothing was killed.
        """
        life = self._alive()
        passed = self._hold_before(life, step)
        return self._kill_held(life, step, patience_s if step else 0, passed)

    def kill_in_recovery(self, step: str, patience_s: float = TAKE_OVER_S) -> bool | None:
        """Kills it, and its successor too when that comes to ``step`` of taking over. What it gives is said of the successor.

        That one is killed also where the first has just ended by itself; ``strikes`` tell how many were.
        """
        with self._changed:
            self._hold_the_next(step)
            before = self.generation
        self.kill()
        self._await(lambda: self.generation > before, self.take_over_s, "no driver took over")
        return self._kill_held(self._alive(), step, patience_s if step else 0, 1)

    def _hold_the_next(self, step: str) -> None:
        """Whoever takes over next waits right before it; an empty one: whoever does so does not."""
        self._next_hold = step

    def kill_jvm(self) -> Life | None:
        """SIGKILL to the JVM alone; the Python process is left to find out. Gives the life that ends so; None: it has no JVM.

        ::

            fault    kills the JVM while the driver waits for the answer to its commit
            Python   gets the answer, and tells of a batch; only then it misses the JVM, and ends
            watch    that end is no outage of its own: since the kill no other batch could come
        """
        life, jvm = self._with_jvm()
        with self._changed:
            met, kill = self.course.doing(life), Kill(life.generation, time.time())
            life.jvm_killed = jvm is not None and processes.send(jvm, signal.SIGKILL)
            if not life.jvm_killed:
                return None
            self.course.note_strike(met, kill)
        return life

    def kill_python(self) -> Life | None:
        """SIGKILL to the Python process; the JVM is left to find out. Gives that life; None: it has no JVM, or has ended."""
        life, jvm = self._with_jvm()
        if jvm is None or not self.course.condemn(life):
            return None
        life.running.kill_alone()
        self.course.note_its_last_words(life)
        return life

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
        self._await(lambda: life.ended, self.take_over_s, "a killed standby did not end")
        return was_warm

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

        self._await(is_told, self.take_over_s, "no driver took over")

    def _kill(self, life: Life) -> bool:
        """False: it has ended by itself, and nothing is killed.

        ::

            fault        waits for AUDIT, to kill it there
            driver       ends by itself in WRITE: an outage, whose reason the supervisor learns
            fault        goes on; who noted a kill now would say that it had met batch 7 in WRITE, and count the loss twice
            supervisor   would take a PROGRESS_CONFLICT for the end of one that was killed, and start the next without a resume
        """
        if not self.course.condemn(life):
            return False
        life.running.kill()
        self._await(lambda: life.ended, self.take_over_s, "a killed driver did not end")
        self.course.note_its_last_words(life)
        return True

    def _kill_held(self, life: Life, step: str, patience_s: float, batches: int) -> bool | None:
        """Kills it where it waits; at the latest when it has committed so many batches, for then the step came and went.

        Whether it waited there; None: it ended by itself before.
        """
        self._await_held(life, step, patience_s, batches)
        is_held = life.is_held_at(step)
        return is_held if self._kill(life) else None

    # ----------------------------------------------------------------------------------------------------------- paused

    def pause(self) -> Life | None:
        """SIGSTOP to driver and JVM. Gives that life; None: it has just ended by itself."""
        return self._noted(self._pause(self._alive(), alone=False))

    def stall(self) -> Life | None:
        """The same, and nobody is to take over: it goes on when it is woken. What it holds until then no dead one holds."""
        life = self._pause(self._alive(), alone=False)
        if life is not None:
            self.course.note_stall(life)
        return life

    def pause_jvm(self) -> tuple[Life, int] | None:
        """SIGSTOP to the JVM alone. Gives that life, and whom to wake; None: it has no JVM."""
        life, jvm = self._with_jvm()
        if jvm is None or not processes.freeze(jvm):
            return None
        life.running.hear()
        self.course.note_pause(life)
        return life, jvm

    def pause_python(self) -> Life | None:
        """SIGSTOP to the Python process alone. Gives that life; None: it has no JVM, or has just ended by itself."""
        life, jvm = self._with_jvm()
        return None if jvm is None else self._noted(self._pause(life, alone=True))

    def pause_standby(self) -> Life | None:
        """SIGSTOP to the one that is to take over next, with its JVM. None: none is warm, or it has just died."""
        life = self._warmest()
        if life is None or not life.is_warm:
            return None
        return life if life.running.pause() else None

    def _pause(self, life: Life, *, alone: bool) -> Life | None:
        if not life.running.pause(alone=alone):
            return None
        if life.ended:  # and nobody had waited for it: then a signal still reaches its group
            life.running.resume()
            return None
        return life

    def _noted(self, paused: Life | None) -> Life | None:
        if paused is not None:
            self.course.note_pause(paused)
        return paused

    def _with_jvm(self) -> tuple[Life, int | None]:
        """The life that runs, all heard that it has told, and its JVM."""
        life = self._alive()
        jvm = life.running.jvm
        life.running.hear()
        return life, jvm

    def _warmest(self) -> Life | None:
        return next((each for each in list(self._standbys) if not each.ended), None)

    # --------------------------------------------------------------------------------------------------- held at a step

    def hold(self, step: str, patience_s: float = TAKE_OVER_S) -> Life | None:
        """The running life, once it waits right before ``step``; it waits until ``go``. None: the step did not come."""
        life = self._alive()
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

    def _await_held(self, life: Life, step: str, patience_s: float, batches: int) -> None:
        """Until it waits there, has ended, or has gone past it. Raises PipelineStuck where it did nothing for so long.

        ::

            driver   stands still in PRODUCE, and a fault has nothing to do with it
            fault    waits for COMMIT, and while it lasts nothing is taken for stuck; after ten minutes it kills the driver
            next     goes on, as if nothing had been wrong
        """
        before = life.batches
        came = self._await(lambda: life.is_held_at(step) or life.ended or life.batches >= batches, patience_s)
        if not came and life.batches == before and patience_s >= self.take_over_s:
            raise PipelineStuck(f"no batch for {patience_s:.0f} s, and {step} did not come")

    # --------------------------------------------------------------------------------------- ended, kept down, replaced

    def end_in_order(self, patience_s: float = 120, *, step: str = "") -> UnderWay:
        """Ends the running life as an operator does, after its batch; the supervisor starts the next at once.

        With a ``step`` it is asked right before that, if it comes: without, most likely between two batches. Gives what was under
        way then. Raises VerificationError if it does not end so.
        """
        life = self._alive()
        if step:
            passed = self._hold_before(life, step)
            self._await_held(life, step, self.take_over_s, passed)
        with self._changed:
            met = self.course.doing(life)
        life.asked_to_end = True
        life.running.order(Order(Do.STOP))
        self.go(life)
        self._await(lambda: life.ended, patience_s, "the driver did not end in order")
        if not life.finished:
            raise VerificationError(f"driver {life.generation} was to end in order, and did not{self._why(life)}")
        return met

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
        old = old or self._alive()
        with self._changed:
            self._replaced.append(old)
            if self._current is old:
                self._current = None
            self._changed.notify_all()
        self._await(lambda: self.generation > old.generation, self.take_over_s, "no driver took over")
        return old

    # ------------------------------------------------------------------------------------------------------- waited for

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
        self._judge_zombie(life)
        return by_itself

    def _judge_zombie(self, life: Life) -> None:
        """The supervisor learns of nobody who was replaced. Whoever is replaced before he has run is no zombie."""
        failure = unasked_end(life)
        if failure is not None and life.generation and any(each is life for each in self._replaced):
            self._judge(life, failure)

    def await_batches(self, count: int, patience_s: float = TAKE_OVER_S) -> bool:
        """Whether so many more batches are committed in time, by whichever life. Raises VerificationError if it is given up.

        Commits are counted, and not numbers of batches::

            199 is committed; the checkpoint is lost, the pipeline resumes, and commits 0, 1, 2, …
            who waited for a number that is new would wait for 200 batches
        """
        wanted = self.course.commits + count
        return self._await(lambda: self.course.commits >= wanted, patience_s)

    def await_output(self, patience_s: float) -> None:
        """Waits until the newest batch has written records, or an engine does not say how many; no longer than the patience."""
        self._await(lambda: self.course.outputs.get(self.course.newest) != 0, patience_s)

    def await_failure_or_batch(self, patience_s: float = TAKE_OVER_S) -> bool:
        """Which comes first: False for the end of a life that failed, True for a batch."""
        commits, failures = self.course.commits, len(self.course.failed)
        self._await(lambda: self.course.commits > commits or len(self.course.failed) > failures, patience_s)
        return self.course.commits > commits

    def await_failure(self, words: Collection[str], batches: int, patience_s: float = TAKE_OVER_S) -> bool:
        """Whether a life fails in time with one of these words in its error, before so many batches more are committed."""
        wanted, before = self.course.commits + batches, len(self.course.failed)

        def has_failed() -> bool:
            return any(word in f"{each.code} {each.error}" for each in self.course.failed[before:] for word in words)

        self._await(lambda: has_failed() or self.course.commits >= wanted, patience_s)
        return has_failed()
