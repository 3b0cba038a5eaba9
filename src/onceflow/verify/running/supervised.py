"""The driver of an engine that leads its drivers by itself, as ``onceflow run --standbys`` does: it is struck, and not helped."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from onceflow.errors import ProgressConflict, RestartsExhausted
from onceflow.pipeline.limits import Limits
from onceflow.verify.cluster import processes
from onceflow.verify.engines import Engine
from onceflow.verify.engines.lines import Do, Message, Order, Told
from onceflow.verify.result import Lane
from onceflow.verify.running.door import Door
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.life import Life
from onceflow.verify.running.process import EngineProcess
from onceflow.verify.running.reported import ReportedProcess
from onceflow.verify.running.supervisor import unasked_end
from onceflow.verify.running.timeline import Timeline

_NAME = "the supervisor"
_TRIES = Limits().tries
_BY_ITSELF = ("was killed by ", "ended by itself ")  # so begins why one is lost that its leader has not killed


class SupervisedDriver(DriverProcess):
    """What faults find in place of a ``DriverProcess``. Which driver runs, and when the next one does, is the engine's decision.

    Each driver is a life of its own, from the moment at which it reports; ``generation`` counts those that were set to work. The
    engine itself (the leader) is started again only where it has ended, as a service manager does, and with ``--resume`` where it
    asks for that. ``launch`` is also given what it wants to know: where its drivers report, and how many standbys it keeps.
    """

    def __init__(
        self,
        engine: Engine,
        launch: Callable[..., EngineProcess],
        timeline: Timeline,
        standbys: int = 1,
        words: Callable[[str], str] = str,
    ) -> None:
        super().__init__(engine, launch, timeline, standbys, words)
        self._leader: Life | None = None
        self._reported: list[Life] = []  # all drivers of which something may be left
        self._warm: set[int] = set()  # the pids of those that the leader calls ready
        self._losses: list[bool] = []  # of this leader's drivers, in their order: whether a fault has to do with it
        self._gone: dict[int, Life] = {}  # by pid, those that were set to work and have ended, until it is told why
        self._lost: dict[int, str] = {}  # by pid, why the leader misses one, until all that it has told is heard
        self._door = Door(self._enter)
        self._launch = partial(launch, arguments=(self._door.address, str(standbys)))

    # ---------------------------------------------------------------------------------------------------- start and end

    def stop(self, patience_s: float = 120) -> str:
        reason = super().stop(patience_s)
        leader = self._leader
        if reason or leader is None:
            return reason
        with self._changed:
            ended = self._changed.wait_for(lambda: leader.ended, patience_s)
        if not ended:
            return f"{_NAME} did not end in order within {patience_s:.0f} s"
        return "" if leader.finished else f"{_NAME} ended, and not in order{self._why(leader)}"

    def close(self) -> None:
        """Kills all that is left: first who would start others; a driver that has not reported yet ends with him."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(self.take_over_s)
        leader = self._leader
        with ExitStack() as kills:
            kills.callback(self._door.close)
            if leader is not None:
                kills.callback(leader.running.kill)
            kills.callback(self._kill_reported)
            if leader is not None:
                leader.running.kill_alone()

    def _kill_reported(self) -> None:
        with self._changed:
            left = list(self._reported)
        with ExitStack() as kills:
            for life in left:
                kills.callback(life.running.kill)

    # ------------------------------------------------------------------------------------------------------- the leader

    def _is_wanted(self) -> bool:
        return not self._down and not self.gave_up and not self._leads()

    def _wants_standby(self) -> bool:
        """They are the leader's."""
        return False

    def _leads(self) -> bool:
        return self._leader is not None and not self._leader.ended

    def _next(self, ended: Life | None) -> None:  # noqa: ARG002  drivers are followed by the leader
        leader = self._leader
        if leader is not None and not leader.learned:
            leader.running.reap()
            with self._changed:  # its drivers end with it, and each end is heard by a thread of its own
                self._changed.wait_for(lambda: self._closing or not self._reported, self.take_over_s)
            self._learn(leader)
            leader.learned = True
        with self._changed:
            if self.gave_up or self._closing or self._down:
                return
            self._processes += 1
            leader = Life(0, name=_NAME)
            leader.process = self._launch(self._processes, partial(self._heard_leader, leader))
            self._leader = leader
            self._losses.clear()
            self._gone.clear()
            self._lost.clear()
            leader.running.order(Order(Do.RUN, mode=self._mode))
            self._mode = "refuse"

    def _is_explained(self, life: Life, failure: Message) -> bool:
        """Whether faults have made a leader end: with what it says of the checkpoint (judged with the faults that there were), or
        of drivers that were lost in a row, each of them to a fault. No fault ends a leader: any other end that nobody asked for
        is a failure of what is verified, though the next one goes on.
        """
        if life is not self._leader:
            return super()._is_explained(life, failure)
        if failure.code == RestartsExhausted.code:
            row = self._losses[-_TRIES:]
            return len(row) == _TRIES and all(row)
        return failure.code == ProgressConflict.code

    def _heard_leader(self, leader: Life, message: Message | None) -> None:
        with self._changed:
            if message is None:
                leader.ended = True
            elif message.told is Told.READY:
                self._warm.add(message.pid)
                for life in self._standbys:
                    self._note_warm(life)
            elif message.told is Told.LOST:
                self._lost[message.pid] = message.error
                self._judge_lost(message.pid)
            elif message.told is Told.FAILED:
                leader.failure = self._worded(message)
                self._note_conflict(leader, message)
            elif message.told is Told.FINISHED:
                leader.finished = True
            elif message.told is Told.MALFORMED:
                self._note(leader, self._worded(message))
            self._changed.notify_all()

    def _end_in_order(self, order: Order) -> bool:
        """It is the leader who ends a driver so, and himself with it."""
        leader = self._leader
        if leader is None:
            return False
        leader.asked_to_end = True
        return leader.running.order(order)

    # ------------------------------------------------------------------------------------------------------- the drivers

    def _enter(self, connection: socket.socket, pid: int) -> None:
        """A driver reports: it is a standby until it says that it was set to work."""
        with self._changed:
            leader, life = self._leader, Life(0)
            assert leader is not None
            life.process = ReportedProcess(
                connection, pid, partial(self._heard, life), self._end_in_order, leader.running.said
            )
            self._reported.append(life)
            self._standbys.append(life)
            self._note_warm(life)
            if self._next_hold:
                life.running.order(Order(Do.HOLD, step=self._next_hold))

    def _note_warm(self, life: Life) -> None:
        """The leader may have said so before its driver has come in."""
        if life.running.pid in self._warm and life.told is None:
            life.told = Message(Told.READY)

    def _heard(self, life: Life, message: Message | None) -> None:
        with self._changed:
            super()._heard(life, message)
            if message is None:
                self._note_loss(life)
                if life.generation:
                    self._gone[life.running.pid] = life
                    self._judge_lost(life.running.pid)
                else:  # it had not said yet that it works
                    self._lost.pop(life.running.pid, None)
                self._reported.remove(life)
                self._warm.discard(life.running.pid)
                if life in self._standbys:
                    self._standbys.remove(life)

    def _note_conflict(self, life: Life, failure: Message) -> None:
        """A driver says so as well, to its supervisor: once is enough."""
        if life is self._leader:
            super()._note_conflict(life, failure)

    def _note_loss(self, ended: Life) -> None:
        """One that ends by itself while a fault lasts is that fault's work."""
        is_struck = ended.killed or ended.jvm_killed or ended.stopped
        if ended.generation or is_struck:
            self._losses.append(is_struck or self._timeline.is_open(Lane.FAULT))

    def _judge_lost(self, pid: int) -> None:
        """One whose leader goes on without it, once all is heard of it, from both sides. (Where a leader ends with the error of a
        driver, the leader is judged.) Without a word may also end whom the leader has killed, which is told of no driver::

            driver   has no processor for ten seconds, on a machine with too much to do, and gives no sign of life
            leader   kills it, as it does for users, and another one takes over
        """
        if pid not in self._gone or pid not in self._lost:
            return
        life, why = self._gone.pop(pid), self._lost.pop(pid)
        failure = unasked_end(life)
        is_leaders_work = life.failure is None and (life.stopped or not why.startswith(_BY_ITSELF))
        if failure is not None and not is_leaders_work:
            self._judge(life, failure)

    def _note(self, life: Life, message: Message) -> None:
        if message.told is Told.STARTED and life in self._standbys:
            self._set_to_work(life)
        elif message.told is Told.COMMITTED and self._leader is not None:
            self._leader.batches += 1
        super()._note(life, message)

    def _set_to_work(self, life: Life) -> None:
        self._standbys.remove(life)
        self.generation += 1
        life.generation = self.generation
        life.open = self._timeline.begin(Lane.DRIVER, life.title, f"pid {life.running.pid}")
        self._current = life
        hold, self._next_hold = self._next_hold, ""
        for other in self._standbys if hold else ():  # it was told to all
            other.running.order(Order(Do.GO))
        life.running.order(Order(Do.RUN))

    def _is_missed(self, ended: Life) -> bool:
        """One that stood still for too long is killed by its leader: that is no end by itself."""
        return not ended.stopped and super()._is_missed(ended)

    # ------------------------------------------------------------------------------------------------- what faults do

    def _hold_the_next(self, step: str) -> None:
        """Nobody knows whose turn it will be: all are told, also those that come in later."""
        super()._hold_the_next(step)
        for life in self._standbys if step else ():
            life.running.order(Order(Do.HOLD, step=step))

    def pause_standby(self) -> Life | None:
        life = super().pause_standby()
        if life is not None:
            life.stopped = True
        return life

    @contextmanager
    def down(self) -> Iterator[None]:
        """The leader stands still meanwhile, so that it learns of the end, and sets the next one to work, behind the block.

        ::

            driver   is killed by the fault before this one; its leader hears of it, and tells a standby to run
            fault    wants the driver down: none is at work yet, and there would be one in a moment
            leader   is stopped: the standby runs, in the middle of what is done to its checkpoint

            driver   ends by itself, and tells why; its JVM takes a moment to die
            leader   waits for its Python alone, and tells a standby to run
            fault    wants the driver down: something of it is there, which is killed; the leader is stopped, and the standby runs

        So it waits until one is at work, wholly, that the leader has not followed when it stands still; and until that one is
        killed by the fault, for where it ends by itself nothing has struck it.
        """
        with self._not_started(), ExitStack() as woken:
            while not self._is_taken_down(woken):
                woken.close()  # the leader goes on
            yield

    def _is_taken_down(self, woken: ExitStack) -> bool:
        """Whether nobody works, and none will before ``woken`` lets the leader go on. Where there is none, none is started."""
        self._await(lambda: self._is_at_work() or not self._leads(), self.take_over_s, "there is no driver to act on")
        leader, life = self._leader, self._current
        if leader is None or leader.ended:
            self._kill_reported()  # they end with it
            return True
        if not leader.running.pause(alone=True):
            self._await(lambda: leader.ended, self.take_over_s, f"all of {_NAME} is not gone")
            return False
        woken.callback(leader.running.resume)
        if life is not None:
            life.running.hear()
        return life is not None and life is self._current and self._is_at_work() and self._kill(life)

    def _is_at_work(self) -> bool:
        """Whether a driver runs whose end has not begun, as far as it has told: the leader has had no other one follow it."""
        life = self._current
        if life is None or life.ended or life.failure is not None or life.finished:
            return False
        return processes.is_there(life.running.pid)

    @contextmanager
    def resting(self, patience_s: float = 120) -> Iterator[None]:
        with self._not_started() as life:
            leader = self._leader
            if leader is not None and not leader.ended:
                if life is not None:
                    life.asked_to_end = True
                self._end_in_order(Order(Do.STOP))
                if life is not None:
                    self.go(life)
                if not self._await(lambda: leader.ended, patience_s):
                    self._kill_all(leader, life)
            yield

    def _kill_all(self, leader: Life, life: Life | None) -> None:
        with self._changed:
            leader.killed = True
        leader.running.kill_alone()
        if life is not None:
            self._kill(life)
        self._kill_reported()
        leader.running.kill()

    def replace(self, old: Life | None = None) -> Life:
        """The leader does that, sooner or later; until then it is waited for."""
        old = old or self._alive()
        self._await(lambda: self._runs() and self._current is not old, self.take_over_s, "no driver took over")
        return old
