"""Simulated time: a queue of events, and processes that wait for them. No wall clock, no threads.

A process is a generator. It yields what it waits for (a ``Wait``), which arranges that the process is resumed, once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

Wait = Callable[["Process"], None]
Body = Generator[Wait, Any, Any]


class Scheduler:
    """Runs events in the order of their time; at the same time, in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = 0
        self.happened = 0

    def after(self, ticks: int, event: Callable[[], None]) -> None:
        """Plans ``event`` for ``ticks`` from now."""
        self._planned += 1
        heapq.heappush(self._queue, (self.now + ticks, self._planned, event))

    def step(self) -> bool:
        """Runs the next event; False when there is none."""
        if not self._queue:
            return False
        self.now, _, event = heapq.heappop(self._queue)
        self.happened += 1
        event()
        return True


class Process:
    """A generator that runs in simulated time. It can be stopped (SIGSTOP) until a time, and it can end."""

    def __init__(self, scheduler: Scheduler, body: Body, ended: Callable[[Any], None] = lambda result: None) -> None:
        self.scheduler = scheduler
        self.wakes = 0  # stopped until then
        self.alive = True
        self._body = body
        self._ended = ended
        scheduler.after(0, partial(self.resume, None))

    def resume(self, value: Any) -> None:
        """Gives the process what it waited for; a stopped one hears of it when it wakes."""
        if self.wakes > self.scheduler.now:
            self.scheduler.after(self.wakes - self.scheduler.now, partial(self.resume, value))
            return
        try:
            wait = self._body.send(value)
        except StopIteration as end:
            self.alive = False
            self._ended(end.value)
        else:
            wait(self)


def sleep(ticks: int) -> Wait:
    """Waits for simulated time to pass."""
    return lambda process: process.scheduler.after(ticks, partial(process.resume, None))


def stop(ticks: int) -> Wait:
    """SIGSTOP, and SIGCONT after ``ticks``."""

    def begin(process: Process) -> None:
        process.wakes = process.scheduler.now + ticks
        process.scheduler.after(0, partial(process.resume, None))

    return begin
