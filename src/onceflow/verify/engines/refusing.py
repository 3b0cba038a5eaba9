"""A third of all batches fails once on its way.

Kafka's own copier aborts a third of its transactions and copies the messages again. A pipeline aborts nothing without a reason,
so it is given one, where a broker could give it: a produce request of the attempt is refused. What follows is the
production code's own: the transaction is aborted, with what other requests of it wrote, and the batch is written again under
a fresh epoch.

Executors import this module in their tasks, so it imports little.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from pyspark import TaskContext

from onceflow.transaction.failures import AttemptFailed

if TYPE_CHECKING:
    from onceflow.transaction.coordinator import OnStep

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


class RefusingInTasks:
    """The same where executors write. Told each step as well; ``in_tasks`` goes with each attempt to the tasks."""

    def __init__(self, step: OnStep) -> None:
        self._step = step
        self._begun = -1
        self.in_tasks = InTasks()

    def __call__(self, step: str, batch: int) -> None:
        self._step(step, batch)
        if step == "WRITE":
            self.in_tasks.refused = request_refused(batch) if batch != self._begun else 0
            self._begun = batch


@dataclass
class InTasks:
    """Called in a task before each of its produce requests: see ``KafkaSink.on_task_request``.

    There is no second request: tasks write at the same time, one to each leader. So half of the batches that are due lose the
    first request of each task, and half that of every other task::

        task 0   is refused before it has written anything
        task 1   writes partition 1, and all of it is acknowledged
        driver   aborts what task 1 wrote, and has both write again under a fresh epoch
    """

    refused: int = 0  # as ``request_refused`` says of the attempt; 0 of a second one

    def __call__(self) -> None:
        if self.refused == 1 or (self.refused and _number_of_task() % 2 == 0):
            raise _refusal()


def _number_of_task() -> int:
    context = TaskContext.get()
    assert context is not None, "runs in a Spark task only"
    return context.partitionId()


def _refusal() -> AttemptFailed:
    return AttemptFailed("this attempt was to be aborted")
