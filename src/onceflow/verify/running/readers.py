"""The readers behind the output and who watches them: each is started again whenever it ends, until the run is over.

They are one group on one store. What one of them leaves, killed or frozen, another one takes over; and itself, when it is there
again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

import pyarrow as pa

from onceflow.verify.effects import ledger
from onceflow.verify.effects.job import Job
from onceflow.verify.engines.lines import Do, Message, Order, Told
from onceflow.verify.recording.tables import EFFECTS, Chunks, Place
from onceflow.verify.result import Lane
from onceflow.verify.running.explained import explained
from onceflow.verify.running.process import EngineProcess
from onceflow.verify.running.timeline import Timeline

COMMAND = (sys.executable, "-m", "onceflow.verify.effects")
_LOOK_AGAIN_S = 0.2
_PAUSE_S = 1.0  # before one is started again that has ended by itself
_END_S = 120.0

Launch = Callable[[int, Callable[[Message | None], None]], EngineProcess]


@dataclass(slots=True, eq=False)
class ReaderLife:
    """One process of a reader, from its start to its end; ``held`` is the step behind which it waits for an order."""

    number: int
    process: EngineProcess | None = None
    held: str = ""
    is_struck: bool = False  # it has ended, if it has, because a fault killed it
    ended: bool = False
    is_finished: bool = False  # in order
    failure: Message | None = None

    @property
    def running(self) -> EngineProcess:
        assert self.process is not None
        return self.process


class EffectReaders:
    """``count`` readers whose effects are in ``file``; ``launch`` is given the number of each process and who hears it."""

    def __init__(self, launch: Launch, file: Path, timeline: Timeline, count: int) -> None:
        self.file = file
        self.generation = 0
        self._launch = launch
        self._timeline = timeline
        self._changed = threading.Condition()
        self._lives: list[ReaderLife] = []
        self._troubles: list[str] = []
        self._closing = False
        self._keepers = [
            threading.Thread(target=self._keep_one, name=f"onceflow-reader-{number}", daemon=True)
            for number in range(count)
        ]

    # ------------------------------------------------------------------------------------------------- what faults use

    def hold(self, step: str, patience_s: float, random: Random) -> ReaderLife | None:
        """Of those that come to ``step`` of their loop, one that waits right behind it. None: none came.

        What one had said before is of no matter::

            both are told to wait; one does, and is taken; the other one is told to go on, and has just said that it waits
            it goes on; taken for one that waits the next time, it would be struck wherever it is
        """
        with self._changed:
            asked = [life for life in self._lives if not life.ended and not life.running.is_paused]
            for life in asked:
                life.held = ""
                life.running.order(Order(Do.HOLD, step=step))
            self._changed.wait_for(lambda: any(life.held and not life.ended for life in asked), patience_s)
            held = [life for life in asked if life.held and not life.ended]
        chosen = random.choice(held) if held else None
        for life in asked:
            if life is not chosen:
                self.go(life)
        return chosen

    def go(self, life: ReaderLife) -> None:
        """It waits no longer, now or later."""
        with self._changed:
            life.held = ""
        life.running.order(Order(Do.GO))

    def kill(self, life: ReaderLife) -> None:
        """SIGKILL. Another process is started in its place."""
        with self._changed:
            life.is_struck = True
        life.running.kill()

    def owned(self, life: ReaderLife) -> int:
        """How many partitions are its own as the store has it."""
        return ledger.owned_by(self.file, life.running.pid)

    # ---------------------------------------------------------------------------------------------------- start and end

    def start(self) -> None:
        for keeper in self._keepers:
            keeper.start()

    def finish(self, last: Mapping[Place, int], patience_s: float) -> list[str]:
        """Waits until the ``last`` offset of each partition is handled, then ends all in order. What went wrong, also before."""
        deadline = time.monotonic() + patience_s
        while (behind := self._behind(last)) and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)
        if behind:
            self._troubles.append(f"stuck: the readers have not handled {behind} within {patience_s:.0f} s")
        self._stop()
        with self._changed:
            return list(dict.fromkeys(self._troubles))

    def effects(self) -> pa.Table:
        """All effects (``tables.EFFECTS``), in the order in which they were written."""
        chunks = Chunks(EFFECTS)
        chunks.extend(ledger.effects_in(self.file))
        return chunks.table()

    def close(self) -> None:
        """Kills all that is left."""
        with self._changed:
            self._closing = True
            lives = list(self._lives)
            self._changed.notify_all()
        with ExitStack() as kills:
            for keeper in self._keepers:
                if keeper.is_alive():
                    kills.callback(keeper.join, _END_S)
            for life in lives:
                kills.callback(life.running.kill)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ----------------------------------------------------------------------------------------------------- supervision

    def _behind(self, last: Mapping[Place, int]) -> str:
        """The partitions that are not handled up to their ends, in words."""
        found = ledger.furthest(self.file)
        return ", ".join(
            f"{topic}-{partition} from offset {found.get((topic, partition), -1) + 1} to {end}"
            for (topic, partition), end in sorted(last.items())
            if found.get((topic, partition), -1) < end
        )

    def _stop(self) -> None:
        """Ends them in order, and notes those that have ended by themselves::

        reader   ends of an error that lasts; its keeper takes its files away, which takes a moment
        run      ends; the keeper finds that, and starts no other
        """
        with self._changed:
            self._closing = True
            for life in self._lives:
                if life.ended and not life.is_struck:
                    self._note_end(life)
            lives = [life for life in self._lives if not life.ended]
            self._changed.notify_all()
        for life in lives:
            life.running.resume()
            self.go(life)
            life.running.order(Order(Do.STOP))
        with self._changed:
            self._changed.wait_for(lambda: all(life.ended for life in lives), _END_S)
            for life in lives:
                if not life.ended:
                    self._troubles.append(f"reader {life.number} did not end in order within {_END_S:.0f} s")
                elif not life.is_finished:
                    self._troubles.append(_told(life))

    def _keep_one(self) -> None:
        try:
            while (life := self._launched()) is not None:
                self._live(life)
        except Exception as error:  # noqa: BLE001  whoever waits for its effects hears of it
            with self._changed:
                self._troubles.append(f"no reader can be started any more: {explained(error)}")

    def _launched(self) -> ReaderLife | None:
        """The next process; None when the run is over."""
        with self._changed:
            if self._closing:
                return None
            self.generation += 1
            life = ReaderLife(self.generation)
            # Not without the lock: whoever ends them looks who is there.
            life.process = self._launch(life.number, lambda message: self._heard(life, message))
            self._lives.append(life)
        return life

    def _live(self, life: ReaderLife) -> None:
        name, detail = f"reader {life.number}", f"pid {life.running.pid}"
        bar = self._timeline.begin(Lane.READER, name, detail)
        with self._changed:
            self._changed.wait_for(lambda: life.ended)
        life.running.reap()
        self._timeline.end(bar)
        with self._changed:
            self._lives.remove(life)
            if life.is_struck or self._closing:
                return
            self._note_end(life)
            self._changed.wait_for(lambda: self._closing, _PAUSE_S)

    def _note_end(self, life: ReaderLife) -> None:
        """Brokers may be away for longer than it waits, and it is started again. What no start mends is a failure of the run."""
        text = _told(life)
        self._timeline.note(text)
        if life.failure is None or life.failure.lasting:
            self._troubles.append(text)

    def _heard(self, life: ReaderLife, message: Message | None) -> None:
        with self._changed:
            if message is None:
                life.ended = True
            elif message.told is Told.HELD:
                life.held = message.step
            elif message.told is Told.FINISHED:
                life.is_finished = True
            elif message.told is Told.FAILED:
                life.failure = message
            self._changed.notify_all()


def _told(life: ReaderLife) -> str:
    """How it has ended by itself."""
    if life.failure is None:
        return f"reader {life.number} ended by itself, without a word; its log ends with:{life.running.said()}"
    return f"reader {life.number} ended by itself: {life.failure.error}"


def effect_readers(
    directory: Path, logs: Path, job: Job, timeline: Timeline, count: int, command: Sequence[str] = COMMAND
) -> EffectReaders:
    """Readers that work on ``job`` in ``directory``, which is made; their logs go to ``logs``."""
    directory.mkdir()
    ledger.create(Path(job.file))
    file = directory / "job.json"
    job.write(file)

    def launch(number: int, heard: Callable[[Message | None], None]) -> EngineProcess:
        return EngineProcess(command, file, directory / f"r{number}", logs / f"reader-{number}.log", heard)

    return EffectReaders(launch, Path(job.file), timeline, count)
