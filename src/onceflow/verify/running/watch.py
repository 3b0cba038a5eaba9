"""A watch over a run: that it gets input and makes progress, where it stands, which brokers live, what Spark will purge."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from onceflow.errors import PipelineStuck
from onceflow.verify.cluster import Node
from onceflow.verify.result import Lane
from onceflow.verify.running.explained import explained
from onceflow.verify.running.purged import PurgedEntries
from onceflow.verify.running.timeline import Open
from onceflow.verify.running.world import PrivateWorld, committed_end
from onceflow.verify.workload import InputWriter

_EVERY_S = 0.25
_JOIN_S = 60


class Watch:
    """Looks a few times a second until the block ends. ``stuck`` says why the run was given up, ``is_still`` that it is for the
    pipeline makes no progress.
    """

    def __init__(self, world: PrivateWorld, writer: InputWriter, stuck_s: float, purged: PurgedEntries) -> None:
        self.stuck = ""
        self.is_still = False
        self.committed: list[tuple[float, int]] = []  # seconds, offsets that the checkpoint calls committed
        self._world = world
        self._writer = writer
        self._stuck_s = stuck_s
        self._purged = purged
        self._disturbed_at = time.monotonic()
        self._brokers: dict[int, tuple[int | None, Open | None]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onceflow-watch-run", daemon=True)

    def _run(self) -> None:
        try:
            self._look_again_and_again()
        except Exception as error:  # noqa: BLE001  a run that nobody watches would never be given up
            self._give_up(f"the watch over the run failed: {explained(error)}")

    def _look_again_and_again(self) -> None:
        while not self._ending.wait(_EVERY_S):
            for node in self._world.kafka.nodes:
                self._look_at_broker(node)
            self._look_at_lag()
            self._look_at_input()
            self._look_at_progress()
            self._purged.look()

    def _look_at_broker(self, node: Node) -> None:
        """A bar on the timeline for each life of a broker."""
        known, bar = self._brokers.get(node.id, (None, None))
        pid = node.pid
        if pid == known:
            return
        timeline = self._world.timeline
        if bar is not None:
            timeline.end(bar)
        opened = None if pid is None else timeline.begin(Lane.BROKER, f"broker {node.id}", f"pid {pid}")
        self._brokers[node.id] = (pid, opened)

    def _look_at_lag(self) -> None:
        ends = committed_end(self._world.checkpoint)
        if ends is not None:
            self.committed.append((self._world.timeline.seconds(), sum(ends.values())))

    def _look_at_input(self) -> None:
        """A pipeline that gets no input any more has no batch either, and is not to blame for that."""
        failure = self._writer.failure
        if failure is not None:
            self._give_up(explained(failure))

    def _look_at_progress(self) -> None:
        """No batch for so long, though input comes all the time and nothing disturbs: nobody could use that.

        The first batch is waited for elsewhere. A driver that took over is given the time from its start; one that dies again and
        again before it has a batch is given up by its supervisor.
        """
        driver, now = self._world.driver, time.monotonic()
        if not driver.course.committed_batches or self._world.timeline.is_open(Lane.FAULT):
            self._disturbed_at = now
        if driver.gave_up:
            self._give_up(driver.gave_up)
        elif now - max(self._disturbed_at, driver.course.moved_at) > self._stuck_s:
            still = PipelineStuck(f"no batch for {self._stuck_s:.0f} s, though no fault was in its way")
            self._give_up(explained(still), is_still=True)

    def _give_up(self, why: str, *, is_still: bool = False) -> None:
        """The first reason counts: it is found again with every look."""
        if not self.stuck:
            self.stuck, self.is_still = why, is_still
        self._world.given_up.set()
        self._world.driver.give_up(self.stuck)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(_JOIN_S)
