"""The course that a pipeline takes over all lives of its driver: what they commit, what strikes them, and when none is left."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass

from onceflow.verify.engines import Engine
from onceflow.verify.engines.lines import Message, Told
from onceflow.verify.result import Happening, Lane
from onceflow.verify.running.encounters import UnderWay, under_way
from onceflow.verify.running.life import Life
from onceflow.verify.running.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Effect:
    """When a process began a step that makes something of a batch visible, or told that it is; ``at`` since the epoch."""

    generation: int
    batch: int
    at: float


@dataclass(frozen=True, slots=True)
class Kill:
    """When a running driver, the ``generation``-th, was killed; ``at`` since the epoch."""

    generation: int
    at: float


class Course:
    """What has become of the pipeline so far. It may be read at any time; who hears a driver holds ``changed``, which guards it.

    ``committed_batches`` are those that some life has told to be committed. ``commits`` counts how often one was committed, also
    where batches are numbered anew. ``outputs`` is how many records each of these wrote, where the engine says so
    (``tells_outputs``).
    ``effects`` are the steps that make batches visible, ``commits_told`` what was told to be committed then.
    ``first_steps`` is when each driver, by its generation, told its first step (since the epoch).
    ``strikes`` tell which running driver was killed, and when, ``pauses`` the times (since the epoch) at which one was stopped
    (of both also: one of its two processes, for the other one can bring no batch without it but that which it has sent),
    ``outages`` those at which the last one that lived had ended by itself. ``struck`` is what each driver did that was killed or
    stopped, at that moment. ``failed`` is what those told that ended with an error.
    """

    def __init__(self, engine: Engine, timeline: Timeline, changed: threading.Condition) -> None:
        self.committed_batches: set[int] = set()
        self.commits = 0
        self.outputs: dict[int, int] = {}
        self.tells_outputs = False
        self.newest = -1  # of the batches that a life has told to be committed; a resume numbers them anew
        self.effects: list[Effect] = []
        self.commits_told: list[Effect] = []
        self.first_steps: dict[int, float] = {}
        self.strikes: list[Kill] = []
        self.pauses: list[float] = []
        self.outages: list[float] = []
        self.struck: list[UnderWay] = []
        self.failed: list[Message] = []
        self.moved_at = time.monotonic()  # when a driver last began to run, or told of a batch
        self.engine = engine
        self._timeline = timeline
        self._changed = changed
        self._steps_told: Counter[str] = Counter()
        self._commits_at_end = 0  # when a driver was last killed, or the last one ended

    @property
    def steps_told(self) -> Counter[str]:
        """How often each step of the protocol was told so far: a copy, for the thread that hears drivers goes on counting."""
        with self._changed:
            return Counter(self._steps_told)

    def doing(self, life: Life) -> UnderWay:
        """What it does, as far as it has told."""
        return under_way(self.engine, life.told, life.committed)

    # ------------------------------------------------------------------------------------------------ what drivers tell

    def note_start(self) -> None:
        """A driver begins to run."""
        self.moved_at = time.monotonic()

    def note_step(self, life: Life, message: Message) -> None:
        """It begins a step, or waits right before it."""
        life.first_seen.setdefault(message.batch, message.at)
        self.first_steps.setdefault(life.generation, message.at)
        self._steps_told[message.step] += 1
        if message.told is Told.HELD:
            life.held = message
        else:
            self.note_taken(life, message)

    def note_taken(self, life: Life, step: Message) -> None:
        """It begins the step. One that waits right before it has made nothing visible, and may be killed there."""
        life.told, life.held = step, None
        if step.step == self.engine.visible_from and step.batch >= 0:
            self.effects.append(Effect(life.generation, step.batch, step.at))

    def note_commit(self, life: Life, message: Message) -> None:
        """It has committed a batch, or found that it was committed before."""
        life.batches += 1
        life.committed = message.batch
        self.commits += message.written
        if message.batch < self.newest:
            self.outputs.clear()  # it has resumed, and numbers them anew
        if message.written and message.records is not None:
            self.tells_outputs = True
            self.outputs[message.batch] = message.records
        self.newest = message.batch
        self.moved_at = time.monotonic()
        if message.batch in self.committed_batches and not message.written:
            return
        self.committed_batches.add(message.batch)
        told = Effect(life.generation, message.batch, message.at)
        self.commits_told.append(told)
        if not self.engine.visible_from:
            self.effects.append(told)
        began = self._timeline.seconds(life.first_seen.get(message.batch, message.at))
        ended = self._timeline.seconds(message.at)
        detail = "" if message.written else "was committed before"
        self._timeline.add(Happening(Lane.BATCH, f"batch {message.batch}", began, ended, detail))

    def note_failure(self, message: Message) -> None:
        """A driver ends with an error."""
        self.failed.append(message)

    # ------------------------------------------------------------------------------------------- what happens to drivers

    def condemn(self, life: Life) -> bool:
        """It is killed now, which is a strike. False: it has ended by itself."""
        with self._changed:
            if life.ended:
                return False
            self.strikes.append(Kill(life.generation, time.time()))
            life.killed = True
            return True

    def note_strike(self, met: UnderWay, kill: Kill) -> None:
        """A part of a running driver was killed, without which the other one can bring no batch but that which it has sent."""
        self.struck.append(met)
        self.strikes.append(kill)

    def note_its_last_words(self, life: Life) -> None:
        """What it did when it was killed, now that all that it had told is heard."""
        with self._changed:
            self.struck.append(self.doing(life))
            self._commits_at_end = self.commits

    def note_pause(self, life: Life) -> None:
        """It stands still since now. Its last words are heard."""
        life.stopped = True
        self.pauses.append(time.time())
        self.note_stall(life)

    def note_stall(self, life: Life) -> None:
        """It stands still since now, and is to go on. Its last words are heard."""
        with self._changed:
            self.struck.append(self.doing(life))

    def note_end(self, life: Life, *, is_missed: bool) -> None:
        """It has ended, which ``is_missed`` where nobody asked for it, and no other one is left that has output.

        One that follows and ends without a batch is still the same outage.
        """
        if life.jvm_killed:  # its end is no other one's, whatever it has still committed
            self._commits_at_end = self.commits
        if is_missed and self.commits > self._commits_at_end:
            self.outages.append(time.time())
            self._commits_at_end = self.commits
