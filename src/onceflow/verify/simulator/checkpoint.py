"""Model of Spark's checkpoint: ``offsets/N`` is written before batch N, ``commits/N`` after it; the disk may misbehave."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.coverage import reach
from onceflow.verify.simulator.scheduler import Scheduler

LATE = 60
TORN = -1


class TornCheckpoint(Exception):
    """A file of the checkpoint cannot be read: Spark does not start."""


class Checkpoint:
    """One checkpoint directory. ``offsets[N]`` is the source end offset of batch N; ``initial`` where batch 0 starts."""

    def __init__(self, scheduler: Scheduler, choices: Choices, query_id: str, initial: int) -> None:
        self.query_id = query_id
        self.initial = initial
        self.damaged = False
        self.offsets: dict[int, int] = {}
        self.commits: set[int] = set()
        self._scheduler = scheduler
        self._choices = choices

    def write_offsets(self, batch_id: int, end: int) -> None:
        """The write-ahead log of a batch. A slower writer replaces the file of a faster one."""
        self._write(partial(self.offsets.__setitem__, batch_id, end), partial(self.offsets.__setitem__, batch_id, TORN))

    def write_commit(self, batch_id: int) -> None:
        """Spark's own note that a batch is done."""
        self._write(partial(self.commits.add, batch_id), partial(self.commits.discard, batch_id))

    def _write(self, put: Callable[[], None], tear: Callable[[], None]) -> None:
        fate = self._choices.pick("checkpoint", 5)
        if fate:
            self.damaged = True
        if fate == 0:
            put()
        elif fate == 1:
            reach("checkpoint: a file is lost")
        elif fate == 2:
            reach("checkpoint: a file is torn")
            tear()
        elif fate == 3:
            reach("checkpoint: a file appears late")
            self._scheduler.after(LATE, put)
        else:
            put()
            self.restore()

    def restore(self) -> None:
        """An older backup is put in its place."""
        reach("checkpoint: an older backup is restored")
        newest = max(self.offsets, default=0)
        for batch_id in [number for number in self.offsets if number > newest - 2]:
            del self.offsets[batch_id]
            self.commits.discard(batch_id)

    def next_batch(self) -> int:
        """Where a query starts: after the newest batch if that is done, else with it. Raises TornCheckpoint."""
        if TORN in self.offsets.values():
            raise TornCheckpoint
        newest = max(self.offsets, default=-1)
        return newest if newest >= 0 and newest not in self.commits else newest + 1

    def end_of(self, batch_id: int) -> int | None:
        """The source end offset of a batch; None when its file is missing."""
        return self.initial if batch_id < 0 else self.offsets.get(batch_id)
