"""A third of all batches fails once on its way.

Kafka's own copier aborts a third of its transactions and copies the messages again. A pipeline aborts nothing without a reason,
so it is given one, where a broker could give it: a produce request of the attempt is refused. What follows is the
production code's own: the transaction is aborted, with what other requests of it wrote, and the batch is written again under
a fresh epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from onceflow.transaction.coordinator import OnStep
from onceflow.transaction.failures import AttemptFailed
from onceflow.transaction.messages import Counts

ABORTED = 1 / 3


def request_refused(batch: int) -> int:
    """Which produce request of a batch's first attempt is refused, from 1; 0 for none."""
    chance = Random(f"refused-{batch}").random()  # noqa: S311  repeatable on purpose
    return 0 if chance >= ABORTED else 1 + (chance >= ABORTED / 2)


class Refusing:
    """Told each step, as ``KafkaSink.on_step`` is; refuses one produce request of the first attempt of a batch that is due.

    Half of them lose their first request, when nothing is written yet, half the second one. Whether a batch is due follows from
    its number.
    """

    def __init__(self, step: OnStep) -> None:
        self._step = step
        self._requests = 0
        self._refused = -1

    def __call__(self, step: str, batch: int) -> None:
        self._step(step, batch)
        if step == "WRITE":
            self._requests = 0
        if step == "PRODUCE":
            self._requests += 1
            if self._requests == request_refused(batch) and batch != self._refused:
                self._refused = batch
                raise _refusal()


class RefusingExecutors:
    """The same where executors write. Told each step as well; ``write`` stands in the place of ``write_on_executors``.

    Half of the batches that are due fail before a task has written anything, half when all of it is written and acknowledged,
    which is where Kafka's copier aborts.
    """

    def __init__(self, step: OnStep, write: Callable[..., Counts]) -> None:
        self._step = step
        self._write = write
        self._begun = -1
        self._refused = 0  # as ``request_refused`` says of a batch's first attempt; 0 of a second one

    def __call__(self, step: str, batch: int) -> None:
        self._step(step, batch)
        if step == "WRITE":
            self._refused = request_refused(batch) if batch != self._begun else 0
            self._begun = batch

    def write(self, *given: Any) -> Counts:
        """Raises AttemptFailed where this attempt is refused."""
        if self._refused == 1:
            raise _refusal()
        counts = self._write(*given)
        if self._refused:
            raise _refusal()
        return counts


def _refusal() -> AttemptFailed:
    return AttemptFailed("this attempt was to be aborted")
