"""A job of Spark's in simulated time: tasks side by side, and the driver that waits for them, and may be hit meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from onceflow.verify.simulator.scheduler import Process, Scheduler, Wait
from onceflow.verify.simulator.talking import Simulated


class Mortal(Protocol):
    """The driver that a batch is written for: something may happen to it meanwhile."""

    def moment(self) -> Simulated[None]:
        """Before a produce request of its own."""
        ...

    def fate_beside(self) -> int:
        """What happens to it right before a produce request of a task; 0 for nothing."""
        ...

    def meet(self, fate: int) -> Simulated[None]:
        """Lets that happen to it: it may be stopped, and raises what ends it."""
        ...


class Job:
    """Tasks side by side, which outlive the ``driver`` that waits for them; before each of their requests it may be hit.

    ::

        one task has written, another is about to; the driver is killed: the transaction is open, and holds some of the batch
        the next driver fences, and aborts it; the task that is about to write is refused
    """

    def __init__(self, scheduler: Scheduler, driver: Mortal) -> None:
        self._scheduler = scheduler
        self._driver = driver
        self._waiting: Process | None = None  # the driver's, while it runs and waits
        self._results: list[Any] = []
        self._missing = 0

    def results(self, bodies: Sequence[Simulated[Any]]) -> Simulated[list[Any]]:
        """Runs the tasks, and what befalls the driver meanwhile. Their results, in order."""
        self._results = [None] * len(bodies)
        self._missing = len(bodies)
        for number, body in enumerate(bodies):
            Process(self._scheduler, body, partial(self._ended, number))
        while self._missing:
            fate = yield self._wait()
            if fate:
                yield from self._driver.meet(fate)
        return self._results

    def moment(self) -> Simulated[None]:
        """Before a request of a task."""
        if self._waiting is not None:
            fate = self._driver.fate_beside()
            if fate:
                self._wake(fate)
        yield from ()  # it takes no time

    def _wait(self) -> Wait:
        def begin(process: Process) -> None:
            self._waiting = process

        return begin

    def _ended(self, number: int, result: Any) -> None:
        self._results[number] = result
        self._missing -= 1
        if not self._missing:
            self._wake(0)

    def _wake(self, fate: int) -> None:
        """The driver hears of it once; what it hears of next, it has to wait for again."""
        process, self._waiting = self._waiting, None
        if process is not None:
            process.resume(fate)
